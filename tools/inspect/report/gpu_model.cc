#include "tools/inspect/report/gpu_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "codegen/cuda/cuda_printer.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/target/cost.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

// Limits of a multiprocessor on all architectures since compute capability 8.0:
// CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability".
constexpr int kThreadsAtOnce = 2048;
constexpr int kBlocksAtOnce = 32;
constexpr int kRegisters = 65536;
constexpr int kRegisterUnit = 8;  // allocation granularity per thread
// Bytes of a multiprocessor's first-level cache that are no shared memory, and
// of shared memory that each block needs besides its own.
constexpr int64_t kUnsharedBytes = 28 << 10;
constexpr int64_t kBlockBytes = 1 << 10;

// Assumptions: the share of the target's bandwidth that a kernel with enough
// bytes in flight reaches; memory latency; bandwidth limit of one
// multiprocessor; time of the first and last blocks of a launch that is not
// overlapped.
constexpr double kMemoryShare = 0.9;
constexpr double kLatencyNs = 680;
constexpr double kBytesPerNs = 80;
constexpr double kFillUs = 2;
// Assumptions for convolutions and matmuls.
constexpr double kLibraryMemoryShare = 0.8;
constexpr double kMatmulTensorShare = 0.4;
// Tensors of at most l2_bytes / kCachedPart are read from the L2 cache.
constexpr int64_t kCachedPart = 16;
// The L2 cache keeps the last l2_bytes / kKeptPart that a phase accessed: data
// read by multiprocessors of both halves of the GPU is stored twice.
constexpr int64_t kKeptPart = 2;
// Bandwidth of the L2 cache. Memory traffic crosses it, too.
constexpr double kCacheBytesPerNs = 5500;
// Loop iterations whose loads are in flight together (cuda_printer.cc).
constexpr int64_t kTurnsAhead = 4;

// Returns the bytes that one thread requests before it waits: the maximum over
// the body and its loops.
int64_t BytesAhead(const codegen::Kernel& kernel,
                   const std::vector<codegen::Stmt>& body, bool loop) {
  int64_t bytes = 0;
  int64_t inner = 0;
  int loads = 0;
  for (const codegen::Stmt& stmt : body) {
    if (stmt.kind == codegen::StmtKind::kLoop) {
      inner = std::max(inner, BytesAhead(kernel, stmt.body, true));
    }
    if (stmt.kind == codegen::StmtKind::kGuard) {
      bytes += BytesAhead(kernel, stmt.body, false);
    }
    if (stmt.kind != codegen::StmtKind::kLoad &&
        stmt.kind != codegen::StmtKind::kGather) {
      continue;
    }
    const codegen::KernelBuffer& buffer = kernel.buffers[stmt.buffer];
    if (buffer.packed) continue;
    const bool vector = kernel.registers[stmt.dst].vector;
    bytes += (vector ? kernel.lanes_per_thread() : 1) *
             static_cast<int64_t>(ir::DTypeSize(buffer.dtype));
    ++loads;
  }
  if (loop && loads == 1) bytes *= kTurnsAhead;
  return std::max(bytes, inner);
}

// Returns the operations of a task's products on tensor cores.
int64_t ProductFlops(const codegen::Kernel& kernel,
                     const std::vector<codegen::Stmt>& body) {
  int64_t flops = 0;
  for (const codegen::Stmt& stmt : body) {
    if (stmt.kind == codegen::StmtKind::kDot) {
      const codegen::Register& sums = kernel.registers[stmt.dst];
      flops += 2 * sums.rows * sums.columns * stmt.dot.depth;
    } else if (stmt.kind == codegen::StmtKind::kLoop) {
      flops += kernel.axes[stmt.axis].extent * ProductFlops(kernel, stmt.body);
    }
  }
  return flops;
}

ir::Convolution ConvolutionOf(const codegen::LibraryCall& call) {
  if (call.body != nullptr) {
    return *ir::ConvolutionOf(ir::LibraryOpIn(*call.body));
  }
  const auto graph =
      ir::OneOpGraph(call.op, call.attrs, call.operands, call.results);
  return *ir::ConvolutionOf(*graph->nodes()[0]);
}

class Modeller {
 public:
  Modeller(const codegen::Plan& plan, const codegen::TargetCompiler& compiler)
      : plan_(plan), compiler_(compiler), target_(compiler.target()) {
    for (size_t i = 0; i < plan.kernels.size(); ++i) {
      AddKernel(static_cast<int>(i));
    }
  }

