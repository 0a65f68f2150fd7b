#pragma once

// Detects ranks that have died, become unresponsive or are stuck.

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/distributed/tcp_store.h"

namespace fusor::runtime {

struct RankMonitorOptions {
  // A rank that has sent nothing for this long is considered unresponsive.
  std::chrono::milliseconds timeout{300'000};
  std::string host;  // this rank's host, as messages name it
  // Called at most once, on the monitor thread, with one line that names the
  // lost ranks, their hosts and what happened to them.
  std::function<void(const std::string& why)> lost;
};

// Each rank has a connection to rank 0. Both ends send heartbeats several times
// per timeout, at least once per second. A connection closed without a shutdown
// message means that the rank was killed. Silence means that it is unresponsive
// or its host is unreachable. Heartbeats carry the number of collectives
// started: a rank that lags behind others for a timeout is stuck, although its
// process is alive. Rank 0 notifies all others.
//
// A dedicated thread does all of this, so a rank may compile, read or save for
// any length of time.
class RankMonitor {
 public:
  // Returns once all ranks are connected; all must call it, with equal
  // timeouts. Throws kPeerLost, naming the missing ranks, after the timeout.
  RankMonitor(TcpStore& store, RankMonitorOptions options);
  // Without an earlier Leave or Fail, this rank counts as killed.
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  // Counts a started collective; all ranks start equally many. Thread-safe.
  void BeganCollective() { ++begun_; }

  // Reports that this rank has finished, and stops monitoring.
  void Leave();
  // Reports this rank's error, and stops monitoring. The others get a short
  // time to detect the error themselves; then `lost` is called with it.
  void Fail(const std::string& why);

 private:
  struct Peer {
    int rank;
    std::string host;
    Socket socket;
    Deadline heard;     // time of its last message
    int64_t begun = 0;  // collectives it has reported
    Deadline abreast;   // last time it was not behind, or started one
    std::string in, out;
    bool closed = false;
    bool done = false;  // sent a shutdown message
  };
  enum class Word : int64_t;

  void AcceptAll(TcpStore& store, Deadline deadline);
  bool Admit(Socket socket, std::string_view secret, Deadline deadline);
  void ConnectToFirst(TcpStore& store, Deadline deadline);
  Peer MakePeer(int rank, std::string host, Socket socket) const;

  void Watch();
  void Await(Deadline deadline);
  void Read(Peer& peer);
  void Hear(Peer& peer, std::string_view message);
  void Forward(const Peer& from, std::string_view why);
  static void Write(Peer& peer);
  void Beat();
  void Compare(Deadline now);
  std::optional<std::string> Verdict(Deadline now) const;
  std::optional<std::string> Stuck(Deadline now) const;
  void Part(Word word, std::string_view text,
            std::chrono::milliseconds patience);
  void Stop();

  const RankMonitorOptions options_;
  const int rank_;
  const int world_size_;
  const std::chrono::milliseconds interval_;
  std::vector<Peer> peers_;  // owned by the thread while it runs
  Socket wake_;              // eventfd; a write wakes poll(2)
  // Owned by the thread: an error reported by another rank, and until when this
  // rank may detect it itself.
  std::string told_;
  std::optional<Deadline> patience_;
  std::atomic<int64_t> begun_ = 0;
  Peer own_{};  // this rank as a peer, without a connection
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace fusor::runtime
