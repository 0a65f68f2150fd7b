#include "runtime/autotuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "codegen/autotune/search_space.h"
#include "codegen/compiler.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "ir/support/statistics.h"

namespace fusor::runtime {
namespace {

using codegen::LibraryCall;
using ir::DType;
using Clock = std::chrono::steady_clock;

constexpr double kTooSlow = 1.5;   // relative to the problem's best time
constexpr double kMeasuredMs = 4;  // minimum duration of a measurement,
constexpr int kMostLaunches = 16;  // unless it would exceed this many launches,
constexpr int kMostReplayed = 64;  // or this many in a graph
constexpr int64_t kCastElements = int64_t{1} << 24;
constexpr int64_t kLeastBytes = int64_t{64} << 20;

// Buffers, stream and events of measurements.
struct Bench {
  Memory& memory;
  Stream& stream;
  Event& start;
  Event& end;
};

// A library call or a kernel that can be launched on any of several buffer
// sets.
class Work {
 public:
  Work(const codegen::SearchCandidate& candidate,
       const codegen::TargetCompiler& compiler, Device& device) {
    if (!candidate.kernel.has_value()) {
      Load(candidate.call, compiler, device);
      return;
    }
    const codegen::Kernel& kernel = *candidate.kernel;
    executable_ = device.LoadKernel(
        {.kernel = kernel, .binary = compiler.CompileKernel(kernel)});
    for (const codegen::KernelBuffer& buffer : kernel.buffers) {
      Place(buffer.num_bytes());
    }
  }
  Work(const LibraryCall& call, const codegen::TargetCompiler& compiler,
       Device& device) {
    Load(call, compiler, device);
  }

  // Returns the size of one buffer set.
  int64_t bytes() const { return bytes_; }
  const std::string& implementation() const { return implementation_; }
  double median() const { return Median(ms_); }

  bool alive = true;    // still measured
  bool failed = false;  // the device rejected a launch

  // Runs an untimed launch, then a measurement that sets the number of launches
  // of later ones. On a device with graphs, later measurements launch one graph
  // and this one is discarded. A single launch would end before the host
  // enqueues the next one, so host time would count.
  void Begin(const Bench& bench) {
    Launch(bench);
    bench.stream.Synchronize();
    MeasureByClock(bench);
    const auto launches = [this](int most) {
      return static_cast<int>(std::clamp(kMeasuredMs / std::max(median(), 1e-3),
                                         1.0, static_cast<double>(most)));
    };
    graph_ = bench.stream.Capture([&] {
      launches_ = launches(kMostReplayed);
      for (int i = 0; i < launches_; ++i) Launch(bench);
    });
    if (graph_ == nullptr) {
      launches_ = launches(kMostLaunches);
      return;
    }
    ms_.clear();
    Measure(bench);
  }
  void Measure(const Bench& bench) {
    if (graph_ == nullptr) return MeasureByClock(bench);
    bench.stream.Record(bench.start);
    bench.stream.Launch(*graph_, nullptr, 0);
    bench.stream.Record(bench.end);
    bench.end.Synchronize();
    ms_.push_back(bench.end.ElapsedMs(bench.start) / launches_);
  }

 private:
  void Load(LibraryCall call, const codegen::TargetCompiler& compiler,
            Device& device) {
    compiler.PrepareCall(call);
    executable_ = device.LoadCall(call);
    implementation_ = call.implementation;
    for (const ir::TensorType& type : call.operands) Place(type.num_bytes());
    // A call that adds to its result in memory has an operand there.
    const std::optional<size_t> sum =
        call.body == nullptr ? std::nullopt : ir::AccumulatedInput(*call.body);
    for (size_t i = 0; i < call.results.size(); ++i) {
      if (i == 0 && sum.has_value()) {
        offsets_.push_back(offsets_[*sum]);
      } else {
        Place(call.results[i].num_bytes());
      }
    }
    if (call.workspace_bytes > 0) Place(call.workspace_bytes);
  }

  void Place(int64_t bytes) {
    offsets_.push_back(bytes_);
    bytes_ += codegen::PadToAlignment(bytes);
  }

  void MeasureByClock(const Bench& bench) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < launches_; ++i) Launch(bench);
    bench.stream.Synchronize();
    const std::chrono::duration<double, std::milli> spent =
        Clock::now() - start;
    ms_.push_back(spent.count() / launches_);
  }

  void Launch(const Bench& bench) {
    const auto sets =
        std::max<int64_t>(static_cast<int64_t>(bench.memory.bytes()) /
                              std::max<int64_t>(bytes_, 1),
                          1);
    char* base =
        static_cast<char*>(bench.memory.data()) + next_++ % sets * bytes_;
    std::vector<void*> args;
    for (int64_t offset : offsets_) args.push_back(base + offset);
    bench.stream.Launch(*executable_, args.data(), args.size());
  }

