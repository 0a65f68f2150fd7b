#pragma once

// Whether the other ranks of a run are alive.

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
  // A rank that has not been heard of for so long is taken for frozen.
  std::chrono::milliseconds timeout{300'000};
  std::string host;  // this rank's, as messages name it
  // Called at most once, by the monitor's thread, with one line that names the
  // ranks that are lost, their hosts and what happened to them.
  std::function<void(const std::string& why)> lost;
};

// Each rank has a connection to rank 0, over which both say several times a
// timeout, and at least once a second, that they are alive. A connection that
// ends without a farewell is a rank that was killed; silence is one that is
// frozen, or whose host is unreachable. They also say how many collectives they
// have begun: a rank that is behind others for a timeout is stuck, though its
// process lives. Rank 0 tells all others.
//
// All of it happens in a thread that does nothing else, so that a rank may
// compile, read or save for as long as it likes.
class RankMonitor {
 public:
  // Returns once all ranks are connected; to be called by all, with the same
  // timeout. Throws kPeerLost, naming who is missing, after the timeout.
  RankMonitor(TcpStore& store, RankMonitorOptions options);
  // Without Leave or Fail before, this rank counts as killed.
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;
  RankMonitor& operator=(const RankMonitor&) = delete;

  // This rank begins a collective; all ranks begin as many. From any thread.
  void BeganCollective() { ++begun_; }

  // This rank is done, and watches no longer.
  void Leave();
  // This rank has found an error, and watches no longer. The others have a
  // moment to find it for themselves; then it is what `lost` is told.
  void Fail(const std::string& why);

 private:
  struct Peer {
    int rank;
    std::string host;
    Socket socket;
    Deadline heard;     // when, the last time
    int64_t begun = 0;  // collectives, as it says
    Deadline abreast;   // when none had begun more, or it began one
    std::string in, out;
    bool closed = false;
    bool done = false;  // said farewell
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
  std::vector<Peer> peers_;  // the thread's while it runs
  Socket wake_;              // an eventfd: written to, so that poll(2) returns
  // The thread's: what another rank said is wrong, and until when this one may
  // find it, too.
  std::string told_;
  std::optional<Deadline> patience_;
  std::atomic<int64_t> begun_ = 0;
  Peer own_{};  // this rank among its peers, of which it needs no connection
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace fusor::runtime
