#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// Blocking collectives on host memory, for transports without streams.
class ThreadedCollectives {
 public:
  virtual ~ThreadedCollectives();
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;
  // Calls `posted` at most once, when the next collective may start. No other
  // thread may call Run before that, or else before this returns. Throws
  // kPeerLost.
  virtual void Run(const Collective& collective,
                   const std::function<void()>& posted) = 0;
  // Makes current and later calls of Run fail soon. Callable from another
  // thread at any time.
  virtual void Abort() noexcept = 0;
};

// Runs the collectives on two dedicated threads, which never enter OpenMP, so
// that they overlap with the work of the calling thread. They start and end in
// the order given. With two threads, data of one collective directly follow
// those of the one before.
std::unique_ptr<Communicator> RunInThread(
    std::unique_ptr<ThreadedCollectives> collectives);

}  // namespace fusor::runtime
