#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

#include <memory>

namespace fusor::cpu {

// A Gloo context whose collectives another thread can end. Gloo's
// closeConnections() ends none: a buffer is not told that its pair is closed,
// and waits for its timeout. Nor does an error of a pair reach a buffer of
// which a part is sent or received. So this context knows all buffers that
// there are, and ends their waits itself.
class GlooContext : public gloo::rendezvous::Context {
 public:
  GlooContext(int own_rank, int world_size);

  // As connectFullMesh, in place of which it is called, once.
  void Connect(gloo::rendezvous::Store& store,
               std::shared_ptr<gloo::transport::Device>& device);

  // From any thread, once connected; the connections are closed, too. Whatever
  // sends, receives or waits now or later throws gloo::Exception.
  void Abort() noexcept;

 private:
  class Buffers;
  class KnownBuffer;
  class Transport;

  const std::shared_ptr<Buffers> buffers_;
};

}  // namespace fusor::cpu
