#include "tests/codegen/plan/plan_simulator.h"

#include <algorithm>
#include <optional>
#include <random>

#include "ir/support/hash.h"

namespace fusor::codegen {
namespace {

struct Range {
  int arena;
  int64_t begin;
  int64_t end;

  bool Meets(const Range& other) const {
    return arena == other.arena && begin < other.end && other.begin < end;
  }
};

class Machine {
 public:
  explicit Machine(const Plan& plan) : plan_(plan) {}

  std::vector<uint64_t> Run(const std::vector<int>& order) {
    for (const Arena& arena : plan_.arenas) {
      if (arena.bytes < 0 || arena.bytes > (1 << 24)) return {};
      memory_.emplace_back(arena.bytes, HashBytes(arena.name));
    }
    for (const PlanInput& input : plan_.inputs) {
      if (!Fill(input.buffer, HashBytes(input.name))) return {};
    }
    for (const Plan::Constant& constant : plan_.constants) {
      if (!Fill(constant.buffer, HashBytes(constant.bytes))) return {};
    }
    for (int step : order) {
      if (!RunStep(plan_.steps[step])) return {};
    }
    return Results();
  }

 private:
  std::optional<Range> RangeOf(int b, int64_t bytes) const {
    if (b < 0 || b >= static_cast<int>(plan_.buffers.size())) return {};
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.arena < 0 || buffer.arena >= static_cast<int>(memory_.size()) ||
        buffer.offset < 0 || bytes < 0 ||
        buffer.offset + bytes > plan_.arenas[buffer.arena].bytes) {
      return {};
    }
    return Range{buffer.arena, buffer.offset, buffer.offset + bytes};
  }

  bool Fill(int b, uint64_t seed) {
    const auto range = RangeOf(b, plan_.buffers[b].type.num_bytes());
    if (!range.has_value()) return false;
    Write(*range, seed);
    return true;
  }

