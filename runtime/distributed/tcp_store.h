#pragma once

// Where the ranks of a run meet: names and values that rank 0 keeps and all
// reach over TCP, before there is any other connection between them. Its token
// keeps strangers' mistakes out, not attackers: for trusted networks.

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/distributed/socket.h"

namespace fusor::runtime {

struct StoreOptions {
  std::string host;  // of rank 0, as the others reach it
  int port = 0;
  // Ports above `port` where rank 0 may be instead, if something else has it.
  int more_ports = 0;
  std::string token;  // of the run
  int rank = 0;
  int world_size = 1;
  // Until all ranks have met.
  std::chrono::milliseconds timeout{300'000};
};

class StoreServer;

// One rank's connection to the store; rank 0's also holds the server. A value
// is set once or added up. Thread-safe: calls take turns, so what waits for a
// value keeps other threads waiting. Errors are kPeerLost; they name the key
// and, as far as is known, the ranks that are missing.
class TcpStore {
 public:
  // Returns once all ranks are there. Throws kUsage if the host's name does not
  // resolve, and, while the other ranks still wait for the right one, if the
  // token or the world size differs or the rank is there already; kPeerLost,
  // naming who is missing, when time is over.
  explicit TcpStore(const StoreOptions& options);
  // Rank 0's waits a while for the others to be done.
  ~TcpStore();
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;

  int rank() const { return options_.rank; }
  int world_size() const { return options_.world_size; }
  // Of this rank: one that the other ranks reach. It is that of its end of the
  // connection to rank 0; where that does not leave the host, but a rank on
  // another host is there, the one at which that one reaches rank 0.
  const std::string& address() const { return address_; }
  const std::string& host() const { return options_.host; }  // rank 0's
  // Where rank 0 is, "10.0.0.1:29500".
  std::string server() const;

  void Set(const std::string& key, const std::string& value);
  // Waits until somebody has set it.
  std::string Get(const std::string& key, std::chrono::milliseconds timeout);
  // What the number of that name, at first 0, is then.
  int64_t Add(const std::string& key, int64_t amount);

  // The value of each rank, in their order, once all have given theirs.
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