  GpuModel Run() const {
    GpuModel model;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const codegen::Step& step = plan_.steps[s];
      if (step.kind == codegen::StepKind::kLaunch) {
        for (GpuLaunch launch : launches_[step.index]) {
          launch.step = static_cast<int>(s);
          Add(launch, model);
        }
      } else if (step.kind == codegen::StepKind::kLibrary) {
        AddCall(step, model);
      }
    }
    return model;
  }

 private:
  void AddKernel(int index) {
    const codegen::CompiledKernel& compiled = plan_.kernels[index];
    const codegen::Kernel& kernel = compiled.kernel;
    const std::vector<codegen::CudaLaunch> shapes =
        codegen::CudaLaunches(kernel);
    std::vector<codegen::EntryResources> resources;
    if (!compiled.binary.empty()) {
      resources = compiler_.Resources(compiled.binary);
    }
    launches_.emplace_back();
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      GpuLaunch launch{.kernel = index,
                       .phase = static_cast<int>(p),
                       .blocks = shapes[p].blocks,
                       .threads = shapes[p].threads};
      for (const codegen::EntryResources& entry : resources) {
        if (entry.entry != shapes[p].entry) continue;
        launch.registers = entry.registers;
        launch.stack_bytes = entry.stack_bytes;
      }
      launch.product_flops =
          launch.blocks * ProductFlops(kernel, kernel.phases[p].body);
      Occupy(MemoryOf(kernel, kernel.phases[p]).bytes, launch);
      CountBytes(kernel, launch);
      Time(launch);
      launches_.back().push_back(launch);
    }
  }

  // `shared`: bytes of a block's shared memory.
  void Occupy(int64_t shared, GpuLaunch& launch) const {
    const int threads = std::max(launch.threads, 1);
    const int registers = (launch.registers + kRegisterUnit - 1) /
                          kRegisterUnit * kRegisterUnit * threads;
    const auto fit = static_cast<int>((target_.l1_bytes - kUnsharedBytes) /
                                      (shared + kBlockBytes));
    launch.blocks_at_once = std::max(
        1, std::min({kBlocksAtOnce, kThreadsAtOnce / threads, fit,
                     registers > 0 ? kRegisters / registers : kBlocksAtOnce}));
    launch.waves = static_cast<double>(launch.blocks) /
                   (launch.blocks_at_once * target_.threads);
  }

  void CountBytes(const codegen::Kernel& kernel, GpuLaunch& launch) const {
    const codegen::Phase& phase = kernel.phases[launch.phase];
    const std::vector<int64_t> bytes = TrafficByBuffer(kernel, phase);
    const std::vector<int64_t> kept = KeptBytes(kernel, launch.phase);
    for (size_t b = 0; b < bytes.size(); ++b) {
      const codegen::KernelBuffer& buffer = kernel.buffers[b];
      const bool cached = buffer.scratch ||
                          buffer.num_bytes() <= target_.l2_bytes / kCachedPart;
      const int64_t hits = cached ? bytes[b] : std::min(bytes[b], kept[b]);
      launch.cached_bytes += hits;
      launch.memory_bytes += bytes[b] - hits;
    }
    const double resident =
        std::min<double>(launch.blocks_at_once,
                         static_cast<double>(launch.blocks) / target_.threads);
    launch.bytes_in_flight = static_cast<int64_t>(resident * launch.threads) *
                             BytesAhead(kernel, phase.body, /*loop=*/false);
  }

  // Returns, per buffer, the bytes still in the L2 cache when the phase loads
  // them. Earlier phases, the last one first, fill the cache. Of a phase that
  // does not fit, only its last bytes are kept; these help only descending
  // loops, which start where that phase ended.
  std::vector<int64_t> KeptBytes(const codegen::Kernel& kernel,
                                 int phase) const {
    std::vector<int64_t> kept(kernel.buffers.size());
    std::vector<bool> descending(kernel.buffers.size());
    std::vector<bool> loaded(kernel.buffers.size());
    codegen::VisitStatements(kernel.phases[phase].body,
                             [&](const codegen::Stmt& stmt) {
                               if (stmt.kind == codegen::StmtKind::kLoad)
                                 loaded[stmt.buffer] = true;
                               if (!stmt.descending) return;
                               for (const codegen::Stmt& inner : stmt.body) {
                                 if (inner.kind == codegen::StmtKind::kLoad)
                                   descending[inner.buffer] = true;
                               }
                             });
    auto room = static_cast<double>(target_.l2_bytes / kKeptPart);
    for (int p = phase - 1; p >= 0 && room > 0; --p) {
      const std::vector<int64_t> bytes =
          TrafficByBuffer(kernel, kernel.phases[p]);
      const auto all = static_cast<double>(
          std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
      const double share = std::min(1.0, room / std::max(all, 1.0));
      for (size_t b = 0; b < bytes.size(); ++b) {
        if (!loaded[b] || (share < 1 && !descending[b])) continue;
        kept[b] = std::max(kept[b], static_cast<int64_t>(
                                        share * static_cast<double>(bytes[b])));
      }
      room -= all;
    }
    return kept;
  }

  // Sets the launch's times. Full waves of blocks run at the bandwidth that
  // their bytes in flight allow, the last wave at that of fewer blocks. With
  // fewer blocks than multiprocessors, the limit is the bandwidth of a
  // multiprocessor.
  void Time(GpuLaunch& launch) const {
    const auto moved =
        static_cast<double>(launch.memory_bytes + launch.cached_bytes);
    const auto bytes = static_cast<double>(launch.memory_bytes);
    launch.us = FixedUs();
    launch.least_us =
        launch.us + std::max(bytes / (kMemoryShare * target_.memory_gb_per_s),
                             moved / kCacheBytesPerNs) /
                        1e3;
    if (launch.blocks < target_.threads) {
      launch.us +=
          moved / (static_cast<double>(launch.blocks) * kBytesPerNs) / 1e3;
      return;
    }
    const int64_t at_once = int64_t{launch.blocks_at_once} * target_.threads;
    const int64_t first = launch.blocks / at_once * at_once;
    const double block = bytes / static_cast<double>(launch.blocks);
    double ns = 0;
    for (const int64_t blocks : {first, launch.blocks - first}) {
      if (blocks == 0) continue;
      ns += static_cast<double>(blocks) * block /
            Bandwidth(launch, std::min(blocks, at_once));
    }
    launch.us += std::max(ns, moved / kCacheBytesPerNs) / 1e3;
  }

  // Returns the bandwidth of `blocks` concurrent blocks in bytes per ns.
  double Bandwidth(const GpuLaunch& launch, int64_t blocks) const {
    const double full = kMemoryShare * target_.memory_gb_per_s;
    if (launch.bytes_in_flight == 0) return full;  // stores do not stall
    const double resident =
        std::min<double>(launch.blocks_at_once,
                         static_cast<double>(launch.blocks) / target_.threads);
    const double needed =
        target_.memory_gb_per_s * kLatencyNs / target_.threads;
    const double share = static_cast<double>(launch.bytes_in_flight) *
                         (static_cast<double>(blocks) / target_.threads) /
                         resident / needed;
    return full * std::clamp(share, 1e-3, 1.0);
  }

  void Add(const GpuLaunch& launch, GpuModel& model) const {
    model.kernels_ms += launch.us / 1e3;
    const double fixed = FixedUs();
    for (size_t i = 0; i < GpuModel::kTensorShares.size(); ++i) {
      const double us = static_cast<double>(launch.product_flops) /
                        (GpuModel::kTensorShares[i] * target_.peak_gflops_16) /
                        1e3;
      model.products_ms[i] += std::max(0.0, us - (launch.us - fixed)) / 1e3;
    }
    if (launch.blocks < target_.threads) {
      ++model.small_grids;
      model.small_grids_ms += launch.us / 1e3;
    }
    model.launches.push_back(launch);
  }

  // Returns the time of a launch that moves nothing.
  double FixedUs() const {
    return kFillUs + static_cast<double>(target_.launch_overhead_ns) / 1e3;
  }

  void AddCall(const codegen::Step& step, GpuModel& model) const {
    const codegen::LibraryCall& call = plan_.calls[step.index];
    const bool wide =
        !call.operands.empty() && ir::DTypeSize(call.operands[0].dtype) > 2;
    const double peak = wide ? target_.peak_gflops_f32 : target_.peak_gflops_16;
    ir::ConvolutionExcess excess{.bytes = 2 * call.workspace_bytes};
    if (call.HasTrait(ir::OpTrait::kConvolution)) {
      excess = ir::ExcessOf(ConvolutionOf(call), call.workspace_bytes, target_);
    }
    const double memory = static_cast<double>(step.bytes + excess.bytes) /
                          (kLibraryMemoryShare * target_.memory_gb_per_s);
    const double fixed = FixedUs();
    const auto ms = [&](double share) {
      const double arithmetic =
          excess.macs * static_cast<double>(step.flops) / (share * peak);
      const double ns = std::max(memory, arithmetic) + excess.load_ns;
      return (ns / 1e3 + fixed) / 1e3;
    };
    if (!call.HasTrait(ir::OpTrait::kConvolution)) {
      model.others_ms += ms(kMatmulTensorShare);
      return;
    }
    for (size_t i = 0; i < GpuModel::kTensorShares.size(); ++i) {
      model.convolutions_ms[i] += ms(GpuModel::kTensorShares[i]);
    }
  }

  const codegen::Plan& plan_;
  const codegen::TargetCompiler& compiler_;
  const ir::Target& target_;
  std::vector<std::vector<GpuLaunch>> launches_;  // per kernel
};

