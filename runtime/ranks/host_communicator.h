#pragma once

#include <memory>
#include <string>

#include "runtime/communicator.h"

namespace fusor::runtime {

// Collectives on host memory that block: what a transport without streams of
// its own offers. Used by one thread at a time.
class HostCollectives {
 public:
  virtual ~HostCollectives();
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string description() const = 0;
  // Throws kPeerLost.
  virtual void Run(const Collective& collective) = 0;
  // From another thread, at any time: a Run under way fails soon, and those
  // that begin later do.
  virtual void Abort() noexcept = 0;
};

// Runs them in a thread of their own, which never enters OpenMP, so that they
// overlap with the work of the thread that starts them.
std::unique_ptr<Communicator> RunInThread(
    std::unique_ptr<HostCollectives> collectives);

}  // namespace fusor::runtime