  std::unique_ptr<Executable> executable_;
  std::unique_ptr<Executable> graph_;  // of launches_ launches, or null
  std::string implementation_;
  std::vector<int64_t> offsets_;
  int64_t bytes_ = 0;
  int64_t next_ = 0;
  int launches_ = 1;
  std::vector<double> ms_;
};

class Tuner {
 public:
  Tuner(const codegen::SearchSpace& study,
        const codegen::TargetCompiler& compiler, Device& device,
        const TuneOptions& options)
      : search_space_(study),
        compiler_(compiler),
        device_(device),
        options_(options),
        stream_(device.CreateStream()),
        start_(device.CreateEvent()),
        end_(device.CreateEvent()) {}

  TuneResult Run() {
    const Clock::time_point start = Clock::now();
    candidates_ = search_space_.Candidates();
    AddWork();
    for (int round = 0; round <= options_.rounds && !work_.empty(); ++round) {
      Tell(round);
      for (const auto& [problem, indices] : of_problem_) {
        if (!MeasureProblem(indices, round == 0)) {
          result_.complete = false;
          return std::move(result_);
        }
      }
    }
    if (!work_.empty()) Choose();
    const std::chrono::duration<double> spent = Clock::now() - start;
    result_.seconds = spent.count();
    return std::move(result_);
  }

 private:
  void AddWork() {
    if (candidates_.empty()) return;
    const ir::Target& target = compiler_.target();
    const ir::TensorType from{DType::kF32, {kCastElements}, {}};
    ir::TensorType to = from;
    // A GPU has no call for casts; a copy of equal bytes takes as long.
    if (!target.simt) to.dtype = search_space_.mixed();
    cast_ = std::make_unique<Work>(
        LibraryCall{
            .op = ir::OpKind::kCopy, .operands = {from}, .results = {to}},
        compiler_, device_);
    int64_t bytes =
        std::max({kLeastBytes, 2 * std::max(target.l2_bytes, target.l3_bytes),
                  cast_->bytes()});
    LoadCandidates();
    const auto free = static_cast<int64_t>(device_.free_bytes());
    Keep([&](size_t i) {
      if (work_[i].bytes() <= free) return true;
      LeaveOut(candidates_[i], fmt::format("needs {} bytes, {} are free",
                                           work_[i].bytes(), free));
      return false;
    });
    for (size_t i = 0; i < work_.size(); ++i) {
      of_problem_[candidates_[i].problem].push_back(i);
      bytes = std::max(bytes, work_[i].bytes());
    }
    memory_ = device_.Allocate(static_cast<size_t>(bytes));
    Fill();
    cast_->Begin(TheBench());
  }

  // Leaves out candidates that the device rejects: it may lack an engine that
  // the library lists.
  void LoadCandidates() {
    std::vector<codegen::SearchCandidate> loaded;
    for (codegen::SearchCandidate& c : candidates_) {
      try {
        work_.emplace_back(c, compiler_, device_);
      } catch (const Error& e) {
        if (e.code() != ErrorCode::kDevice) throw;
        LeaveOut(c, e.what());
        continue;
      }
      loaded.push_back(std::move(c));
    }
    candidates_ = std::move(loaded);
  }

  void LeaveOut(const codegen::SearchCandidate& c, const std::string& why) {
    result_.left_out.push_back(fmt::format("{} of {} in {}: {}", c.name,
                                           c.problem, DTypeName(c.dtype), why));
  }

  // Keeps the candidates for whose index `keep` returns true.
  template <typename Predicate>
  void Keep(Predicate keep) {
    size_t kept = 0;
    for (size_t i = 0; i < work_.size(); ++i) {
      if (!keep(i)) continue;
      if (kept != i) {
        candidates_[kept] = std::move(candidates_[i]);
        work_[kept] = std::move(work_[i]);
      }
      ++kept;
    }
    candidates_.resize(kept);
    work_.erase(work_.begin() + static_cast<std::ptrdiff_t>(kept), work_.end());
  }

  Bench TheBench() const { return {*memory_, *stream_, *start_, *end_}; }

  // Fills the buffers with numbers of both signs and random mantissas, small in
  // f32 and in each 16-bit dtype. A GPU draws less power on constant bits and
  // may run faster.
  void Fill() {
    std::vector<uint16_t> pattern(size_t{1} << 20);
    for (size_t i = 0; i < pattern.size(); ++i) {
      const uint32_t bits = Philox({static_cast<uint32_t>(i), 0, 0, 0}, 0)[0];
      pattern[i] = static_cast<uint16_t>((bits & 0x80ff) | 0x3c00);
    }
    const size_t chunk = pattern.size() * sizeof(uint16_t);
    for (size_t at = 0; at < memory_->bytes(); at += chunk) {
      stream_->CopyToDevice(static_cast<char*>(memory_->data()) + at,
                            pattern.data(),
                            std::min(chunk, memory_->bytes() - at));
    }
    stream_->Synchronize();
  }