double PerSecond(int64_t images, double ms) {
  return ms > 0 ? static_cast<double>(images) / ms * 1e3 : 0;
}

}  // namespace

GpuModel ModelGpuStep(const codegen::Plan& plan,
                      const codegen::TargetCompiler& compiler) {
  FUSOR_ASSERT(compiler.target().simt, "{}: expected a GPU",
               compiler.target().name);
  return Modeller(plan, compiler).Run();
}

std::string GpuModelText(const GpuModel& model, int64_t images) {
  std::string out = fmt::format(
      "\nestimated per launch: {} launches of generated kernels {:.2f} ms; {} "
      "of them, {:.2f} ms, have fewer blocks than multiprocessors\n{:<40}",
      model.launches.size(), model.kernels_ms, model.small_grids,
      model.small_grids_ms, "products at % of tensor peak");
  std::string calls, products, steps, speeds;
  for (size_t i = 0; i < GpuModel::kTensorShares.size(); ++i) {
    out += fmt::format("{:>9.0f}", 100 * GpuModel::kTensorShares[i]);
    calls += fmt::format("{:>9.2f}", model.convolutions_ms[i]);
    products += fmt::format("{:>9.2f}", model.products_ms[i]);
    steps += fmt::format("{:>9.2f}", model.step_ms(i));
    speeds += fmt::format("{:>9.0f}", PerSecond(images, model.step_ms(i)));
  }
  out += fmt::format("\n{:<40}{}", "  convolutions, ms", calls);
  if (model.products_ms[0] > 0) {
    out += fmt::format("\n{:<40}{}", "  generated kernels beyond bytes, ms",
                       products);
  }
  return out + fmt::format("\n{:<40}{}\n{:<40}{}\n", "  step, ms", steps,
                           "  images/s", speeds);
}

