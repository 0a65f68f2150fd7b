#include <algorithm>
#include <map>

#include "codegen/plan/verify_plan.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

constexpr int kBeforeAll = -1;  // "step" that writes inputs and constants

// The happens-before relation of steps, by vector clocks. Clocks advance in
// issue order, by stream order and by the events that steps wait for.
class HappensBefore {
 public:
  explicit HappensBefore(const Plan& plan) : plan_(plan) {
    int streams = 1;
    for (const Step& step : plan.steps) {
      streams = std::max(streams, step.stream + 1);
    }
    std::vector<Clock> now(streams, Clock(streams, 0));
    std::vector<Clock> recorded(plan.num_events);
    for (const Step& step : plan.steps) {
      Clock& clock = now[step.stream];
      for (int event : step.waits) {
        FUSOR_ASSERT(
            !recorded[event].empty(),
            "plan {}: step {} waits for event {} before it is recorded",
            plan.name, step.name, event);
        for (int s = 0; s < streams; ++s) {
          clock[s] = std::max(clock[s], recorded[event][s]);
        }
      }
      ++clock[step.stream];
      clocks_.push_back(clock);
      if (step.records >= 0) {
        FUSOR_ASSERT(recorded[step.records].empty(),
                     "plan {}: step {} records event {} again", plan.name,
                     step.name, step.records);
        recorded[step.records] = clock;
      }
    }
    for (int e = 0; e < plan.num_events; ++e) {
      FUSOR_ASSERT(!recorded[e].empty(), "plan {}: event {} is never recorded",
                   plan.name, e);
    }
  }

  // Returns whether step `a` always ends before step `b` starts.
  bool operator()(int a, int b) const {
    if (a == kBeforeAll || b == static_cast<int>(clocks_.size())) return true;
    const int stream = plan_.steps[a].stream;
    return a != b && clocks_[b][stream] >= clocks_[a][stream];
  }

 private:
  using Clock = std::vector<int>;  // number of ended steps per stream
  const Plan& plan_;
  std::vector<Clock> clocks_;  // per step, including the step itself
};

class Replay {
 public:
  explicit Replay(const Plan& plan)
      : plan_(plan),
        before_(plan),
        memory_(plan.arenas.size()),
        writer_(plan.buffers.size(), kNobody),
        readers_(plan.buffers.size()) {}

