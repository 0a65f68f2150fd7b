#include "tools/fusor/output/train_logs.h"

#include <fmt/core.h>

#include <algorithm>

#include "ir/support/error.h"
#include "tools/fusor/flags/validators.h"
#include "tools/fusor/output/standard_streams.h"
#include "tools/fusor/output/train_report.h"
#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {

using runtime::EvalReport;
using runtime::IntervalReport;
using runtime::TrainLog;

namespace {

std::string Within(const std::string& folder, const std::string& path) {
  const bool relative = !path.empty() && path[0] != '/';
  return relative && !folder.empty() ? folder + "/" + path : path;
}

}  // namespace

void AddLogFlags(CLI::App& app, LogFlags& f) {
  app.option_defaults()->group("Logs");
  app.add_option("--log-format", f.format,
                 "Format of stdout lines: text, or dll for NVIDIA DLLogger's")
      ->capture_default_str()
      ->check(OneOf({"text", "dll"}));
  app.add_option(
         "--raport-file", f.raport,
         "Write a DLLogger JSON log to FILE, below --workspace if given")
      ->type_name("FILE");
  app.add_option("--log-jsonl", f.json_lines,
                 "Write one JSON line per step; a resumed run continues FILE")
      ->type_name("FILE");
  app.add_option("--tensorboard", f.tensorboard,
                 "Write TensorBoard event files to DIR")
      ->type_name("DIR");
  app.add_option("--prometheus", f.prometheus,
                 "Write current metrics to FILE in Prometheus text format")
      ->type_name("FILE");
  app.option_defaults()->group("Options");
}

TrainLogs::TrainLogs(const LogFlags& flags, const std::string& workspace,
                     FILE* text)
    : flags_(flags), raport_(Within(workspace, flags.raport)), text_(text) {}

TrainLogs::~TrainLogs() = default;

void TrainLogs::Check() const {
  if (!flags_.tensorboard.empty()) {
    MakeFolder("--tensorboard", flags_.tensorboard);
  }
  CheckOutput("--raport-file", raport_);
  CheckOutput("--log-jsonl", flags_.json_lines);
  CheckOutput("--prometheus", flags_.prometheus);
}

void TrainLogs::Open(const runtime::TrainLogInfo& info) {
  info_ = info;
  const auto add = [&](const std::string& path, auto open) {
    if (!path.empty()) logs_.push_back(open(path, info));
  };
  add(raport_, runtime::OpenRaport);
  add(flags_.json_lines, runtime::OpenJsonLines);
  add(flags_.tensorboard, runtime::OpenTensorBoard);
  add(flags_.prometheus, runtime::OpenPrometheus);
  if (flags_.format == "dll") Print(runtime::DllParameters(info) + "\n");
}

template <typename Call>
void TrainLogs::ForEach(Call call) {
  for (size_t i = 0; i < logs_.size();) {
    try {
      call(*logs_[i]);
      ++i;
    } catch (const Error& e) {
      Warn(fmt::format("{}; stopped writing this log", e.what()));
      if (failure_.empty()) failure_ = e.what();
      logs_.erase(logs_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

void TrainLogs::Watch(runtime::TrainObserver& observer) {
  const bool dll = flags_.format == "dll";
  observer.step = [this](const runtime::StepReport& r) {
    ForEach([&](TrainLog& log) { log.Step(r); });
  };
  observer.interval = [this, dll](const IntervalReport& r) {
    Print(dll ? runtime::DllInterval(info_, r) + "\n" : IntervalLine(r));
    ForEach([&](TrainLog& log) { log.Interval(r); });
  };
  observer.evaluated = [this, dll](int64_t epoch, const EvalReport& r) {
    Print(dll ? runtime::DllEvaluation(epoch, r) + "\n"
              : EvaluationLine(epoch, r));
    ForEach([&](TrainLog& log) { log.Evaluated(epoch, r); });
  };
  observer.progress = [this](int64_t step, int64_t steps) {
    if (!training_) training_.emplace("train");
    training_->Show(step, steps);
  };
  observer.warning = [this](const std::string& text) { Warn(text); };
}

void TrainLogs::End(const runtime::TrainReport& report) {
  training_.reset();
  if (flags_.format == "dll") Print(runtime::DllSummary(report) + "\n");
  ForEach([&](TrainLog& log) { log.End(report); });
}

void TrainLogs::Finish() const {
  FUSOR_CHECK(failure_.empty(), kUsage, "{}", failure_);
}

void TrainLogs::Print(const std::string& line) {
  fmt::print(text_, "{}", line);
  std::fflush(text_);
}

void TrainLogs::Warn(const std::string& text) { tools::Warn(text); }

}  // namespace fusor::tools
