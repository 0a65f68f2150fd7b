#include "runtime/distributed/store_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A client must send its greeting within so many bytes.
constexpr uint32_t kMaxGreeting = 4096;

Socket ListenFrom(int port, int more_ports) {
  for (int i = 0; i < more_ports; ++i) {
    try {
      return Socket::Listen("", port + i);
    } catch (const Error&) {
      // Taken; only the last port's failure is reported.
    }
  }
  return Socket::Listen("", port + more_ports);
}

milliseconds TimeoutOf(int64_t wanted) {
  return milliseconds(std::clamp<int64_t>(wanted, 0, 1000LL * 3600 * 24));
}

}  // namespace

StoreServer::StoreServer(int port, int more_ports, std::string token,
                         int world_size)
    : listener_(ListenFrom(port, more_ports)),
      token_(std::move(token)),
      world_size_(world_size) {
  int pair[2];
  FUSOR_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                         pair) == 0,
              kDevice, "rendezvous: {}", std::strerror(errno));
  wake_[0] = Socket(pair[0]);
  wake_[1] = Socket(pair[1]);
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Serve(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  wake_[0].Shutdown();
  thread_.join();
}

void StoreServer::Drain(milliseconds at_most) {
  const Deadline deadline = steady_clock::now() + at_most;
  while (open_ > 0 && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(5));
  }
}

void StoreServer::Serve() {
  std::vector<pollfd> entries;
  while (!stop_) {
    entries.assign({{listener_.fd(), POLLIN, 0}, {wake_[1].fd(), POLLIN, 0}});
    for (const Client& client : clients_) {
      const int out = client.out.empty() ? 0 : POLLOUT;
      entries.push_back(
          {client.socket.fd(), static_cast<short>(POLLIN | out), 0});
    }
    if (poll(entries.data(), entries.size(), Timeout()) < 0) continue;
    auto entry = entries.begin() + 2;
    for (auto client = clients_.begin(); client != clients_.end(); ++entry) {
      const bool late =
          client->rank < 0 && steady_clock::now() > client->greeting;
      bool open = !late;
      if (open && (entry->revents & ~POLLOUT) != 0) open = Read(*client);
      if (open && !client->out.empty()) open = Write(*client);
      if (open) {
        ++client;
        continue;
      }
      if (client->rank >= 0 && present_.erase(client->rank) > 0) --open_;
      client = clients_.erase(client);
    }
    if ((entries[0].revents & POLLIN) != 0) Accept();
    Settle();
  }
}

// Returns milliseconds until the next deadline, for poll(2).
int StoreServer::Timeout() const {
  Deadline next = steady_clock::now() + milliseconds(60'000);
  for (const Client& client : clients_) {
    if (client.rank < 0) next = std::min(next, client.greeting);
    if (client.pending) next = std::min(next, client.pending->deadline);
  }
  const auto left =
      std::chrono::duration_cast<milliseconds>(next - steady_clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count() + 1));
}

void StoreServer::Accept() {
  Socket socket = listener_.Accept();
  if (!socket.valid()) return;
  Client& client = clients_.emplace_back();
  client.socket = std::move(socket);
  client.greeting = steady_clock::now() + kGreetingTime;
}

