// Fuzzes messages to the rendezvous store, and its answers to a rank.

#include <sys/socket.h>

#include <thread>
#include <vector>

#include "runtime/distributed/store_server.h"
#include "runtime/distributed/tcp_store.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

using runtime::Deadline;
using runtime::Socket;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr milliseconds kTimeout{5'000};

// Closes with a reset, so that the port does not wait for stray segments.
void ResetOnClose(const Socket& socket) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

// Reads until the other end closes.
void Drain(const Socket& socket, Deadline deadline) {
  char bytes[4096];
  try {
    while (true) socket.Receive(std::span(bytes, 1), deadline);
  } catch (const Error&) {
    // The other end has closed it.
  }
}

// Sends each piece (a byte for the connection, a length, bytes) to the server,
// then ends all connections.
void Serve(std::string_view pieces) {
  const Deadline deadline = steady_clock::now() + kTimeout;
  runtime::StoreServer server(0, 0, "run", kRanks);
  std::vector<Socket> clients(kRanks);
  while (pieces.size() > 2) {
    Socket& client = clients[static_cast<uint8_t>(pieces[0]) % kRanks];
    const size_t size = static_cast<uint8_t>(pieces[1]);
    if (!client.valid()) {
      client = Socket::Connect("127.0.0.1", server.port(), deadline);
      ResetOnClose(client);
    }
    try {
      client.Send(pieces.substr(2, size), deadline);
    } catch (const Error&) {
      // The server has closed it.
    }
    pieces.remove_prefix(std::min(pieces.size(), size + 2));
  }
  for (const Socket& client : clients) {
    if (!client.valid()) continue;
    shutdown(client.fd(), SHUT_WR);
    Drain(client, deadline);
  }
  Require(steady_clock::now() < deadline, "the server does not close");
}

// Connects a rank to a server that accepts it, answers with these bytes and
// closes.
void Ask(std::string_view answers) {
  const std::string let_in =
      runtime::MessageWriter()
          .Add(static_cast<int64_t>(runtime::StoreAnswer::kOk))
          .Add("")
          .Take();
  const Socket listener = Socket::Listen("127.0.0.1", 0);
  std::thread server([&] {
    const Deadline deadline = steady_clock::now() + kTimeout;
    Socket socket;
    while (!socket.valid() && steady_clock::now() < deadline) {
      socket = listener.Accept();
    }
    try {
      socket.Send(let_in + std::string(answers), deadline);
    } catch (const Error&) {
      // The rank has closed it.
    }
    shutdown(socket.fd(), SHUT_WR);
    Drain(socket, deadline);
  });
  try {
    runtime::TcpStore store({.host = "127.0.0.1",
                             .port = listener.port(),
                             .token = "run",
                             .rank = 1,
                             .world_size = kRanks,
                             .timeout = milliseconds(20)});
    store.Set("key", "value");
    store.Get("key", milliseconds(20));
    store.Add("number", 1);
    store.Gather("all", "value", milliseconds(20));
  } catch (const Error& error) {
    Require(error.code() == ErrorCode::kPeerLost ||
                error.code() == ErrorCode::kUsage,
            error.what());
  }
  server.join();
}

// Reads the fields of received messages.
void Parse(std::string_view bytes) {
  std::string received(bytes);
  while (const auto message =
             runtime::TakeMessage(received, runtime::kMaxMessageBytes)) {
    runtime::MessageReader reader(*message);
    while (!reader.empty()) reader.String();
    runtime::MessageReader(*message).Number();
  }
}

}  // namespace

void ReadStore(std::string_view bytes) {
  if (bytes.empty()) return;
  const char kind = bytes[0];
  bytes.remove_prefix(1);
  switch (static_cast<uint8_t>(kind) % 4) {
    case 0:
      return Parse(bytes);
    case 1:
      return Ask(bytes);
    default:
      return Serve(bytes);
  }
}

}  // namespace fusor::fuzz
