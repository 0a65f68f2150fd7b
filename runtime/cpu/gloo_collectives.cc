#include "runtime/cpu/gloo_collectives.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "runtime/cpu/gloo_context.h"
#include "runtime/cpu/thread_team.h"
#include "runtime/cpu/wire_sums.h"

namespace fusor::cpu {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;
using runtime::TcpStore;
using std::chrono::milliseconds;

// Gloo's view of the store.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(TcpStore& store, milliseconds timeout)
      : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.Set("gloo/" + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.Get("gloo/" + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    wait(keys, timeout_);
  }
  void wait(const std::vector<std::string>& keys,
            const milliseconds& timeout) override {
    for (const std::string& key : keys) store_.Get("gloo/" + key, timeout);
  }

 private:
  TcpStore& store_;
  const milliseconds timeout_;
};

class GlooCollectives : public runtime::HostCollectives {
 public:
  GlooCollectives(TcpStore& store, const runtime::CommunicatorOptions& options)
      : timeout_(options.timeout), deterministic_(options.deterministic) {
    gloo::transport::tcp::attr attr;
    where_ = options.interface;
    if (options.interface.empty()) {
      attr.hostname = where_ = store.address();
    } else {
      attr.iface = options.interface;
    }
    try {
      device_ = gloo::transport::tcp::CreateDevice(attr);
    } catch (const std::exception& e) {
      FUSOR_CHECK(false, kUsage, "gloo: network interface {}: {}", where_,
                  e.what());
    }
    context_ = std::make_shared<GlooContext>(store.rank(), store.world_size());
    context_->setTimeout(timeout_);
    GlooStore names(store, timeout_);
    try {
      context_->Connect(names, device_);
    } catch (const std::exception& e) {
      FUSOR_CHECK(false, kPeerLost,
                  "gloo: rank {} over {}: no connection to all ranks: {}",
                  store.rank(), where_, e.what());
    }
    const runtime::NetworkInterface own = runtime::FindInterface(where_);
    if (!own.name.empty()) {
      where_ = fmt::format("{} ({})", own.name, own.address);
    }
  }

  int rank() const override { return context_->rank; }
  int world_size() const override { return context_->size; }
  std::string description() const override { return "gloo over " + where_; }

  void Run(const Collective& c) override {
    const FlushSubnormals flush;
    try {
      Dispatch(c);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      FUSOR_CHECK(false, kPeerLost, "rank {}: {} of {} elements: {}", rank(),
                  runtime::CollectiveName(c.kind), c.elements, e.what());
    }
  }

  void Abort() noexcept override { context_->Abort(); }

 private:
  struct Parts {
    std::vector<int64_t> counts;  // elements
    int64_t own = 0;              // where this rank's begins
    int64_t most = 0;
  };

  Parts PartsOf(const Collective& c) const {
    Parts parts;
    parts.most = (c.elements + world_size() - 1) / world_size();
    for (int r = 0; r < world_size(); ++r) {
      const int64_t left = c.elements - std::min(c.elements, r * parts.most);
      parts.counts.push_back(std::min(left, parts.most));
    }
    parts.own = std::min(c.elements, rank() * parts.most);
    return parts;
  }

  void Dispatch(const Collective& c) {
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        if (c.elements == 0) return;
        if (!deterministic_) return AllReduce(c);
        ReduceScatter(c);
        return AllGather(c);
      case CollectiveKind::kReduceScatter:
        return c.num_tensors > 0 ? ReduceTensors(c) : ReduceScatter(c);
      case CollectiveKind::kAllGather:
        return c.num_tensors > 0 ? GatherTensors(c) : AllGather(c);
      case CollectiveKind::kBroadcast:
        return Broadcast(c);
      case CollectiveKind::kBarrier: {
        gloo::BarrierOptions options(context_);
        options.setTimeout(timeout_);
        return gloo::barrier(options);
      }
    }
  }

  // A ring. Its elements are opaque to Gloo but for their size.
  void AllReduce(const Collective& c) {
    gloo::AllreduceOptions options(context_);
    const auto n = static_cast<size_t>(c.elements);
    switch (ir::DTypeSize(c.dtype)) {
      case 2:
        options.setOutput(static_cast<uint16_t*>(c.data), n);
        break;
      case 4:
        options.setOutput(static_cast<float*>(c.data), n);
        break;
      default:
        options.setOutput(static_cast<double*>(c.data), n);
    }
    options.setReduceFunction(Sum(c));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setTimeout(timeout_);
    gloo::allreduce(options);
  }

  static WireSum Sum(const Collective& c) {
    const WireSum sum = WireSumOf(c.dtype);
    FUSOR_ASSERT(sum != nullptr, "sums of {}", DTypeName(c.dtype));
    return sum;
  }

