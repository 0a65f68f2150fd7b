#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/backend/communicator.h"

namespace fusor::runtime {

// Collectives on host memory that block: what a transport without streams of
// its own offers.
class ThreadedCollectives {
 public:
  virtual ~ThreadedCollectives();
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;
  // Calls `posted` at most once, as soon as the next one may begin: until then,
  // or else until it ends, only one thread is here. Throws kPeerLost.
  virtual void Run(const Collective& collective,
                   const std::function<void()>& posted) = 0;
  // From another thread, at any time: a Run under way fails soon, and those
  // that begin later do.
  virtual void Abort() noexcept = 0;
};

// Runs them in threads of their own, which never enter OpenMP, so that they
// overlap with the work of the thread that starts them. They begin and end in
// the order in which they are started; there are two threads, so that the next
// one's data follow the last of one before it.
std::unique_ptr<Communicator> RunInThread(
    std::unique_ptr<ThreadedCollectives> collectives);

}  // namespace fusor::runtime
