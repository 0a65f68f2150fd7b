#include "runtime/cpu/gloo/gloo_context.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace fusor::cpu {

using gloo::transport::UnboundBuffer;
using std::chrono::milliseconds;

// All existing Gloo buffers of the context.
class GlooContext::Buffers {
 public:
  void Check() const {
    const std::lock_guard lock(mutex_);
    ThrowIfAborted();
  }
  void Add(UnboundBuffer& buffer) {
    const std::lock_guard lock(mutex_);
    ThrowIfAborted();
    all_.insert(&buffer);
  }
  void Remove(UnboundBuffer& buffer) {
    const std::lock_guard lock(mutex_);
    all_.erase(&buffer);
  }
  void Abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (UnboundBuffer* buffer : all_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  void ThrowIfAborted() const {
    if (aborted_) throw gloo::Exception("aborted");
  }

  mutable std::mutex mutex_;
  bool aborted_ = false;
  std::set<UnboundBuffer*> all_;
};

// Wraps a Gloo buffer; its waits throw once aborted. If the abort comes between
// the check and the wait, Gloo's buffer remembers it, and the wait returns
// false at once.
class GlooContext::KnownBuffer : public UnboundBuffer {
 public:
  KnownBuffer(std::shared_ptr<Buffers> all,
              std::unique_ptr<UnboundBuffer> buffer)
      : UnboundBuffer(buffer->ptr, buffer->size),
        all_(std::move(all)),
        buffer_(std::move(buffer)) {
    all_->Add(*buffer_);
  }
  ~KnownBuffer() override { all_->Remove(*buffer_); }

  using UnboundBuffer::waitRecv;
  bool waitRecv(int* rank, milliseconds timeout) override {
    all_->Check();
    const bool received = buffer_->waitRecv(rank, timeout);
    if (!received) all_->Check();
    return received;
  }
  using UnboundBuffer::waitSend;
  bool waitSend(int* rank, milliseconds timeout) override {
    all_->Check();
    const bool sent = buffer_->waitSend(rank, timeout);
    if (!sent) all_->Check();
    return sent;
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }

  void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
    all_->Check();
    buffer_->send(to, slot, offset, bytes);
  }
  void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
    all_->Check();
    buffer_->recv(from, slot, offset, bytes);
  }
  void recv(std::vector<int> from, uint64_t slot, size_t offset,
            size_t bytes) override {
    all_->Check();
    buffer_->recv(std::move(from), slot, offset, bytes);
  }

 private:
  const std::shared_ptr<Buffers> all_;
  const std::unique_ptr<UnboundBuffer> buffer_;
};

// Wraps Gloo's transport; creates KnownBuffers.
class GlooContext::Transport : public gloo::transport::Context {
 public:
  Transport(std::shared_ptr<Buffers> buffers,
            std::shared_ptr<gloo::transport::Context> transport)
      : Context(transport->rank, transport->size),
        buffers_(std::move(buffers)),
        transport_(std::move(transport)) {
    setTimeout(transport_->getTimeout());
  }

  std::unique_ptr<gloo::transport::Pair>& getPair(int other) override {
    return transport_->getPair(other);
  }
  std::unique_ptr<gloo::transport::Pair>& createPair(int other) override {
    return transport_->createPair(other);
  }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data,
                                                     size_t bytes) override {
    return std::make_unique<KnownBuffer>(
        buffers_, transport_->createUnboundBuffer(data, bytes));
  }

 private:
  const std::shared_ptr<Buffers> buffers_;
  const std::shared_ptr<gloo::transport::Context> transport_;
};

GlooContext::GlooContext(int own_rank, int world_size)
    : Context(own_rank, world_size), buffers_(std::make_shared<Buffers>()) {}

void GlooContext::Connect(gloo::rendezvous::Store& store,
                          std::shared_ptr<gloo::transport::Device>& device) {
  connectFullMesh(store, device);
  transportContext_ =
      std::make_shared<Transport>(buffers_, std::move(transportContext_));
}

void GlooContext::Abort() noexcept {
  buffers_->Abort();
  try {
    closeConnections();  // notifies the other ranks
  } catch (const std::exception&) {
    // The other ranks are gone.
  }
}

}  // namespace fusor::cpu
