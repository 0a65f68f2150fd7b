#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "runtime/distributed/socket.h"

namespace fusor::runtime {

// Requests of a rank to the store: the first field of its message. The answer
// is kOk and a value, or kRejected and a reason.
enum class StoreCall : int64_t {
  kHello,  // magic, token, rank, world size; ok once admitted
  // Rendezvous. Milliseconds; ok once all ranks are admitted, with the address
  // at which other hosts reached rank 0, empty if there are none.
  kMeet,
  kSet,  // key, value
  kGet,  // key, milliseconds; ok once the key is set
  kAdd,  // key, amount
  kBye,  // shutdown of this rank
};
enum class StoreAnswer : int64_t { kOk, kRejected };

inline constexpr char kStoreMagic[] = "fusor store 1";

// The store's server: a thread that owns keys and values and serves one
// connection per rank.
class StoreServer {
 public:
  // Listens on the first free port from `port` to `port` + `more_ports`.
  // Throws kUsage if none is free.
  StoreServer(int port, int more_ports, std::string token, int world_size);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return listener_.port(); }
  // Waits until all admitted ranks have left, but at most this long.
  void Drain(std::chrono::milliseconds at_most);

 private:
  // A request whose answer is deferred.
  struct Pending {
    std::string key;  // empty: wait for all ranks
    Deadline deadline;
  };
  struct Client {
    Socket socket;
    int rank = -1;  // -1: not admitted yet
    Deadline greeting;
    std::string in, out;
    std::optional<Pending> pending;
    bool closing = false;  // close once `out` is sent
  };

  void Serve();
  void Accept();
  bool Read(Client& client);
  bool Write(Client& client);
  void Handle(Client& client, std::string_view message);
  void Hello(Client& client, MessageReader& message);
  void Settle();
  void Answer(Client& client, StoreAnswer answer, std::string_view value);
  void Reject(Client& client, const std::string& why);
  std::string Missing() const;
  int Timeout() const;

  Socket listener_;
  const std::string token_;
  const int world_size_;
  Socket wake_[2];  // socket pair; shutdown wakes poll(2)

  // Owned by the thread.
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> numbers_;
  std::string outward_;    // local address of a connection from another host
  std::set<int> met_;      // all ranks ever admitted
  std::set<int> present_;  // admitted ranks that are still connected

  std::atomic<bool> stop_ = false;
  std::atomic<int> open_ = 0;  // number of clients in present_
  std::thread thread_;
};

}  // namespace fusor::runtime
