#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>

#include <memory>

namespace fusor::cpu {

// A Gloo context whose collectives another thread can abort. Gloo's
// closeConnections() aborts none: buffers are not notified that their pair is
// closed and wait for their timeout. A pair's error does not reach a buffer of
// which only a part is sent or received either. So this context tracks all
// existing buffers and aborts their waits itself.
class GlooContext : public gloo::rendezvous::Context {
 public:
  GlooContext(int own_rank, int world_size);

  // Connects all ranks. Call it once, instead of connectFullMesh.
  void Connect(gloo::rendezvous::Store& store,
               std::shared_ptr<gloo::transport::Device>& device);

  // Closes the connections. Sends, receives and waits, current or later, throw
  // gloo::Exception. Any thread may call it after Connect.
  void Abort() noexcept;

 private:
  class Buffers;
  class KnownBuffer;
  class Transport;

  const std::shared_ptr<Buffers> buffers_;
};

}  // namespace fusor::cpu
