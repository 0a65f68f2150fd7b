#include "tools/fusor/output/train_logs.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ir/support/error.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/session_setup.h"

namespace fusor::tools {
namespace {

// Returns whether statements compute a convolution or matmul.
bool Contracts(const std::vector<codegen::Stmt>& body) {
  return std::any_of(body.begin(), body.end(), [](const codegen::Stmt& stmt) {
    return stmt.kind == codegen::StmtKind::kContract || Contracts(stmt.body);
  });
}

bool Contracts(const codegen::Kernel& kernel) {
  return std::any_of(
      kernel.phases.begin(), kernel.phases.end(),
      [](const codegen::Phase& phase) { return Contracts(phase.body); });
}

}  // namespace

ProfileShares MeasureShares(runtime::Program& program) {
  const std::vector<double> ms = program.Profile();
  const codegen::Plan& plan = program.plan();
  ProfileShares shares;
  double total = 0;
  for (size_t i = 0; i < ms.size(); ++i) {
    const codegen::Step& step = plan.steps[i];
    total += ms[i];
    if (step.kind == codegen::StepKind::kLaunch) {
      const bool contracts = Contracts(plan.kernels[step.index].kernel);
      (contracts ? shares.matrix : shares.kernels) += ms[i];
    } else if (step.flops > 0 &&
               !plan.calls[step.index].HasTrait(ir::OpTrait::kPooling)) {
      shares.matrix += ms[i];
    } else {
      shares.other += ms[i];
    }
  }
  if (total > 0) {
    shares.matrix /= total;
    shares.kernels /= total;
    shares.other /= total;
  }
  return shares;
}

using nlohmann::json;
using runtime::EvalReport;
using runtime::IntervalReport;
using runtime::TrainReport;

namespace {

// For a dynamic loss scale.
std::string OverflowText(const IntervalReport& r) {
  if (!r.overflow) return "";
  std::string text = fmt::format("  loss scale {}", r.overflow->scale);
  if (r.overflow->skipped > 0) {
    text +=
        fmt::format(", {} update{} skipped: gradients overflowed",
                    r.overflow->skipped, r.overflow->skipped == 1 ? "" : "s");
  }
  return text;
}

}  // namespace

std::string IntervalLine(const IntervalReport& r) {
  std::string read;
  if (r.data.files_read > 0) {
    const runtime::ReadRate rate = runtime::ReadRateOf(r.data, r.seconds);
    read = fmt::format("  read {:.2f} MB/s, {:.0f} files/s", rate.megabytes,
                       rate.files);
  }
  return fmt::format(
      "epoch {:>3}  iteration {:>6}/{}  loss {:.4f}  {:7.2f} images/s  lr "
      "{:.4g}  data wait {:.1f} %{}{}{}\n",
      r.epoch, r.iteration, r.iterations, r.loss, r.images_per_second, r.lr,
      100 * r.data_wait_share, read,
      r.data_wait_share > runtime::kInputBoundShare ? "  input-bound" : "",
      OverflowText(r));
}

std::string EvaluationText(const EvalReport& r) {
  const std::string loss = fmt::format("loss {:.4f}", r.loss);
  if (!r.HasAccuracy()) return loss;
  return fmt::format("top1 {:.2f} %  top5 {:.2f} %  {}", 100 * r.top1,
                     100 * r.top5, loss);
}

std::string EvaluationLine(int64_t epoch, const EvalReport& r) {
  return fmt::format("epoch {:>3}  val {}  ({} images)\n", epoch,
                     EvaluationText(r), r.images);
}

namespace {

double WaitShare(const TrainReport& report) {
  return report.seconds > 0 ? report.data.wait_seconds / report.seconds : 0;
}

}  // namespace

std::string SummaryLines(const TrainReport& report,
                         const std::optional<ProfileShares>& shares) {
  std::string lines = fmt::format(
      "trained   {} step{} in {:.1f} s, {:.2f} images/s, loss {:.4f} -> "
      "{:.4f}{}\n",
      report.steps, report.steps == 1 ? "" : "s", report.seconds,
      report.images_per_second, report.first_loss, report.last_loss,
      report.reached_top1 ? ", top-1 reached" : "");
  if (!shares.has_value()) return lines;
  const double wait = WaitShare(report);
  const double compute = 1 - wait;
  return lines +
         fmt::format(
             "time      {:.0f} % convolutions and matmul, {:.0f} % fused "
             "kernels, {:.0f} % other library calls, {:.0f} % waiting for "
             "data{}\n",
             100 * compute * shares->matrix, 100 * compute * shares->kernels,
             100 * compute * shares->other, 100 * wait,
             wait > runtime::kInputBoundShare ? " (input-bound)" : "");
}

json EvaluationJson(const EvalReport& r) {
  json out = {{"images", r.images}, {"loss", r.loss}};
  if (r.HasAccuracy()) {
    out["top1"] = r.top1;
    out["top5"] = r.top5;
  }
  return out;
}

json TrainingJson(const TrainReport& report) {
  json out = DataJson(report.data, report.seconds);
  out["steps"] = report.steps;
  out["last_step"] = report.end.step;
  out["loss"] = report.last_loss;
  out["first_loss"] = report.first_loss;
  out["losses"] = report.losses;
  out["loss_hash"] = fmt::format("{:016x}", report.end.loss_hash);
  out["seconds"] = report.seconds;
  out["images_per_second"] = report.images_per_second;
  out["step_ms"] = StepJson(report.step_ms);
  out["interrupted"] = report.interrupted;
  out["reached_top1"] = report.reached_top1;
  if (report.overflow) {
    out["loss_scale"] = report.overflow->scale;
    out["skipped_updates"] = report.overflow->skipped;
  }
  return out;
}

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
                 "Format of stdout lines: text or dll (NVIDIA DLLogger)")
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
