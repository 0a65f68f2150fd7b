#include "runtime/distributed/tcp_store.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "ir/support/error.h"
#include "runtime/distributed/store_server.h"

namespace fusor::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kRetry{50};       // between connection attempts
constexpr milliseconds kGrace{2'000};    // beyond the deadline of a request
constexpr milliseconds kPrompt{60'000};  // if no other rank is waited for
constexpr milliseconds kFarewell{5'000};

MessageWriter Message(StoreCall call) {
  MessageWriter writer;
  writer.Add(static_cast<int64_t>(call));
  return writer;
}

struct Answer {
  bool ok;
  std::string value;  // value, or reason if not ok
};

Answer Ask(const Socket& socket, const std::string& message,
           Deadline deadline) {
  socket.Send(message, deadline);
  const std::string bytes = ReceiveMessage(socket, deadline);
  MessageReader reader(bytes);
  const bool ok = reader.Number() == static_cast<int64_t>(StoreAnswer::kOk);
  return {ok, reader.String()};
}

}  // namespace

TcpStore::TcpStore(const StoreOptions& options) : options_(options) {
  FUSOR_CHECK(options.world_size > 0 && options.rank >= 0 &&
                  options.rank < options.world_size,
              kUsage, "rendezvous: expected a rank below {}, got {}",
              options.world_size, options.rank);
  const Deadline deadline = steady_clock::now() + options.timeout;
  port_ = options.port;
  if (options.rank == 0) {
    server_ = std::make_unique<StoreServer>(options.port, options.more_ports,
                                            options.token, options.world_size);
    port_ = server_->port();
  }
  Connect(deadline);
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  const Answer all = Ask(
      socket_,
      Message(StoreCall::kMeet).Add(std::max<int64_t>(0, left.count())).Take(),
      deadline + kGrace);
  FUSOR_CHECK(all.ok, kPeerLost, "rendezvous at {}: {} after {} s", server(),
              all.value,
              std::chrono::duration_cast<std::chrono::seconds>(options.timeout)
                  .count());
  address_ = socket_.address();
  // A host name may resolve to loopback on that host only.
  if (IsLoopback(address_) && !all.value.empty()) address_ = all.value;
}

TcpStore::~TcpStore() {
  try {
    Ask(socket_, Message(StoreCall::kBye).Take(), steady_clock::now() + kGrace);
  } catch (const Error&) {
    // Rank 0 is gone; there is no one to notify.
  }
  if (server_ != nullptr) server_->Drain(kFarewell);
}

std::string TcpStore::server() const {
  const bool ipv6 = options_.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", options_.host,
                     ipv6 ? "]" : "", port_);
}

// Rank 0 may start later, or its first ports may be taken.
void TcpStore::Connect(Deadline deadline) {
  const int ports = options_.rank == 0 ? 1 : options_.more_ports + 1;
  const int first = port_;
  for (int i = 0; steady_clock::now() < deadline; i = (i + 1) % ports) {
    port_ = first + i;
    socket_ = Open(deadline);
    if (socket_.valid() && Greet(deadline)) return;
    std::this_thread::sleep_for(kRetry);
  }
  port_ = first;
  FUSOR_CHECK(false, kPeerLost,
              "rendezvous at {}: rank 0 is missing after {} s", server(),
              std::chrono::duration_cast<std::chrono::seconds>(options_.timeout)
                  .count());
}

// A host name that does not resolve will not help any rank, so fail at once.
Socket TcpStore::Open(Deadline deadline) const {
  try {
    return Socket::Connect(options_.host, port_, deadline);
  } catch (const Error& e) {
    ThrowError(e.code(), fmt::format("rendezvous at {}: {}; expected the "
                                     "address of rank 0's host",
                                     server(), e.what()));
  }
}

// Returns false if the peer is not a store.
bool TcpStore::Greet(Deadline deadline) {
  Answer answer;
  try {
    answer = Ask(socket_,
                 Message(StoreCall::kHello)
                     .Add(kStoreMagic)
                     .Add(options_.token)
                     .Add(int64_t{options_.rank})
                     .Add(int64_t{options_.world_size})
                     .Take(),
                 std::min(deadline, steady_clock::now() + kGrace));
  } catch (const Error&) {
    return false;
  }
  FUSOR_CHECK(answer.ok, kUsage, "rendezvous at {}: rank {} is rejected: {}",
              server(), options_.rank, answer.value);
  return true;
}

std::string TcpStore::Call(const std::string& message, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const Answer answer = Ask(socket_, message, deadline);
  FUSOR_CHECK(answer.ok, kPeerLost, "{}", answer.value);
  return answer.value;
}

void TcpStore::Set(const std::string& key, const std::string& value) {
  Call(Message(StoreCall::kSet).Add(key).Add(value).Take(),
       steady_clock::now() + kPrompt);
}

std::string TcpStore::Get(const std::string& key, milliseconds timeout) {
  const std::string message =
      Message(StoreCall::kGet).Add(key).Add(timeout.count()).Take();
  try {
    return Call(message, steady_clock::now() + timeout + kGrace);
  } catch (const Error& e) {
    ThrowError(e.code(), fmt::format("rendezvous at {}: {}: {} after {} ms",
                                     server(), key, e.what(), timeout.count()));
  }
}

int64_t TcpStore::Add(const std::string& key, int64_t amount) {
  const std::string value =
      Call(Message(StoreCall::kAdd).Add(key).Add(amount).Take(),
           steady_clock::now() + kPrompt);
  int64_t number = 0;
  FUSOR_CHECK(value.size() == sizeof(number), kPeerLost,
              "rendezvous at {}: {}: a malformed message", server(), key);
  std::memcpy(&number, value.data(), sizeof(number));
  return number;
}

std::vector<std::string> TcpStore::Gather(const std::string& key,
                                          const std::string& value,
                                          milliseconds timeout) {
  const Deadline deadline = steady_clock::now() + timeout;
  Set(fmt::format("{}/{}", key, rank()), value);
  std::vector<std::string> values;
  for (int r = 0; r < world_size(); ++r) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - steady_clock::now());
    values.push_back(
        Get(fmt::format("{}/{}", key, r), std::max(left, milliseconds(0))));
  }
  return values;
}

}  // namespace fusor::runtime
