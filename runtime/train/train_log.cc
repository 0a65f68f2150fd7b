#include "runtime/train/train_log.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"

namespace fusor::runtime {
namespace {

using Json = nlohmann::ordered_json;

// Returns the lines of a log to keep for a run that starts after `start` steps.
// A killed run may have logged steps after its last checkpoint.
std::string LinesUpTo(const std::string& path, int64_t start) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kUsage, bytes);
  const std::string text(bytes.begin(), bytes.end());
  std::string kept;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin + 1);
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const Json step = json.is_object() ? json.value("step", Json(0)) : Json();
    FUSOR_CHECK(step.is_number_integer(), kUsage,
                "{}: expected a log of this run to append to, got {}", path,
                line.substr(0, std::min<size_t>(line.find('\n'), 40)));
    if (step.get<int64_t>() <= start) kept += line;
  }
  return kept;  // without a truncated last line
}

class JsonLines : public TrainLog {
 public:
  JsonLines(const std::string& path, const TrainLogInfo& info)
      : info_(info), last_step_(info.start) {
    const bool append = info.start > 0 && std::filesystem::exists(path);
    if (append) {
      WriteFileAtomically(path, LinesUpTo(path, info.start), ErrorCode::kUsage);
    }
    file_ = std::make_unique<LogFile>(path, append);
    Write({{"type", "start"},
           {"step", info.start},
           {"steps_per_epoch", info.steps_per_epoch},
           {"batch_size", info.batch_size},
           {"parameters", info.parameters}});
  }

  void Step(const StepReport& r) override {
    last_step_ = r.step;
    Write({{"type", "step"},
           {"step", r.step},
           {"epoch", r.epoch},
           {"loss", r.loss},
           {"lr", r.lr},
           {"seconds", r.seconds},
           {"data_wait_seconds", r.data_wait_seconds},
           {"images_per_second",
            static_cast<double>(info_.batch_size) / r.seconds}});
  }
  void Evaluated(int64_t epoch, const EvalReport& r) override {
    Json line = {{"type", "evaluation"},
                 {"step", last_step_},
                 {"epoch", epoch},
                 {"images", r.images},
                 {"loss", r.loss}};
    if (r.HasAccuracy()) {
      line["top1"] = r.top1;
      line["top5"] = r.top5;
    }
    Write(line);
  }
  void End(const TrainReport& r) override {
    Write({{"type", "end"},
           {"step", r.end.step},
           {"steps", r.steps},
           {"seconds", r.seconds},
           {"images_per_second", r.images_per_second},
           {"interrupted", r.interrupted}});
  }

 private:
  void Write(Json line) {
    line["time"] = WallSeconds();
    file_->Write(line.dump() + "\n");
  }

  const TrainLogInfo info_;
  int64_t last_step_;
  std::unique_ptr<LogFile> file_;
};

class Prometheus : public TrainLog {
 public:
  Prometheus(const std::string& path, const TrainLogInfo& info)
      : path_(path), info_(info) {
    const auto arch = info.parameters.find("arch");
    if (arch != info.parameters.end()) {
      label_ = fmt::format("{{arch=\"{}\"}}", arch->second);
    }
    Set("fusor_train_step", "Steps done", static_cast<double>(info.start));
    Write();
  }

  void Interval(const IntervalReport& r) override {
    Set("fusor_train_step", "Steps done", static_cast<double>(r.iteration));
    Set("fusor_train_epoch", "Epoch, from 0", static_cast<double>(r.epoch));
    Set("fusor_train_loss", "Loss of the last step", r.loss);
    Set("fusor_train_learning_rate", "Learning rate of the last step", r.lr);
    Set("fusor_train_images_per_second", "Throughput since the last report",
        r.images_per_second);
    Set("fusor_train_data_wait_ratio",
        "Share of the time spent waiting for data", r.data_wait_share);
    Set("fusor_train_updated_seconds", "When this was written, since 1970",
        WallSeconds());
    Write();
  }
  void Evaluated(int64_t, const EvalReport& r) override {
    if (r.HasAccuracy()) {
      Set("fusor_eval_top1_ratio", "Top-1 accuracy", r.top1);
      Set("fusor_eval_top5_ratio", "Top-5 accuracy", r.top5);
    }
    Set("fusor_eval_loss", "Loss of the evaluation", r.loss);
    Write();
  }

 private:
  struct Gauge {
    std::string help;
    double value = 0;
  };
  void Set(const char* name, const char* help, double value) {
    gauges_[name] = {help, value};
  }
  void Write() const {
    std::string text;
    for (const auto& [name, gauge] : gauges_) {
      text += fmt::format("# HELP {} {}\n# TYPE {} gauge\n{}{} {}\n", name,
                          gauge.help, name, name, label_, gauge.value);
    }
    WriteFileAtomically(path_, text, ErrorCode::kUsage);
  }

  const std::string path_;
  const TrainLogInfo info_;
  std::string label_;
  std::map<std::string, Gauge> gauges_;
};

}  // namespace

TrainLog::~TrainLog() = default;

std::unique_ptr<TrainLog> OpenJsonLines(const std::string& path,
                                        const TrainLogInfo& info) {
  return std::make_unique<JsonLines>(path, info);
}

std::unique_ptr<TrainLog> OpenPrometheus(const std::string& path,
                                         const TrainLogInfo& info) {
  return std::make_unique<Prometheus>(path, info);
}

}  // namespace fusor::runtime
