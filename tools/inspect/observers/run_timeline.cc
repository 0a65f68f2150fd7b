#include "tools/inspect/observers/run_timeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "ir/support/statistics.h"
#include "runtime/program.h"

namespace fusor::inspect {

std::vector<double> MedianProfile(runtime::Program& program, int runs) {
  std::vector<std::vector<double>> times(program.plan().steps.size());
  for (int i = 0; i < runs; ++i) {
    const std::vector<double> run = program.Profile();
    for (size_t s = 0; s < times.size(); ++s) times[s].push_back(run[s]);
  }
  std::vector<double> medians;
  for (auto& of_step : times) medians.push_back(Median(std::move(of_step)));
  return medians;
}

namespace {

using codegen::Plan;
using codegen::Step;
using codegen::StepKind;
using nlohmann::json;

enum Track { kComputation, kCollectives };

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

json Metadata(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"},
          {"name", what},
          {"pid", rank},
          {"tid", track},
          {"args", {{"name", name}}}};
}

}  // namespace

void RunTimeline::Before(const runtime::Program& program, size_t step) {
  if (step == 0) {
    // Collectives of an earlier run may have ended since.
    if (count_ >= first_ - 1 && count_ <= last_) TakeTimes();
    ++count_;
    if (records()) {
      const Plan& plan = program.plan();
      runs_.push_back({count_, &plan, {}});
      runs_.back().steps.reserve(plan.steps.size());
    }
  }
  if (records()) runs_.back().steps.push_back({step, Now(), 0});
}

void RunTimeline::After(const runtime::Program&, size_t) {
  if (records()) runs_.back().steps.back().ended = Now();
}

void RunTimeline::TakeTimes() {
  if (communicator_ == nullptr) return;
  const std::vector<runtime::CollectiveTime> times = communicator_->TakeTimes();
  if (runs_.empty()) return;  // discard times of earlier runs
  collectives_.insert(collectives_.end(), times.begin(), times.end());
}

// Converts records to trace events.
class RunTimeline::Writer {
 public:
  explicit Writer(const RunTimeline& timeline)
      : timeline_(timeline),
        rank_(timeline.communicator_ == nullptr
                  ? 0
                  : timeline.communicator_->rank()) {}

  json Write() {
    events_.push_back(
        Metadata("process_name", rank_, 0, fmt::format("rank {}", rank_)));
    events_.push_back(
        Metadata("thread_name", rank_, kComputation, "computation"));
    events_.push_back(
        Metadata("thread_name", rank_, kCollectives, "collectives"));
    json runs = json::array();
    for (const Run& run : timeline_.runs_) {
      const bool ended = run.steps.size() == run.plan->steps.size() &&
                         !run.steps.empty() && run.steps.back().ended > 0;
      if (ended) runs.push_back(WriteRun(run));
    }
    return {{"displayTimeUnit", "ms"},
            {"traceEvents", std::move(events_)},
            {"otherData", {{"rank", rank_}, {"runs", std::move(runs)}}}};
  }

 private:
  double Micros(double seconds) const {
    return 1e6 * (seconds - timeline_.runs_.front().steps.front().begun);
  }

  void Add(Track track, const std::string& name, const std::string& category,
           double begun, double ended, json args) {
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"cat", category},
                       {"pid", rank_},
                       {"tid", track},
                       {"ts", Micros(begun)},
                       {"dur", 1e6 * (ended - begun)},
                       {"args", std::move(args)}});
  }

  // Returns the collective that the step started; null while it is running.
  const runtime::CollectiveTime* Find(const StepTime& step) const {
    const auto& all = timeline_.collectives_;
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const runtime::CollectiveTime& time) {
          return time.started >= step.begun && time.started <= step.ended;
        });
    return found == all.end() ? nullptr : &*found;
  }

  json WriteRun(const Run& run) {
    const double begun = run.steps.front().begun;
    const double ended = run.steps.back().ended;
    double communication = 0, waits = 0;
    json collectives = json::array();
    std::map<int, const runtime::CollectiveTime*> of_event;
    for (const StepTime& time : run.steps) {
      const Step& step = run.plan->steps[time.step];
      if (step.kind != StepKind::kCollective) {
        waits += WriteStep(step, time, of_event);
        continue;
      }
      const runtime::CollectiveTime* collective = Find(time);
      if (collective == nullptr) continue;
      if (step.records >= 0) of_event[step.records] = collective;
      communication += collective->ended - collective->begun;
      collectives.push_back(
          WriteCollective(*run.plan, step, *collective, begun));
    }
    return {{"run", run.number},
            {"step_ms", 1e3 * (ended - begun)},
            {"compute_ms", 1e3 * (ended - begun - waits)},
            {"communication_ms", 1e3 * communication},
            {"not_overlapped_ms", 1e3 * waits},
            {"collectives", std::move(collectives)}};
  }

  // Appends the step's events. Returns its wait for collectives in seconds.
  double WriteStep(
      const Step& step, const StepTime& time,
      const std::map<int, const runtime::CollectiveTime*>& of_event) {
    double begun = time.begun;
    for (int event : step.waits) {
      const auto awaited = of_event.find(event);
      if (awaited == of_event.end()) continue;
      begun = std::clamp(awaited->second->ended, begun, time.ended);
    }
    if (begun > time.begun) {
      Add(kComputation, "wait", "wait", time.begun, begun,
          {{"for", step.name}});
    }
    const std::string& path = step.location.path;
    Add(kComputation, path.empty() ? step.name : path, step.op_class, begun,
        time.ended, {{"op", step.op_class}, {"value", step.name}});
    return begun - time.begun;
  }

  json WriteCollective(const Plan& plan, const Step& step,
                       const runtime::CollectiveTime& time, double run_begun) {
    const size_t tensors = plan.calls[step.index].operands.size();
    json facts = {{"op", step.op_class},
                  {"name", step.name},
                  {"tensors", tensors},
                  {"bytes", time.bytes},
                  {"ready_ms", 1e3 * (time.started - run_begun)},
                  {"start_ms", 1e3 * (time.begun - run_begun)},
                  {"end_ms", 1e3 * (time.ended - run_begun)}};
    Add(kCollectives, fmt::format("{} of {} tensors", step.op_class, tensors),
        "collective", time.begun, time.ended, facts);
    return facts;
  }

  const RunTimeline& timeline_;
  const int rank_;
  json events_ = json::array();
};

json RunTimeline::Trace() {
  if (count_ <= last_) TakeTimes();
  return Writer(*this).Write();
}

}  // namespace fusor::inspect
