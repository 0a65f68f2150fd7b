#include "runtime/distributed/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// A name server may answer a retry.
constexpr int kResolveTries = 5;
constexpr milliseconds kResolveRetry{1'000};

Addresses Resolve(const std::string& host, int port, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  for (int tries = 1;; ++tries) {
    const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &found);
    if (error == 0) return Addresses(found);
    FUSOR_CHECK(
        error == EAI_AGAIN && tries < kResolveTries, kUsage,
        "cannot resolve the host name {}: {}", host,
        error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
    std::this_thread::sleep_for(kResolveRetry);
  }
}

// Returns the remaining time for poll(2); at least 0.
int Milliseconds(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  return static_cast<int>(
      std::clamp<int64_t>(left.count() + 1, 0, 1000 * 3600));
}

// Returns false on timeout.
bool WaitFor(int fd, short events, Deadline deadline) {
  while (steady_clock::now() < deadline) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, Milliseconds(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the next call will fail
  }
  return false;
}

void SetUp(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::string Numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host,
                  sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "?";
  }
  const std::string_view text = host;
  // An IPv4 peer of a dual-stack socket.
  constexpr std::string_view kMapped = "::ffff:";
  return std::string(text.starts_with(kMapped) ? text.substr(kMapped.size())
                                               : text);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket Socket::Listen(const std::string& host, int port) {
  const Addresses addresses = Resolve(host, port, /*passive=*/true);
  int error = 0;
  // IPv6 first, because an IPv6 socket also accepts IPv4.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int on = 1;
      const int off = 0;
      setsockopt(socket.fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      if (family == AF_INET6) {
        setsockopt(socket.fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      }
      if (socket.valid() && bind(socket.fd_, a->ai_addr, a->ai_addrlen) == 0 &&
          listen(socket.fd_, SOMAXCONN) == 0) {
        return socket;
      }
      error = errno;
    }
  }
  FUSOR_CHECK(false, kUsage, "cannot listen at {}:{}: {}",
              host.empty() ? "*" : host, port, std::strerror(error));
}

Socket Socket::Connect(const std::string& host, int port, Deadline deadline) {
  const Addresses addresses = Resolve(host, port, /*passive=*/false);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Socket socket(
        ::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) continue;
    if (connect(socket.fd_, a->ai_addr, a->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !WaitFor(socket.fd_, POLLOUT, deadline)) {
        continue;
      }
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(socket.fd_, SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) continue;
    }
    SetUp(socket.fd_);
    return socket;
  }
  return {};
}

Socket Socket::Accept() const {
  Socket socket(accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) SetUp(socket.fd_);
  return socket;
}

int Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

std::string Socket::address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return Numeric(address, size);
}

std::string Socket::peer_address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return Numeric(address, size);
}

void Socket::Send(std::string_view bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    FUSOR_CHECK(WaitFor(fd_, POLLOUT, deadline), kPeerLost,
                "no answer from {} in time", peer_address());
    const ssize_t sent =
        send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    FUSOR_CHECK(sent > 0, kPeerLost, "connection lost: {}",
                std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void Socket::Receive(std::span<char> bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    FUSOR_CHECK(WaitFor(fd_, POLLIN, deadline), kPeerLost,
                "no answer from {} in time", peer_address());
    const ssize_t got = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    FUSOR_CHECK(got > 0, kPeerLost, "connection lost: {}",
                got == 0 ? "closed by the other end" : std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

void Socket::Shutdown() const {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

NetworkInterface FindInterface(const std::string& name_or_address) {
  NetworkInterface found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    const socklen_t size =
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&storage, i->ifa_addr, size);
    const std::string address = Numeric(storage, size);
    if (name_or_address != i->ifa_name && name_or_address != address) continue;
    found = {i->ifa_name, address};
    if (family == AF_INET) break;
  }
  freeifaddrs(list);
  return found;
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

MessageWriter& MessageWriter::Add(std::string_view field) {
  const auto size = static_cast<uint32_t>(field.size());
  fields_.append(reinterpret_cast<const char*>(&size), sizeof(size));
  fields_.append(field);
  return *this;
}

MessageWriter& MessageWriter::Add(int64_t number) {
  return Add(
      std::string_view(reinterpret_cast<const char*>(&number), sizeof(number)));
}

std::string MessageWriter::Take() {
  const auto size = static_cast<uint32_t>(fields_.size());
  FUSOR_ASSERT(size <= kMaxMessageBytes, "a message of {} bytes", size);
  std::string message(reinterpret_cast<const char*>(&size), sizeof(size));
  message += std::exchange(fields_, {});
  return message;
}

std::string MessageReader::String() {
  uint32_t size = 0;
  FUSOR_CHECK(left_.size() >= sizeof(size), kPeerLost, "a malformed message");
  std::memcpy(&size, left_.data(), sizeof(size));
  left_.remove_prefix(sizeof(size));
  FUSOR_CHECK(left_.size() >= size, kPeerLost, "a malformed message");
  std::string field(left_.substr(0, size));
  left_.remove_prefix(size);
  return field;
}

int64_t MessageReader::Number() {
  const std::string field = String();
  int64_t number = 0;
  FUSOR_CHECK(field.size() == sizeof(number), kPeerLost, "a malformed message");
  std::memcpy(&number, field.data(), sizeof(number));
  return number;
}

std::optional<std::string> TakeMessage(std::string& received,
                                       uint32_t max_bytes) {
  uint32_t size = 0;
  if (received.size() < sizeof(size)) return std::nullopt;
  std::memcpy(&size, received.data(), sizeof(size));
  FUSOR_CHECK(size <= max_bytes, kPeerLost, "a malformed message");
  if (received.size() < sizeof(size) + size) return std::nullopt;
  std::string message = received.substr(sizeof(size), size);
  received.erase(0, sizeof(size) + size);
  return message;
}

std::string ReceiveMessage(const Socket& socket, Deadline deadline) {
  uint32_t size = 0;
  socket.Receive({reinterpret_cast<char*>(&size), sizeof(size)}, deadline);
  FUSOR_CHECK(size <= kMaxMessageBytes, kPeerLost, "a malformed message");
  std::string message(size, '\0');
  socket.Receive(message, deadline);
  return message;
}

}  // namespace fusor::runtime