  void Run() {
    for (const PlanInput& input : plan_.inputs) Preset(input.buffer);
    for (const Plan::Constant& constant : plan_.constants) {
      Preset(constant.buffer);
    }
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      RunStep(static_cast<int>(s));
    }
    CheckEnd();
  }

 private:
  static constexpr int kNobody = -2;

  struct Fragment {
    int64_t end;
    int buffer;
  };
  using Arena = std::map<int64_t, Fragment>;  // start -> fragment; disjoint

  const Buffer& buffer(int b) const { return plan_.buffers[b]; }

  std::string StepName(int step) const {
    if (step == kBeforeAll) return "the start";
    if (step == static_cast<int>(plan_.steps.size())) return "the end";
    return fmt::format("step {} ({})", step, plan_.steps[step].name);
  }

  std::vector<int> Parts(int b) const {
    return buffer(b).members.empty() ? std::vector<int>{b} : buffer(b).members;
  }

  static int64_t End(const Buffer& buffer) {
    return buffer.offset + PadToAlignment(buffer.bytes);
  }

  void Preset(int b) {
    FUSOR_ASSERT(writer_[b] == kNobody, "plan {}: {} enters twice", plan_.name,
                 buffer(b).name);
    for (const auto& [start, fragment] : Overlapping(b)) {
      FUSOR_ASSERT(false, "plan {}: {} and {} enter at the same place",
                   plan_.name, buffer(b).name, buffer(fragment.buffer).name);
    }
    writer_[b] = kBeforeAll;
    memory_[buffer(b).arena][buffer(b).offset] = {End(buffer(b)), b};
  }

  // Returns the fragments that overlap the range of `b`.
  std::vector<std::pair<int64_t, Fragment>> Overlapping(int b) const {
    const Arena& arena = memory_[buffer(b).arena];
    auto it = arena.upper_bound(buffer(b).offset);
    if (it != arena.begin() && std::prev(it)->second.end > buffer(b).offset) {
      --it;
    }
    std::vector<std::pair<int64_t, Fragment>> found;
    for (; it != arena.end() && it->first < End(buffer(b)); ++it) {
      found.emplace_back(*it);
    }
    return found;
  }

  void RunStep(int s) {
    const Step& step = plan_.steps[s];
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan_, step, a) != ArgUse::kRead) continue;
      for (int part : Parts(step.args[a])) Read(part, s);
    }
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan_, step, a) == ArgUse::kRead) continue;
      for (int part : Parts(step.args[a])) Write(part, s, a);
    }
  }

  void Read(int b, int s) {
    FUSOR_ASSERT(writer_[b] != kNobody,
                 "plan {}: {} reads {}, which is not written yet", plan_.name,
                 StepName(s), buffer(b).name);
    int64_t covered = buffer(b).offset;
    for (const auto& [start, fragment] : Overlapping(b)) {
      FUSOR_ASSERT(fragment.buffer == b,
                   "plan {}: {} reads {}, but {} has overwritten it with {}",
                   plan_.name, StepName(s), buffer(b).name,
                   StepName(writer_[fragment.buffer]),
                   buffer(fragment.buffer).name);
      covered = fragment.end;
    }
    FUSOR_ASSERT(covered == End(buffer(b)),
                 "plan {}: {} reads {}, which is not there", plan_.name,
                 StepName(s), buffer(b).name);
    FUSOR_ASSERT(before_(writer_[b], s),
                 "plan {}: {} reads {} without waiting for {}", plan_.name,
                 StepName(s), buffer(b).name, StepName(writer_[b]));
    readers_[b].push_back(s);
  }

  void Write(int b, int s, size_t arg) {
    FUSOR_ASSERT(writer_[b] == kNobody, "plan {}: {} writes {}, as did {}",
                 plan_.name, StepName(s), buffer(b).name, StepName(writer_[b]));
    Arena& arena = memory_[buffer(b).arena];
    for (const auto& [start, fragment] : Overlapping(b)) {
      CheckOverwrite(fragment.buffer, b, s, arg);
      arena.erase(start);
      if (start < buffer(b).offset) {
        arena[start] = {buffer(b).offset, fragment.buffer};
      }
      if (fragment.end > End(buffer(b))) arena[End(buffer(b))] = fragment;
    }
    arena[buffer(b).offset] = {End(buffer(b)), b};
    writer_[b] = s;
  }

  void CheckOverwrite(int old, int b, int s, size_t arg) const {
    FUSOR_ASSERT(writer_[old] != s, "plan {}: {} writes {} and {} to one place",
                 plan_.name, StepName(s), buffer(old).name, buffer(b).name);
    FUSOR_ASSERT(before_(writer_[old], s),
                 "plan {}: {} writes {} over {} without waiting for {}",
                 plan_.name, StepName(s), buffer(b).name, buffer(old).name,
                 StepName(writer_[old]));
    for (int reader : readers_[old]) {
      const bool safe =
          reader == s ? MayOverwrite(old, s, arg) : before_(reader, s);
      FUSOR_ASSERT(safe, "plan {}: {} writes {} over {}, which {} reads",
                   plan_.name, StepName(s), buffer(b).name, buffer(old).name,
                   StepName(reader));
    }
  }

  // Returns whether every argument through which step s reads `old` has exactly
  // the range of argument `result`, which may overwrite it.
  bool MayOverwrite(int old, int s, size_t result) const {
    const Step& step = plan_.steps[s];
    const std::vector<InPlace>& pairs = InPlaceOf(plan_, step);
    const Buffer& to = buffer(step.args[result]);
    for (size_t a = 0; a < step.args.size(); ++a) {
      if (UseOfArg(plan_, step, a) != ArgUse::kRead) continue;
      const std::vector<int> parts = Parts(step.args[a]);
      if (std::find(parts.begin(), parts.end(), old) == parts.end()) continue;
      const Buffer& from = buffer(step.args[a]);
      const InPlace pair{static_cast<int>(a), static_cast<int>(result)};
      if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end() ||
          from.offset != to.offset || from.bytes != to.bytes) {
        return false;
      }
    }
    return true;
  }

  void CheckEnd() {
    const auto end = static_cast<int>(plan_.steps.size());
    std::vector<bool> updated(plan_.inputs.size(), false);
    for (const PlanOutput& output : plan_.outputs) {
      Read(output.buffer, end);
      if (output.alias >= 0) updated[output.alias] = true;
    }
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      if (!updated[i]) Read(plan_.inputs[i].buffer, end);
    }
    for (const Plan::Constant& constant : plan_.constants) {
      Read(constant.buffer, end);
    }
    for (size_t b = 0; b < plan_.buffers.size(); ++b) {
      FUSOR_ASSERT(writer_[b] != kNobody || !buffer(b).members.empty(),
                   "plan {}: no step writes {}", plan_.name, buffer(b).name);
    }
  }

  const Plan& plan_;
  const HappensBefore before_;
  std::vector<Arena> memory_;
  std::vector<int> writer_;                // per buffer
  std::vector<std::vector<int>> readers_;  // per buffer, so far
};

}  // namespace

void ReplayPlan(const Plan& plan) { Replay(plan).Run(); }

}  // namespace fusor::codegen