  // Every rank's part of mine, added up in the order of ranks: what each
  // sends, it sends once.
  void ReduceScatter(const Collective& c) {
    if (c.elements == 0) return;
    const auto size = static_cast<size_t>(ir::DTypeSize(c.dtype));
    const Parts parts = PartsOf(c);
    const int64_t own = parts.counts[rank()];
    const auto needed = static_cast<size_t>(own * world_size()) * size;
    if (received_.size() < needed) received_.resize(needed);
    Exchange(c, parts, size);
    SumInOrder(c.dtype, static_cast<char*>(c.data) + parts.own * size,
               received_.data(), world_size(), own, own);
  }

  void Exchange(const Collective& c, const Parts& parts, size_t size) {
    std::vector<int64_t> sent;
    for (int64_t count : parts.counts) {
      sent.push_back(count * static_cast<int64_t>(size));
    }
    // Gloo takes no empty memory.
    if (received_.empty()) received_.resize(1);
    gloo::AlltoallvOptions options(context_);
    options.setInput(static_cast<char*>(c.data), sent);
    options.setOutput(received_.data(),
                      std::vector<int64_t>(world_size(), sent[rank()]));
    options.setTimeout(timeout_);
    gloo::alltoallv(options);
  }

  void AllGather(const Collective& c) {
    if (c.elements == 0) return;
    const auto size = static_cast<size_t>(ir::DTypeSize(c.dtype));
    const Parts parts = PartsOf(c);
    std::vector<size_t> counts;
    for (int64_t count : parts.counts) {
      counts.push_back(static_cast<size_t>(count) * size);
    }
    gloo::AllgathervOptions options(context_);
    options.setOutput(static_cast<char*>(c.data), counts);
    options.setTimeout(timeout_);
    gloo::allgatherv(options);
  }

  // Memory for tensors that lie apart, packed rank by rank: what goes to one,
  // or comes from it, is one piece.
  Collective Packed(const Collective& c) {
    const auto bytes = static_cast<size_t>(c.elements * ir::DTypeSize(c.dtype));
    if (packed_.size() < bytes) packed_.resize(bytes);
    return {.kind = c.kind,
            .data = packed_.data(),
            .elements = c.elements,
            .dtype = c.dtype};
  }

  char* PackedPart(const Collective& c, int rank) {
    return packed_.data() +
           c.elements / world_size() * rank * ir::DTypeSize(c.dtype);
  }

  // Whether tensors go over the network from and to where they are; small ones
  // are packed, to save messages.
  static bool AreLarge(const Collective& c) {
    constexpr int64_t kLeastBytes = 64 << 10;
    return c.elements * ir::DTypeSize(c.dtype) >= kLeastBytes * c.num_tensors;
  }

  using Messages = std::unique_ptr<gloo::transport::UnboundBuffer>;

  Messages MessagesOf(const void* data, int64_t bytes) {
    return context_->createUnboundBuffer(const_cast<void*>(data),
                                         static_cast<size_t>(bytes));
  }

  // `call(rank)` for the other ranks, first the next one.
  template <typename Call>
  void ForOthers(Call call) {
    for (int i = 1; i < world_size(); ++i) call((rank() + i) % world_size());
  }

  static gloo::Slot SlotOf(uint8_t prefix, int tensor) {
    return gloo::Slot::build(prefix, static_cast<uint32_t>(tensor));
  }

  void GatherApart(const Collective& c) {
    const int64_t size = ir::DTypeSize(c.dtype);
    std::vector<Messages> sent, received;
    for (int i = 0; i < c.num_tensors; ++i) {
      const Collective::Tensor& t = c.tensors[i];
      const int64_t bytes = t.part * size;
      const auto slot = SlotOf(gloo::kAllgatherSlotPrefix, i);
      received.push_back(MessagesOf(t.target, bytes * world_size()));
      ForOthers([&](int other) {
        received[i]->recv(other, slot, static_cast<size_t>(other * bytes),
                          static_cast<size_t>(bytes));
      });
      ForOthers([&](int other) {
        sent.push_back(MessagesOf(t.source, bytes));
        sent.back()->send(other, slot);
      });
      std::memcpy(static_cast<char*>(t.target) + rank() * bytes, t.source,
                  static_cast<size_t>(bytes));
    }
    Await(sent, received, [](int) {});
  }

