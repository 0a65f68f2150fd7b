
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "runtime/cpu/gloo/gloo_context.h"
#include "runtime/cpu/gloo/gloo_exchange.h"
#include "runtime/cpu/gloo/reduce_kernels.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;
using runtime::TcpStore;
using std::chrono::milliseconds;

// Adapts the store to Gloo's interface.
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

class GlooCollectives : public runtime::ThreadedCollectives {
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
    exchange_.emplace(context_, timeout_);
    const runtime::NetworkInterface own = runtime::FindInterface(where_);
    if (!own.name.empty()) {
      where_ = fmt::format("{} ({})", own.name, own.address);
    }
  }

  int rank() const override { return context_->rank; }
  int world_size() const override { return context_->size; }
  std::string description() const override { return "gloo over " + where_; }

  void Run(const Collective& c, const std::function<void()>& posted) override {
    const FlushSubnormals flush;
    try {
      Dispatch(c, posted);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      FUSOR_CHECK(false, kPeerLost, "rank {}: {} of {} elements: {}", rank(),
                  runtime::CollectiveName(c.kind), c.elements, e.what());
    }
  }

  void Abort() noexcept override { context_->Abort(); }

 private:
  void Dispatch(const Collective& c, const std::function<void()>& posted) {
    if (c.elements == 0 && c.kind != CollectiveKind::kBarrier) return;
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        // With two ranks a ring would save no messages.
        if (deterministic_ || world_size() == 2) {
          return exchange_->AllReduce(c, posted);
        }
        return AllReduce(c);
      case CollectiveKind::kReduceScatter:
        return exchange_->ReduceScatter(c, posted);
      case CollectiveKind::kAllGather:
        return c.num_tensors > 0 ? exchange_->AllGather(c, posted)
                                 : AllGather(c);
      case CollectiveKind::kBroadcast:
        return Broadcast(c);
      case CollectiveKind::kBarrier: {
        gloo::BarrierOptions options(context_);
        options.setTimeout(timeout_);
        return gloo::barrier(options);
      }
    }
  }

  // Runs a ring all-reduce. Gloo only needs the elements' size.
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

  void AllGather(const Collective& c) {
    const int64_t size = ir::DTypeSize(c.dtype);
    const int64_t part = (c.elements + world_size() - 1) / world_size();
    std::vector<size_t> counts;
    for (int r = 0; r < world_size(); ++r) {
      const int64_t left = c.elements - std::min(c.elements, r * part);
      counts.push_back(static_cast<size_t>(std::min(left, part) * size));
    }
    gloo::AllgathervOptions options(context_);
    options.setOutput(static_cast<char*>(c.data), counts);
    options.setTimeout(timeout_);
    gloo::allgatherv(options);
  }

  void Broadcast(const Collective& c) {
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
  std::optional<GlooExchange> exchange_;
};

}  // namespace

std::unique_ptr<runtime::ThreadedCollectives> ConnectGloo(
    TcpStore& store, const runtime::CommunicatorOptions& options) {
  return std::make_unique<GlooCollectives>(store, options);
}

}  // namespace fusor::cpu