  void Write(const Range& range, uint64_t seed) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      memory_[range.arena][i] =
          HashCombine(seed, static_cast<uint64_t>(i - range.begin));
    }
  }

  uint64_t Hash(const Range& range, uint64_t seed) const {
    for (int64_t i = range.begin; i < range.end; ++i) {
      seed = HashCombine(seed, memory_[range.arena][i]);
    }
    return seed;
  }

  // Returns the size of the argument that the kernel or call accesses.
  static int64_t BytesOfArg(const Plan& plan, const Step& step, size_t arg) {
    if (step.kind == StepKind::kLaunch) {
      const KernelBuffer& b = plan.kernels[step.index].kernel.buffers[arg];
      return b.num_bytes();
    }
    const LibraryCall& call = plan.calls[step.index];
    if (arg < call.operands.size()) return call.operands[arg].num_bytes();
    arg -= call.operands.size();
    return arg < call.results.size() ? call.results[arg].num_bytes()
                                     : call.workspace_bytes;
  }

  static size_t NumArgs(const Plan& plan, const Step& step) {
    if (step.kind == StepKind::kLaunch) {
      return plan.kernels[step.index].kernel.buffers.size();
    }
    const LibraryCall& call = plan.calls[step.index];
    return call.operands.size() + call.results.size() +
           (call.workspace_bytes > 0 ? 1 : 0);
  }

  bool RunStep(const Step& step) {
    if (step.args.size() != NumArgs(plan_, step)) return false;
    uint64_t hash = HashCombine(static_cast<uint64_t>(step.kind), step.index);
    std::vector<Range> ranges;
    for (size_t a = 0; a < step.args.size(); ++a) {
      const auto range = RangeOf(step.args[a], BytesOfArg(plan_, step, a));
      if (!range.has_value()) return false;
      ranges.push_back(*range);
      if (UseOfArg(plan_, step, a) != ArgUse::kRead) continue;
      hash = HashArg(step.args[a], *range, hash);
    }
    if (IsCopy(step) && !ranges[0].Meets(ranges[1])) {
      std::copy_n(memory_[ranges[0].arena].begin() + ranges[0].begin,
                  ranges[0].end - ranges[0].begin,
                  memory_[ranges[1].arena].begin() + ranges[1].begin);
      return true;
    }
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan_, step, a) == ArgUse::kRead) continue;
      if (Clashes(step, ranges, a)) hash = HashCombine(hash, ++clashes_);
    }
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan_, step, a) == ArgUse::kRead) continue;
      Write(ranges[a], HashCombine(hash, a));
    }
    return true;
  }

  // Returns whether the step copies one tensor: a copy of the copy is equal.
  bool IsCopy(const Step& step) const {
    if (step.kind == StepKind::kLaunch) return false;
    const LibraryCall& call = plan_.calls[step.index];
    return call.op == ir::OpKind::kCopy && call.operands == call.results &&
           step.args.size() == 2 && plan_.buffers[step.args[0]].members.empty();
  }

  // For a contiguous range, hashes the bytes of the members without padding.
  uint64_t HashArg(int b, const Range& range, uint64_t seed) const {
    const std::vector<int>& members = plan_.buffers[b].members;
    if (members.empty()) return Hash(range, seed);
    int64_t begin = range.begin;
    for (int m : members) {
      const int64_t bytes = plan_.buffers[m].bytes;
      seed = Hash({range.arena, begin, begin + bytes}, seed);
      begin += PadToAlignment(bytes);
    }
    return seed;
  }

  // Returns whether the result `a` overlaps with an argument that the step
  // reads, other than as a permitted in-place pair, or with another result.
  bool Clashes(const Step& step, const std::vector<Range>& ranges,
               size_t a) const {
    const std::vector<InPlace>& pairs = InPlaceOf(plan_, step);
    for (size_t other = 0; other < ranges.size(); ++other) {
      if (other == a || !ranges[a].Meets(ranges[other])) continue;
      if (UseOfArg(plan_, step, other) != ArgUse::kRead) return true;
      const InPlace pair{static_cast<int>(other), static_cast<int>(a)};
      const bool allowed =
          std::find(pairs.begin(), pairs.end(), pair) != pairs.end();
      if (!allowed || ranges[a].begin != ranges[other].begin) return true;
    }
    return false;
  }

  std::vector<uint64_t> Results() const {
    std::vector<uint64_t> results;
    const auto add = [&](int b, uint64_t seed) {
      const auto range = RangeOf(b, plan_.buffers[b].type.num_bytes());
      results.push_back(range.has_value() ? Hash(*range, seed) : 0);
    };
    for (const PlanOutput& output : plan_.outputs) {
      // The session reads new state from the state's buffer.
      const bool state = output.alias >= 0 &&
                         output.alias < static_cast<int>(plan_.inputs.size());
      add(output.buffer, HashBytes(output.name));
      if (state) add(plan_.inputs[output.alias].buffer, output.alias);
    }
    for (const PlanInput& input : plan_.inputs) {
      add(input.buffer, HashBytes(input.name));
    }
    for (const Plan::Constant& constant : plan_.constants) {
      add(constant.buffer, 1);
    }
    return results;
  }

  const Plan& plan_;
  std::vector<std::vector<uint64_t>> memory_;  // one hash per byte
  uint64_t clashes_ = 0;
};

}  // namespace

std::vector<uint64_t> Simulate(const Plan& plan,
                               const std::vector<int>& order) {
  return Machine(plan).Run(order);
}

std::vector<int> AnyOrder(const Plan& plan, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::vector<int>> queues;  // per stream, in issue order
  std::vector<int> recorded(plan.num_events, -1);
  std::vector<std::vector<int>> after(plan.steps.size());
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (step.stream >= static_cast<int>(queues.size())) {
      queues.resize(step.stream + 1);
    }
    queues[step.stream].push_back(static_cast<int>(s));
    // A wait for an event that is not yet recorded does nothing.
    for (int event : step.waits) {
      if (event >= 0 && event < plan.num_events && recorded[event] >= 0) {
        after[s].push_back(recorded[event]);
      }
    }
    if (step.records >= 0 && step.records < plan.num_events) {
      recorded[step.records] = static_cast<int>(s);
    }
  }
  // Even seeds alternate between streams. Odd seeds run one stream until it
  // waits.
  std::vector<size_t> rank(queues.size());
  for (size_t i = 0; i < rank.size(); ++i) rank[i] = i;
  std::shuffle(rank.begin(), rank.end(), engine);
  std::vector<size_t> next(queues.size(), 0);
  std::vector<bool> done(plan.steps.size(), false);
  std::vector<int> order;
  while (order.size() < plan.steps.size()) {
    if (seed % 2 == 0) std::shuffle(rank.begin(), rank.end(), engine);
    for (size_t q : rank) {
      if (next[q] == queues[q].size()) continue;
      const int step = queues[q][next[q]];
      if (!std::all_of(after[step].begin(), after[step].end(),
                       [&](int s) { return done[s]; })) {
        continue;
      }
      ++next[q];
      done[step] = true;
      order.push_back(step);
      break;
    }
  }
  return order;
}

}  // namespace fusor::codegen