json GpuModelJson(const GpuModel& model, const codegen::Plan& plan,
                  int64_t images) {
  json shares = json::array();
  for (size_t i = 0; i < GpuModel::kTensorShares.size(); ++i) {
    shares.push_back({{"tensor_share", GpuModel::kTensorShares[i]},
                      {"convolutions_ms", model.convolutions_ms[i]},
                      {"products_ms", model.products_ms[i]},
                      {"step_ms", model.step_ms(i)},
                      {"images_per_s", PerSecond(images, model.step_ms(i))}});
  }
  json launches = json::array();
  for (const GpuLaunch& launch : model.launches) {
    launches.push_back({{"kernel", plan.kernels[launch.kernel].kernel.name},
                        {"name", plan.steps[launch.step].name},
                        {"phase", launch.phase},
                        {"blocks", launch.blocks},
                        {"threads", launch.threads},
                        {"registers", launch.registers},
                        {"stack_bytes", launch.stack_bytes},
                        {"waves", launch.waves},
                        {"memory_bytes", launch.memory_bytes},
                        {"cached_bytes", launch.cached_bytes},
                        {"bytes_in_flight", launch.bytes_in_flight},
                        {"product_flops", launch.product_flops},
                        {"us", launch.us}});
  }
  return {{"kernels_ms", model.kernels_ms},
          {"small_grids_ms", model.small_grids_ms},
          {"small_grids", model.small_grids},
          {"other_calls_ms", model.others_ms},
          {"convolutions", std::move(shares)},
          {"launches", std::move(launches)}};
}

}  // namespace fusor::inspect
