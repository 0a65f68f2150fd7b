#include "tools/fusor/setup/debugging.h"

#include <fmt/core.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "ir/support/error.h"
#include "runtime/program.h"
#include "runtime/step_observer.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/observers/check_numerics.h"
#include "tools/inspect/observers/run_timeline.h"
#include "tools/inspect/observers/stats_trace.h"

namespace fusor::tools {

void AddDebugFlags(CLI::App& app, DebugFlags& f) {
  app.add_option(
         "--check-numerics", f.check_numerics,
         "Check kernel outputs for NaN and infinity: off, warn, fail or dump")
      ->capture_default_str()
      ->check(CLI::IsMember({"off", "warn", "fail", "dump"}))
      ->group("Debugging");
  app.add_option("--stats-trace", f.stats_trace,
                 "Write statistics of every value per step, for `fusor compare "
                 "--traces`")
      ->type_name("FILE")
      ->group("Debugging");
  app.add_option(
         "--timeline", f.timeline,
         "Write a Chrome trace of kernels and collectives to FILE (Perfetto)")
      ->type_name("FILE")
      ->group("Debugging");
  app.add_option("--timeline-steps", f.timeline_steps,
                 "First and last step in the timeline; each micro-batch counts "
                 "as a step")
      ->type_name("FIRST:LAST")
      ->capture_default_str()
      ->group("Debugging");
}

namespace {

// Parses e.g. "3:7".
std::pair<int64_t, int64_t> ParseSteps(const std::string& text) {
  int64_t first = 0;
  int64_t last = 0;
  const char* end = text.data() + text.size();
  const auto colon = std::from_chars(text.data(), end, first);
  const bool two = colon.ptr != end && *colon.ptr == ':';
  const auto rest = two ? std::from_chars(colon.ptr + 1, end, last) : colon;
  FUSOR_CHECK(two && rest.ec == std::errc() && rest.ptr == end && first > 0 &&
                  first <= last,
              kUsage, "--timeline-steps: expected FIRST:LAST, got {}", text);
  return {first, last};
}

}  // namespace

class Debugging::Observers : public runtime::StepObserver {
 public:
  Observers(const DebugFlags& flags, const std::string& folder)
      : timeline_path_(flags.timeline),
        timeline_steps_(ParseSteps(flags.timeline_steps)) {
    CheckOutput("--timeline", timeline_path_);
    if (flags.check_numerics != "off") {
      const bool dump = flags.check_numerics == "dump";
      inspect::NumericsOptions options;
      options.fail = dump || flags.check_numerics == "fail";
      if (dump) {
        const bool named = !folder.empty() && folder != "-";
        options.snapshot_folder = named ? folder : ".";
      }
      if (!options.fail) {
        options.report = [](const inspect::NonFinite& found) {
          fmt::print(stderr, "warning: {}\n", found.Describe());
        };
      }
      numerics_.emplace(std::move(options));
    }
    if (!flags.stats_trace.empty()) {
      file_.open(flags.stats_trace, std::ios::trunc);
      FUSOR_CHECK(file_.good(), kUsage, "--stats-trace {}: {}",
                  flags.stats_trace, std::strerror(errno));
      tracer_.emplace([this, path = flags.stats_trace](const std::string& l) {
        file_ << l << '\n';
        FUSOR_CHECK(file_.good(), kUsage, "--stats-trace {}: {}", path,
                    std::strerror(errno));
      });
    }
  }

  void Watch(runtime::Communicator* communicator) {
    if (timeline_path_.empty()) return;
    timeline_.emplace(communicator, timeline_steps_.first,
                      timeline_steps_.second);
  }

  void Finish() {
    if (timeline_) WriteJson(timeline_path_, timeline_->Trace());
  }

  void Before(const runtime::Program& program, size_t step) override {
    if (timeline_) timeline_->Before(program, step);
    if (tracer_) tracer_->Before(program, step);
    if (numerics_) numerics_->Before(program, step);
  }

  void After(const runtime::Program& program, size_t step) override {
    if (timeline_) timeline_->After(program, step);
    if (tracer_) tracer_->After(program, step);
    if (numerics_) numerics_->After(program, step);
  }

 private:
  std::optional<inspect::NumericsChecker> numerics_;
  std::optional<inspect::StatsTracer> tracer_;
  std::ofstream file_;
  const std::string timeline_path_;
  const std::pair<int64_t, int64_t> timeline_steps_;
  std::optional<inspect::RunTimeline> timeline_;
};

Debugging::Debugging(const DebugFlags& flags, const std::string& folder) {
  if (flags.check_numerics == "off" && flags.stats_trace.empty() &&
      flags.timeline.empty()) {
    return;
  }
  observers_ = std::make_unique<Observers>(flags, folder);
}

Debugging::~Debugging() = default;

void Debugging::Watch(runtime::Session& session,
                      runtime::Communicator* communicator) {
  if (observers_ == nullptr) return;
  observers_->Watch(communicator);
  session.Observe(observers_.get());
}

void Debugging::Finish() {
  if (observers_ != nullptr) observers_->Finish();
}

}  // namespace fusor::tools
