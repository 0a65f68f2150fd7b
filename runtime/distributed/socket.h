#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fusor::runtime {

using Deadline = std::chrono::steady_clock::time_point;

// A TCP connection or a listening socket; closed on destruction. Failures throw
// kPeerLost unless said otherwise, naming the address.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Throws kUsage where the address or the port is not to be had. An empty host
  // is every interface; port 0 one that is free.
  static Socket Listen(const std::string& host, int port);
  // Null (see valid) where nobody listens there, or not before the deadline.
  // Throws kUsage for a host that does not resolve, after a few tries if the
  // name server does not answer.
  static Socket Connect(const std::string& host, int port, Deadline deadline);
  // REQUIRES: listening, and poll(2) says that it is readable.
  Socket Accept() const;

  bool valid() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int port() const;                  // own
  std::string address() const;       // own, numeric
  std::string peer_address() const;  // of the other end, numeric

  void Send(std::string_view bytes, Deadline deadline) const;
  // All of `bytes`. Throws when the other end closes before, or time is over.
  void Receive(std::span<char> bytes, Deadline deadline) const;
  // From another thread: lets what waits there fail at once.
  void Shutdown() const;

 private:
  int fd_ = -1;
};

// A network interface of this machine that is up, and one of its addresses,
// numeric, IPv4 where it has one.
struct NetworkInterface {
  std::string name;  // "eth0"
  std::string address;
};
// The one of that name or numeric address; its other field is empty where there
// is none.
NetworkInterface FindInterface(const std::string& name_or_address);

// Whether a numeric address is one that only this machine reaches.
bool IsLoopback(const std::string& address);

// Bytes of a message: a length of 4 bytes and the fields, each a length and its
// bytes. Little-endian, as all machines that fusor runs on are.
class MessageWriter {
 public:
  MessageWriter& Add(std::string_view field);
  MessageWriter& Add(int64_t number);
  std::string Take();

 private:
  std::string fields_;
};

// The fields of a message without its length. Throws kPeerLost where it is
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

// Takes the first message, without its length, off the bytes that came in;
// null while it is not whole. Throws kPeerLost where it is longer than that.
std::optional<std::string> TakeMessage(std::string& received,
                                       uint32_t max_bytes);
// Waits for one, without its length. Throws kPeerLost as Socket::Receive does.
std::string ReceiveMessage(const Socket& socket, Deadline deadline);

}  // namespace fusor::runtime
