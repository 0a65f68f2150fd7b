#include "tools/fusor/output/train_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tools/fusor/setup/workbench.h"

namespace fusor::tools {

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

std::string EvaluationLine(int64_t epoch, const EvalReport& r) {
  return fmt::format(
      "epoch {:>3}  val top1 {:.2f} %  top5 {:.2f} %  loss {:.4f}  ({} "
      "images)\n",
      epoch, 100 * r.top1, 100 * r.top5, r.loss, r.images);
}

namespace {

double WaitShare(const TrainReport& report) {
  return report.seconds > 0 ? report.data.wait_seconds / report.seconds : 0;
}

}  // namespace

std::string SummaryLines(const TrainReport& report,
                         const ProfileShares& shares) {
  const double wait = WaitShare(report);
  const double compute = 1 - wait;
  return fmt::format(
             "trained   {} step{} in {:.1f} s, {:.2f} images/s, loss {:.4f} -> "
             "{:.4f}{}\n",
             report.steps, report.steps == 1 ? "" : "s", report.seconds,
             report.images_per_second, report.first_loss, report.last_loss,
             report.reached_top1 ? ", top-1 reached" : "") +
         fmt::format(
             "time      {:.0f} % convolutions and matmul, {:.0f} % fused "
             "kernels, {:.0f} % other library calls, {:.0f} % waiting for "
             "data{}\n",
             100 * compute * shares.matrix, 100 * compute * shares.kernels,
             100 * compute * shares.other, 100 * wait,
             wait > runtime::kInputBoundShare ? " (input-bound)" : "");
}

json EvaluationJson(const EvalReport& r) {
  return {{"images", r.images},
          {"loss", r.loss},
          {"top1", r.top1},
          {"top5", r.top5}};
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

}  // namespace fusor::tools
