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

// What a rank asks of the store: the first field of its message. Answers are
// kOk and a value, or kRefused and why.
enum class StoreCall : int64_t {
  kHello,  // magic, token, rank, world size; ok once this rank is let in
  kMeet,   // milliseconds; ok once all ranks were let in, and at which address
           // those of other hosts have reached rank 0, empty if there are none
  kSet,    // key, value
  kGet,    // key, milliseconds; ok once it is there
  kAdd,    // key, amount
  kBye,    // this rank is done
};
enum class StoreAnswer : int64_t { kOk, kRefused };

inline constexpr char kStoreMagic[] = "fusor store 1";

// The store itself: a thread that owns names and values and serves one
// connection a rank.
class StoreServer {
 public:
  // Listens at the first of the ports from `port` that is free, one in all if
  // `more_ports` is 0. Throws kUsage when there is none.
  StoreServer(int port, int more_ports, std::string token, int world_size);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return listener_.port(); }
  // Waits until all ranks that were let in are done or gone, or for so long.
  void Drain(std::chrono::milliseconds at_most);

 private:
  // A question whose answer has to wait.
  struct Pending {
    std::string key;  // empty: for all ranks
    Deadline deadline;
  };
  struct Client {
    Socket socket;
    int rank = -1;  // -1: not let in yet
    Deadline greeting;
    std::string in, out;
    std::optional<Pending> pending;
    bool closing = false;  // once `out` is sent
  };

  void Serve();
  void Accept();
  bool Read(Client& client);
  bool Write(Client& client);
  void Handle(Client& client, std::string_view message);
  void Hello(Client& client, MessageReader& message);
  void Settle();
  void Answer(Client& client, StoreAnswer answer, std::string_view value);
  void Refuse(Client& client, const std::string& why);
  std::string Missing() const;
  int Timeout() const;

  Socket listener_;
  const std::string token_;
  const int world_size_;
  Socket wake_[2];  // a pair: written to, so that poll(2) returns

  // The thread's.
  std::list<Client> clients_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> numbers_;
  std::string outward_;    // own address of a connection from another host
  std::set<int> met_;      // ranks that were let in, ever
  std::set<int> present_;  // and are not done or gone

  std::atomic<bool> stop_ = false;
  std::atomic<int> open_ = 0;  // clients that were let in and are there
  std::thread thread_;
};

}  // namespace fusor::runtime
