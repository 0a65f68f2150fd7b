#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fusor::runtime {

using Deadline = std::chrono::steady_clock::time_point;

// A new connection must send its greeting within this time.
constexpr std::chrono::milliseconds kGreetingTime{10'000};

// A TCP connection or listening socket; closed on destruction. Failures throw
// kPeerLost, naming the address, unless stated otherwise.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Throws kUsage if the address or port is unavailable. An empty host means
  // every interface; port 0 means any free port.
  static Socket Listen(const std::string& host, int port);
  // Returns an invalid socket (see valid) if nothing listens there or the
  // deadline passes. Throws kUsage if the host does not resolve; retries a few
  // times if the name server does not answer.
  static Socket Connect(const std::string& host, int port, Deadline deadline);
  // REQUIRES: listening, and poll(2) reports it readable.
  Socket Accept() const;

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int port() const;                  // local port
  std::string address() const;       // local address, numeric
  std::string peer_address() const;  // remote address, numeric

  void Send(std::string_view bytes, Deadline deadline) const;
  // Fills `bytes`. Throws if the peer closes first or the deadline passes.
  void Receive(std::span<char> bytes, Deadline deadline) const;
  // Callable from another thread: makes calls that block here fail at once.
  void Shutdown() const;

 private:
  int fd_ = -1;
};

// A network interface of this machine that is up, and one of its numeric
// addresses, IPv4 if it has one.
struct NetworkInterface {
  std::string name;  // "eth0"
  std::string address;
};
// Finds the interface of that name or numeric address. Both fields are empty if
// there is none.
NetworkInterface FindInterface(const std::string& name_or_address);

// Returns whether a numeric address is a loopback address.
bool IsLoopback(const std::string& address);

// Serialises a message: a length of 4 bytes, then the fields, each a length and
// its bytes. Little-endian, as are all machines that fusor supports.
class MessageWriter {
 public:
  MessageWriter& Add(std::string_view field);
  MessageWriter& Add(int64_t number);
  std::string Take();

 private:
  std::string fields_;
};

// Reads the fields of a message without its length. Throws kPeerLost if
// malformed.
class MessageReader {
 public:
  explicit MessageReader(std::string_view message) : left_(message) {}
  std::string String();
  int64_t Number();
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
};

inline constexpr uint32_t kMaxMessageBytes = 16 << 20;

// Removes the first message from the received bytes and returns it without its
// length; null if incomplete. Throws kPeerLost if it exceeds `max_bytes`.
std::optional<std::string> TakeMessage(std::string& received,
                                       uint32_t max_bytes);
// Receives one message, without its length. Throws as Socket::Receive does.
std::string ReceiveMessage(const Socket& socket, Deadline deadline);

}  // namespace fusor::runtime