  void Tell(int round) const {
    if (!options_.progress) return;
    const auto alive =
        std::count_if(work_.begin(), work_.end(),
                      [](const Work& work) { return work.alive; });
    options_.progress(
        fmt::format("round {} of {}: {} candidates of {} convolution problems",
                    round, options_.rounds, alive, of_problem_.size()));
  }

  // Returns false if stopped.
  bool MeasureProblem(const std::vector<size_t>& indices, bool first) {
    for (size_t i : indices) {
      if (options_.stop && options_.stop()) return false;
      Work& work = work_[i];
      if (!work.alive) continue;
      first ? Begin(i) : work.Measure(TheBench());
    }
    cast_->Measure(TheBench());
    if (!first) return true;
    double best = std::numeric_limits<double>::infinity();
    for (size_t i : indices) {
      if (work_[i].alive) best = std::min(best, work_[i].median());
    }
    for (size_t i : indices) {
      Work& work = work_[i];
      work.alive = work.alive && work.median() <= kTooSlow * best;
    }
    return true;
  }

  // Leaves the candidate out if the device rejects its first launches.
  void Begin(size_t i) {
    try {
      work_[i].Begin(TheBench());
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kDevice) throw;
      work_[i].alive = false;
      work_[i].failed = true;
      LeaveOut(candidates_[i], e.what());
    }
  }

  void Choose() {
    Keep([&](size_t i) { return !work_[i].failed; });
    const double ns_per_byte =
        cast_->median() * 1e6 / static_cast<double>(cast_->bytes());
    for (size_t i = 0; i < work_.size(); ++i) {
      candidates_[i].ms = work_[i].median();
    }
    const codegen::RewriteDecisions decisions =
        search_space_.SelectRewrites(candidates_, ns_per_byte);
    result_.choices = search_space_.Choose(candidates_, decisions, ns_per_byte);
    result_.choices.origin = {.target = compiler_.target().name,
                              .device = device_.description(),
                              .library = compiler_.LibraryVersion(),
                              .threads = compiler_.target().threads};
    for (size_t i = 0; i < work_.size(); ++i) {
      const codegen::SearchCandidate& c = candidates_[i];
      result_.measured.push_back({c.problem, c.layers, c.dtype, c.name,
                                  work_[i].implementation(), c.ms,
                                  c.copied_bytes * ns_per_byte * 1e-6});
      AddComment(result_.measured.back());
    }
    for (const auto& [key, decision] : decisions) AddDecision(key, decision);
  }

  // Appends "direct 20.1 ms, winograd 12.3 ms".
  void AddComment(const TunedCandidate& c) {
    std::string& comment = result_.comments[{c.problem, c.dtype}];
    if (!comment.empty()) comment += ", ";
    comment += fmt::format("{} {:.3f} ms", c.name, c.ms);
    if (c.copies_ms > 0) comment += fmt::format(" + {:.3f}", c.copies_ms);
  }

  // "..; saves 0.120 ms a step", or "..; space_to_depth saves ..".
  void AddDecision(const ir::AutotuneResults::Key& key,
                   const codegen::RewriteDecision& decision) {
    if (decision.choice.empty()) {
      ++result_.rewrites;
      result_.rewrites_taken += decision.taken ? 1 : 0;
    }
    std::string& comment = result_.comments[key];
    if (!comment.empty()) comment += "; ";
    if (!decision.choice.empty()) comment += decision.choice + " ";
    if (!decision.saved_ns.has_value()) {
      comment += "not compared";
      return;
    }
    const double ms = *decision.saved_ns * 1e-6;
    comment += fmt::format("{} {:.3f} ms a step", ms > 0 ? "saves" : "costs",
                           std::abs(ms));
  }

  const codegen::SearchSpace& search_space_;
  const codegen::TargetCompiler& compiler_;
  Device& device_;
  const TuneOptions& options_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> start_, end_;
  std::vector<codegen::SearchCandidate> candidates_;
  std::vector<Work> work_;                                 // of each
  std::map<std::string, std::vector<size_t>> of_problem_;  // into them
  std::unique_ptr<Work> cast_;
  std::unique_ptr<Memory> memory_;
  TuneResult result_;
};

}  // namespace

TuneResult Tune(const ir::Graph& forward, codegen::ProgramKind kind,
                const codegen::TargetCompiler& compiler, Device& device,
                const codegen::CompileOptions& compile,
                const TuneOptions& options) {
  const codegen::SearchSpace study(forward, kind, compiler, compile);
  return Tuner(study, compiler, device, options).Run();
}

}  // namespace fusor::runtime
