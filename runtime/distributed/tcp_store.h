#pragma once

// Rendezvous store of the ranks of a run: keys and values that rank 0 holds and
// all ranks reach over TCP before any other connection exists. The token
// prevents accidental connections, not attacks. Use trusted networks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/distributed/socket.h"

namespace fusor::runtime {

struct StoreOptions {
  std::string host;  // of rank 0, as other ranks reach it
  int port = 0;
  // Further ports that rank 0 may use if `port` is taken.
  int more_ports = 0;
  std::string token;  // identifies the run
  int rank = 0;
  int world_size = 1;
  // Time limit for the rendezvous of all ranks.
  std::chrono::milliseconds timeout{300'000};
};

class StoreServer;

// One rank's connection to the store; rank 0's also owns the server. A key is
// either set once or added to. Thread-safe: calls are serialised, so a call
// that waits for a value blocks other threads. Errors are kPeerLost; they name
// the key and, if known, the missing ranks.
class TcpStore {
 public:
  // Returns once all ranks are connected. Throws kUsage if the host name does
  // not resolve. Also throws kUsage, while the other ranks still wait for the
  // right one, if the token or world size differs or the rank is already
  // connected. Throws kPeerLost, naming the missing ranks, on timeout.
  explicit TcpStore(const StoreOptions& options);
  // On rank 0, waits a limited time for the others to finish.
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  // Returns an address at which other ranks reach this one: the local address
  // of its connection to rank 0. If that is a loopback address but another host
  // has a rank, it is the address at which that rank reached rank 0.
  const std::string& address() const { return address_; }
  const std::string& host() const { return options_.host; }  // rank 0's
  // Returns rank 0's address and port, "10.0.0.1:29500".
  std::string server() const;

  void Set(const std::string& key, const std::string& value);
  // Waits until some rank has set the key.
  std::string Get(const std::string& key, std::chrono::milliseconds timeout);
  // Adds to the number of that key, initially 0, and returns the sum.
  int64_t Add(const std::string& key, int64_t amount);

  // Returns the values of all ranks in rank order, once all are set.
  std::vector<std::string> Gather(const std::string& key,
                                  const std::string& value,
                                  std::chrono::milliseconds timeout);

 private:
  void Connect(Deadline deadline);
  Socket Open(Deadline deadline) const;
  bool Greet(Deadline deadline);
  std::string Call(const std::string& message, Deadline deadline);

  const StoreOptions options_;
  std::unique_ptr<StoreServer> server_;  // rank 0's
  int port_ = 0;
  Socket socket_;
  std::string address_;
  std::mutex mutex_;
};

}  // namespace fusor::runtime