// Returns false if the connection has ended.
bool StoreServer::Read(Client& client) {
  char bytes[16384];
  const ssize_t got =
      recv(client.socket.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  if (client.closing) return true;
  client.in.append(bytes, static_cast<size_t>(got));
  try {
    while (true) {
      const auto message = TakeMessage(
          client.in, client.rank < 0 ? kMaxGreeting : kMaxMessageBytes);
      if (!message) return true;
      Handle(client, *message);
    }
  } catch (const Error&) {
    return false;  // malformed message
  }
}

bool StoreServer::Write(Client& client) {
  const ssize_t sent = send(client.socket.fd(), client.out.data(),
                            client.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  client.out.erase(0, static_cast<size_t>(sent));
  return !client.out.empty() || !client.closing;
}

void StoreServer::Handle(Client& client, std::string_view message) {
  MessageReader reader(message);
  const auto call = static_cast<StoreCall>(reader.Number());
  if (call == StoreCall::kHello) return Hello(client, reader);
  FUSOR_CHECK(client.rank >= 0 && !client.pending, kPeerLost,
              "a malformed message");
  switch (call) {
    case StoreCall::kMeet:
      client.pending = {"", steady_clock::now() + TimeoutOf(reader.Number())};
      return;
    case StoreCall::kSet: {
      const std::string key = reader.String();
      values_[key] = reader.String();
      return Answer(client, StoreAnswer::kOk, "");
    }
    case StoreCall::kGet: {
      const std::string key = reader.String();
      client.pending = {key, steady_clock::now() + TimeoutOf(reader.Number())};
      return;
    }
    case StoreCall::kAdd: {
      int64_t& number = numbers_[reader.String()];
      number += reader.Number();
      return Answer(client, StoreAnswer::kOk,
                    {reinterpret_cast<const char*>(&number), sizeof(number)});
    }
    case StoreCall::kBye:
      if (present_.erase(client.rank) > 0) --open_;
      return Answer(client, StoreAnswer::kOk, "");
    case StoreCall::kHello:
      break;
  }
  FUSOR_CHECK(false, kPeerLost, "a malformed message");
}

void StoreServer::Hello(Client& client, MessageReader& message) {
  FUSOR_CHECK(client.rank < 0 && message.String() == kStoreMagic, kPeerLost,
              "a malformed message");
  const std::string token = message.String();
  const int64_t rank = message.Number();
  const int64_t world_size = message.Number();
  if (token != token_) return Reject(client, "the token is another run's");
  if (world_size != world_size_) {
    return Reject(client, fmt::format("rank 0 expects {} ranks, this one {}",
                                      world_size_, world_size));
  }
  if (rank < 0 || rank >= world_size_) {
    return Reject(client, fmt::format("rank {} of {}", rank, world_size_));
  }
  if (met_.contains(static_cast<int>(rank))) {
    return Reject(client,
                  fmt::format("rank {} is there already: expected each rank "
                              "once",
                              rank));
  }
  client.rank = static_cast<int>(rank);
  const std::string address = client.socket.address();
  if (!IsLoopback(address) && address != client.socket.peer_address()) {
    outward_ = address;
  }
  met_.insert(client.rank);
  present_.insert(client.rank);
  ++open_;
  Answer(client, StoreAnswer::kOk, "");
}

// Answers pending requests that are fulfilled or timed out. If one rank gives
// up the rendezvous, it fails for all: rank 0 ends the store when it exits.
void StoreServer::Settle() {
  const auto now = steady_clock::now();
  const bool over =
      std::any_of(clients_.begin(), clients_.end(), [&](const Client& client) {
        return client.pending && client.pending->key.empty() &&
               now >= client.pending->deadline;
      });
  for (Client& client : clients_) {
    if (!client.pending) continue;
    const Pending pending = *client.pending;
    const bool meet = pending.key.empty();
    const auto found = values_.find(pending.key);
    const bool there = meet ? met_.size() == static_cast<size_t>(world_size_)
                            : found != values_.end();
    if (!there && now < pending.deadline && !(meet && over)) continue;
    client.pending.reset();
    if (there) {
      Answer(client, StoreAnswer::kOk, meet ? outward_ : found->second);
    } else {
      Answer(client, StoreAnswer::kRejected, meet ? Missing() : "not there");
    }
  }
}

// Returns "rank 1 is missing" or "ranks 1, 2, 5 are missing".
std::string StoreServer::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (!met_.contains(rank)) missing.push_back(rank);
  }
  constexpr size_t kNamed = 8;
  const size_t more = missing.size() - std::min(missing.size(), kNamed);
  if (more > 0) missing.resize(kNamed);
  return fmt::format(
      "rank{} {}{} missing", missing.size() + more > 1 ? "s" : "",
      Join(missing, ", ", [](int rank) { return std::to_string(rank); }),
      more > 0              ? fmt::format(" and {} more are", more)
      : missing.size() == 1 ? " is"
                            : " are");
}

void StoreServer::Answer(Client& client, StoreAnswer answer,
                         std::string_view value) {
  client.out +=
      MessageWriter().Add(static_cast<int64_t>(answer)).Add(value).Take();
  Write(client);
}

void StoreServer::Reject(Client& client, const std::string& why) {
  client.closing = true;
  Answer(client, StoreAnswer::kRejected, why);
}

}  // namespace fusor::runtime