  // `arrived(tensor)` once all of it is there.
  template <typename Arrived>
  void Await(const std::vector<Messages>& sent,
             const std::vector<Messages>& received, Arrived arrived) {
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i] != nullptr) {
        ForOthers([&](int) { received[i]->waitRecv(timeout_); });
      }
      arrived(static_cast<int>(i));
    }
    for (const Messages& messages : sent) messages->waitSend(timeout_);
  }

  void ReduceApart(const Collective& c) {
    const int64_t size = ir::DTypeSize(c.dtype);
    const std::span tensors(c.tensors, static_cast<size_t>(c.num_tensors));
    int64_t needed = 0;
    for (const Collective::Tensor& t : tensors) {
      needed += t.PartElements(rank()) * size * world_size();
    }
    if (static_cast<int64_t>(received_.size()) < needed) {
      received_.resize(static_cast<size_t>(needed));
    }
    std::vector<Messages> sent, received;
    std::vector<char*> parts;  // of all ranks, in their order, a tensor
    char* next = received_.data();
    for (int i = 0; i < c.num_tensors; ++i) {
      const Collective::Tensor& t = tensors[static_cast<size_t>(i)];
      const auto slot = SlotOf(gloo::kReduceSlotPrefix, i);
      const int64_t own = t.PartElements(rank()) * size;
      const auto* source = static_cast<const char*>(t.source);
      parts.push_back(next);
      received.push_back(own == 0 ? nullptr
                                  : MessagesOf(next, own * world_size()));
      ForOthers([&](int other) {
        if (own == 0) return;
        received[i]->recv(other, slot, static_cast<size_t>(other * own),
                          static_cast<size_t>(own));
      });
      ForOthers([&](int other) {
        const int64_t bytes = t.PartElements(other) * size;
        if (bytes == 0) return;
        sent.push_back(MessagesOf(source + other * t.part * size, bytes));
        sent.back()->send(other, slot);
      });
      std::memcpy(next + rank() * own, source + rank() * t.part * size,
                  static_cast<size_t>(own));
      next += own * world_size();
    }
    Await(sent, received, [&](int i) {
      const Collective::Tensor& t = tensors[static_cast<size_t>(i)];
      const int64_t own = t.PartElements(rank());
      SumInOrder(c.dtype, t.target, parts[static_cast<size_t>(i)], world_size(),
                 own, own);
      std::memset(static_cast<char*>(t.target) + own * size, 0,
                  static_cast<size_t>((t.part - own) * size));
    });
  }

  void GatherTensors(const Collective& c) {
    if (AreLarge(c)) return GatherApart(c);
    const Collective packed = Packed(c);
    const int64_t size = ir::DTypeSize(c.dtype);
    const std::span tensors(c.tensors, static_cast<size_t>(c.num_tensors));
    char* own = PackedPart(c, rank());
    for (const Collective::Tensor& t : tensors) {
      std::memcpy(own, t.source, static_cast<size_t>(t.part * size));
      own += t.part * size;
    }
    AllGather(packed);
    for (int r = 0; r < world_size(); ++r) {
      const char* part = PackedPart(c, r);
      for (const Collective::Tensor& t : tensors) {
        const int64_t bytes = t.part * size;
        std::memcpy(static_cast<char*>(t.target) + r * bytes, part,
                    static_cast<size_t>(bytes));
        part += bytes;
      }
    }
  }

  void ReduceTensors(const Collective& c) {
    if (AreLarge(c)) return ReduceApart(c);
    const Collective packed = Packed(c);
    const int64_t size = ir::DTypeSize(c.dtype);
    const std::span tensors(c.tensors, static_cast<size_t>(c.num_tensors));
    for (int r = 0; r < world_size(); ++r) {
      char* part = PackedPart(c, r);
      for (const Collective::Tensor& t : tensors) {
        const int64_t first = std::min(r * t.part, t.elements);
        const int64_t there = std::min(t.part, t.elements - first) * size;
        std::memcpy(part, static_cast<const char*>(t.source) + first * size,
                    static_cast<size_t>(there));
        std::memset(part + there, 0,
                    static_cast<size_t>(t.part * size - there));
        part += t.part * size;
      }
    }
    ReduceScatter(packed);
    const char* own = PackedPart(c, rank());
    for (const Collective::Tensor& t : tensors) {
      std::memcpy(t.target, own, static_cast<size_t>(t.part * size));
      own += t.part * size;
    }
  }

  void Broadcast(const Collective& c) {
    if (c.elements == 0) return;
    gloo::BroadcastOptions options(context_);
    options.setOutput(static_cast<char*>(c.data),
                      static_cast<size_t>(c.elements * ir::DTypeSize(c.dtype)));
    options.setRoot(c.root);
    options.setTimeout(timeout_);
    gloo::broadcast(options);
  }

  const milliseconds timeout_;
  const bool deterministic_;
  std::string where_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<GlooContext> context_;
  // Grow to the largest, then stay.
  std::vector<char> received_;
  std::vector<char> packed_;
};

}  // namespace

std::unique_ptr<runtime::HostCollectives> ConnectGloo(
    TcpStore& store, const runtime::CommunicatorOptions& options) {
  return std::make_unique<GlooCollectives>(store, options);
}

}  // namespace fusor::cpu
