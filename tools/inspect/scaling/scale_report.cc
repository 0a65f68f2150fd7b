#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ir/support/str.h"
#include "tools/inspect/html/html_page.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;
using passes::GradientBucket;

constexpr double kMs = 1e3;  // ms per second

// Returns "fp32" or "16-bit".
std::string WireName(const ScaleOptions& options) {
  return options.policy.element_bytes == 2 ? "16-bit" : "fp32";
}

// Returns e.g. "estimated for cpu-avx512".
std::string SourceText(const ScaleReport& report) {
  if (report.target.empty()) return report.source;
  const size_t end = std::min(report.source.find(','), report.source.size());
  return fmt::format("{} for {}{}", report.source.substr(0, end), report.target,
                     report.source.substr(end));
}

std::string PredictionText(const ScaleReport& report) {
  const ScaleOptions& options = report.alternatives.front().options;
  const ScalePrediction& p = report.alternatives.front().prediction;
  const int64_t ranks = options.nodes * options.gpus;
  std::string text = fmt::format(
      "{} per rank, on {} x {} ranks of {}\nstep      {:.2f} ms; one rank "
      "{:.2f} ms ({}): forward {:.2f}, backward {:.2f}, update {:.2f}\n",
      report.subject, options.nodes, options.gpus, report.cluster.name,
      p.step * kMs, report.timeline.step() * kMs, SourceText(report),
      report.timeline.forward * kMs,
      (report.timeline.backward - report.timeline.forward) * kMs,
      report.timeline.update * kMs);
  text += fmt::format(
      "speed     {:.2f} images/s, {:.2f} x one rank of {}, {:.1f} %\n",
      p.images_per_second, p.speedup, ranks,
      100 * p.speedup / static_cast<double>(ranks));
  text += fmt::format(
      "limit     {}: not overlapped communication {:.2f} ms, {} {:.2f} ms, "
      "waiting for input {:.2f} ms\n",
      LimitName(p.limit), p.not_overlapped * kMs,
      options.node_rate > 0 ? "measured node losses" : "slowest rank",
      p.waiting * kMs, p.starved * kMs);
  const std::string warning = ScaleWarning(report);
  if (!warning.empty()) text += fmt::format("warning   {}\n", warning);
  return text;
}

std::string BucketText(const ScaleReport& report) {
  const ScaleAlternative& chosen = report.alternatives.front();
  if (chosen.prediction.buckets.empty()) return "";
  std::string text = fmt::format(
      "buckets   {}, {} communication, {}\n  {:>9} {:>12} {:>11} {:>11} "
      "{:>11}{}\n",
      passes::PolicyName(chosen.options.policy), WireName(chosen.options),
      chosen.options.sharded ? "reduce-scatter, all-gather" : "all-reduce",
      "gradients", "size", "ready, ms", "start, ms", "end, ms",
      chosen.options.sharded ? "  gathered, ms" : "");
  for (size_t b = 0; b < chosen.prediction.buckets.size(); ++b) {
    const GradientBucket& bucket = chosen.prediction.buckets[b];
    text +=
        fmt::format("  {:>9} {:>12} {:>11.2f} {:>11.2f} {:>11.2f}",
                    bucket.last - bucket.first, ShowBytes(bucket.bytes),
                    bucket.ready * kMs, bucket.start * kMs, bucket.end * kMs);
    if (chosen.options.sharded) {
      text += fmt::format("  {:>12.2f}", chosen.prediction.gathered[b] * kMs);
    }
    text += "\n";
  }
  text += fmt::format("  backward ends at {:.2f} ms\n",
                      report.timeline.backward * kMs);
  return text;
}

std::string AlternativesText(const ScaleReport& report) {
  std::string text = fmt::format(
      "{:<24}{:>8} {:>18} {:>11} {:>12} {:>9}  {}\n", "alternatives", "buckets",
      "not overlapped, ms", "step, ms", "images/s", "speedup", "limit");
  for (const ScaleAlternative& a : report.alternatives) {
    const ScalePrediction& p = a.prediction;
    text += fmt::format(
        "  {:<22}{:>8} {:>18.2f} {:>11.2f} {:>12.2f} {:>9.2f}  "
        "{}\n",
        a.name, p.buckets.size(), p.not_overlapped * kMs, p.step * kMs,
        p.images_per_second, p.speedup, LimitName(p.limit));
  }
  return text;
}

json BucketJson(const ScalePrediction& p, size_t b) {
  const GradientBucket& bucket = p.buckets[b];
  json out = {{"gradients", bucket.last - bucket.first},
              {"bytes", bucket.bytes},
              {"ready_ms", bucket.ready * kMs},
              {"start_ms", bucket.start * kMs},
              {"end_ms", bucket.end * kMs}};
  if (!p.gathered.empty()) out["gathered_ms"] = p.gathered[b] * kMs;
  return out;
}

json AlternativeJson(const ScaleAlternative& a) {
  const ScalePrediction& p = a.prediction;
  json buckets = json::array();
  for (size_t b = 0; b < p.buckets.size(); ++b) {
    buckets.push_back(BucketJson(p, b));
  }
  return {{"name", a.name},
          {"bucket_policy", passes::PolicyName(a.options.policy)},
          {"wire_bytes", a.options.policy.element_bytes},
          {"sharded", a.options.sharded},
          {"step_ms", p.step * kMs},
          {"not_overlapped_ms", p.not_overlapped * kMs},
          {"waiting_ms", p.waiting * kMs},
          {"starved_ms", p.starved * kMs},
          {"images_per_second", p.images_per_second},
          {"speedup", p.speedup},
          {"limit", LimitName(p.limit)},
          {"buckets", std::move(buckets)}};
}

