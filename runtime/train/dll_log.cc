// NVIDIA's DLLogger: https://github.com/NVIDIA/dllogger, as used by
// DeepLearningExamples/PyTorch/Classification/ConvNets.

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/train/train_log.h"

namespace fusor::runtime {
namespace {

using Json = nlohmann::ordered_json;

// A metric: its name in the log, its unit, and its stdout format.
struct Metric {
  const char* name;
  const char* unit;
  const char* format;
};

constexpr Metric kMetrics[] = {
    {"train.loss", "", ":.5f"},
    {"train.total_ips", "img/s", ":.2f"},
    {"train.compute_ips", "img/s", ":.2f"},
    {"train.data_time", "s", ":.5f"},
    {"train.compute_time", "s", ":.5f"},
    {"lr", "", ":.5f"},
    {"val.top1", "%", ":.2f"},
    {"val.top5", "%", ":.2f"},
    {"val.loss", "", ":.5f"},
};

// Formats " name : value unit" per metric. Without a unit the space remains.
std::string Values(const Json& data) {
  std::string text;
  for (const auto& [name, value] : data.items()) {
    const auto* metric =
        std::find_if(std::begin(kMetrics), std::end(kMetrics),
                     [&](const Metric& m) { return name == m.name; });
    const int digits = std::string_view(metric->format) == ":.2f" ? 2 : 5;
    text += fmt::format(" {} : {:.{}f} {}", name, value.get<double>(), digits,
                        metric->unit);
  }
  return text;
}

std::string Line(std::string_view what) {
  return fmt::format("DLL {} - {}", Timestamp(WallSeconds()), what);
}

Json IntervalData(const IntervalReport& r) {
  return {{"train.loss", r.loss}, {"train.total_ips", r.images_per_second}};
}

// DLLogger's "verbose" metrics, which appear only in the file.
Json VerboseData(const IntervalReport& r) {
  Json data = IntervalData(r);
  const double steps = static_cast<double>(std::max<int64_t>(r.steps, 1));
  const double compute = 1 - r.data_wait_share;
  data["train.compute_ips"] =
      compute > 0 ? r.images_per_second / compute : r.images_per_second;
  data["train.data_time"] = r.seconds * r.data_wait_share / steps;
  data["train.compute_time"] = r.seconds * compute / steps;
  data["lr"] = r.lr;
  return data;
}

Json EvaluationData(const EvalReport& r) {
  if (!r.HasAccuracy()) return {{"val.loss", r.loss}};
  return {{"val.top1", 100 * r.top1},
          {"val.top5", 100 * r.top5},
          {"val.loss", r.loss}};
}

// NVIDIA's script reports the greatest loss of the run as train.loss.
Json SummaryData(const TrainReport& r) {
  Json data = Json::object();
  if (r.losses.empty()) return data;
  data["train.loss"] = *std::max_element(r.losses.begin(), r.losses.end());
  data["train.total_ips"] = r.images_per_second;
  return data;
}

// Returns the iteration within the epoch. As in DLLogger, epochs count from 0,
// iterations from 1.
int64_t IterationOf(const TrainLogInfo& info, const IntervalReport& r) {
  return r.iteration - r.epoch * info.steps_per_epoch;
}

class Raport : public TrainLog {
 public:
  Raport(const std::string& path, const TrainLogInfo& info)
      : info_(info), file_(path, info.start > 0), start_(WallSeconds()) {
    for (const Metric& metric : kMetrics) {
      Json line = Stamped("METADATA");
      line["metric"] = metric.name;
      line["metadata"] = {{"unit", metric.unit}, {"format", metric.format}};
      WriteLine(line);
    }
    Log("PARAMETER", info.parameters);
  }

  void Interval(const IntervalReport& r) override {
    Log({r.epoch, IterationOf(info_, r)}, VerboseData(r));
  }
  void Evaluated(int64_t epoch, const EvalReport& r) override {
    Log(Json::array({epoch}), EvaluationData(r));
  }
  void End(const TrainReport& r) override {
    Log(Json::array(), SummaryData(r));
  }

 private:
  Json Stamped(const char* type) const {
    const double now = WallSeconds();
    return {{"timestamp", fmt::format("{:.6f}", now)},
            {"datetime", Timestamp(now)},
            {"elapsedtime", fmt::format("{:.6f}", now - start_)},
            {"type", type}};
  }
  void Log(const Json& step, const Json& data) {
    Json line = Stamped("LOG");
    line["step"] = step;
    line["data"] = data;
    WriteLine(line);
  }
  void WriteLine(const Json& line) {
    file_.Write("DLLL " + line.dump() + "\n");
  }

  const TrainLogInfo info_;
  LogFile file_;
  const double start_;
};

}  // namespace

std::unique_ptr<TrainLog> OpenRaport(const std::string& path,
                                     const TrainLogInfo& info) {
  return std::make_unique<Raport>(path, info);
}

std::string DllParameters(const TrainLogInfo& info) {
  std::string text = "PARAMETER";
  for (const auto& [name, value] : info.parameters) {
    text += fmt::format(" {} : {} ", name, value);
  }
  return Line(text);
}

std::string DllInterval(const TrainLogInfo& info, const IntervalReport& r) {
  return Line(fmt::format("Epoch: {} Iteration: {} {}", r.epoch,
                          IterationOf(info, r), Values(IntervalData(r))));
}

std::string DllEvaluation(int64_t epoch, const EvalReport& r) {
  return Line(fmt::format("Epoch: {} {}", epoch, Values(EvaluationData(r))));
}

std::string DllSummary(const TrainReport& r) {
  return Line("Summary: " + Values(SummaryData(r)));
}

}  // namespace fusor::runtime