class TimelinePicture {
 public:
  explicit TimelinePicture(const ScaleReport& report)
      : report_(report),
        prediction_(report.alternatives.front().prediction),
        length_(std::max(prediction_.step, 1e-9)),
        backward_(report.timeline.backward) {}

  std::string Draw() {
    const ScaleOptions& options = report_.alternatives.front().options;
    svg_.Text(20, 26, "start",
              fmt::format("{}, {} x {} ranks of {}: {:.2f} ms, {:.2f} x one "
                          "rank",
                          report_.subject, options.nodes, options.gpus,
                          report_.cluster.name, prediction_.step * kMs,
                          prediction_.speedup),
              16);
    svg_.Text(20, 44, "start", ScaleWarning(report_));
    Axis();
    Computation();
    Communication();
    return svg_.Finish();
  }

 private:
  static constexpr double kLeft = 130, kTop = 60, kWidth = 760, kRow = 44;
  double X(double seconds) const { return kLeft + kWidth * seconds / length_; }

  void Bar(int row, double from, double to, const char* colour,
           const std::string& tooltip) {
    svg_.Rect(X(from), kTop + kRow * row, std::max(X(to) - X(from), 0.5),
              kRow - 12, fmt::format("fill=\"{}\" stroke=\"#fff\"", colour),
              tooltip);
  }

  void Axis() {
    const double step = std::pow(10, std::floor(std::log10(length_ * kMs)));
    for (double tick = 0; tick <= length_ * kMs; tick += step / 2) {
      const double x = X(tick / kMs);
      svg_.Line(x, kTop - 8, x, kTop + 2 * kRow, "stroke=\"#e4e7ee\"");
      svg_.Text(x, kTop + 2 * kRow + 16, "middle", fmt::format("{:g}", tick));
    }
    svg_.Text(kLeft + kWidth / 2, kTop + 2 * kRow + 36, "middle",
              "milliseconds");
    svg_.Text(kLeft - 10, kTop + 22, "end", "computation");
    svg_.Text(kLeft - 10, kTop + kRow + 22, "end", "communication");
  }

  void Computation() {
    const auto part = [&](const char* name, double from, double to,
                          const char* colour, const char* ink = "#fff") {
      if (to <= from) return;
      Bar(0, from, to, colour,
          fmt::format("{}: {:.2f} ms", name, (to - from) * kMs));
      if (X(to) - X(from) > 60) {
        svg_.TextOnShape((X(from) + X(to)) / 2, kTop + 20, name, ink);
      }
    };
    part("forward", 0, report_.timeline.forward, "#8fb1ec", "#1d2433");
    part("backward", report_.timeline.forward, backward_, "#2f6bd8");
    const double not_overlapped = backward_ + prediction_.not_overlapped;
    part("not overlapped", backward_, not_overlapped, "#c74444");
    const double rest =
        prediction_.step - prediction_.waiting - prediction_.starved;
    part("update", not_overlapped, rest, "#4f9d69");
    part("waiting", rest, prediction_.step, "#c9ced8", "#1d2433");
  }

  void Communication() {
    for (size_t b = 0; b < prediction_.buckets.size(); ++b) {
      const GradientBucket& bucket = prediction_.buckets[b];
      Bar(1, bucket.start, bucket.end,
          bucket.end > backward_ ? "#c74444" : "#e07f2f",
          fmt::format("bucket {}: {} gradients, {}, ready at {:.2f} ms, {:.2f} "
                      "to {:.2f} ms",
                      b, bucket.last - bucket.first, ShowBytes(bucket.bytes),
                      bucket.ready * kMs, bucket.start * kMs,
                      bucket.end * kMs));
    }
  }

  const ScaleReport& report_;
  const ScalePrediction& prediction_;
  const double length_, backward_;
  Svg svg_{kLeft + kWidth + 30, kTop + 2 * kRow + 56};
};

}  // namespace

std::string ScaleWarning(const ScaleReport& report) {
  const std::string& device = report.cluster.device;
  if (report.target.empty() || report.target.starts_with(device)) return "";
  return fmt::format(
      "times of {} on links between devices {}: choose --cluster, --target or "
      "--rank-rate to match",
      report.target, device);
}

std::string ScaleText(const ScaleReport& report) {
  return PredictionText(report) + BucketText(report) + AlternativesText(report);
}

json ScaleJson(const ScaleReport& report) {
  const ScaleOptions& options = report.alternatives.front().options;
  json out = AlternativeJson(report.alternatives.front());
  out.erase("name");
  out["nodes"] = options.nodes;
  out["gpus_per_node"] = options.gpus;
  out["batch_size"] = options.batch;
  out["cluster"] = report.cluster.name;
  out["times_from"] = report.source;
  if (!report.target.empty()) out["times_of"] = report.target;
  const std::string warning = ScaleWarning(report);
  if (!warning.empty()) out["warning"] = warning;
  out["one_rank"] = {{"step_ms", report.timeline.step() * kMs},
                     {"forward_ms", report.timeline.forward * kMs},
                     {"backward_end_ms", report.timeline.backward * kMs},
                     {"update_ms", report.timeline.update * kMs},
                     {"gradient_elements", report.timeline.elements()}};
  json others = json::array();
  for (size_t i = 1; i < report.alternatives.size(); ++i) {
    others.push_back(AlternativeJson(report.alternatives[i]));
  }
  out["alternatives"] = std::move(others);
  return out;
}

std::string ScaleSvg(const ScaleReport& report) {
  return TimelinePicture(report).Draw();
}

}  // namespace fusor::inspect
