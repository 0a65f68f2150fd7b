#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "runtime/train/train_log.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/output/terminal.h"
#include "tools/inspect/observers/run_timeline.h"

namespace fusor::tools {

// Shares of a step's time; they add up to 1.
struct ProfileShares {
  double matrix = 0;   // convolutions and matmuls
  double kernels = 0;  // other generated kernels
  double other = 0;    // other library calls
};

// Profiles one step per call. It is a real step: state changes.
ProfileShares MeasureShares(runtime::Program& program);

// The output of `fusor train`.

// Return lines including their newlines.
std::string IntervalLine(const runtime::IntervalReport& report);
// Returns "top1 PERCENT %  top5 PERCENT %  loss LOSS", without the accuracy if
// there is none.
std::string EvaluationText(const runtime::EvalReport& report);
std::string EvaluationLine(int64_t epoch, const runtime::EvalReport& report);
// Without shares, omits the line about the step's time.
std::string SummaryLines(const runtime::TrainReport& report,
                         const std::optional<ProfileShares>& shares);

// Return the keys of the README's table, without those of the program.
nlohmann::json EvaluationJson(const runtime::EvalReport& report);
nlohmann::json TrainingJson(const runtime::TrainReport& report);

struct LogFlags {
  std::string format = "text";  // of stdout: text or dll
  std::string raport;
  std::string json_lines;
  std::string tensorboard;  // folder
  std::string prometheus;
};
void AddLogFlags(CLI::App& app, LogFlags& flags);

// Writes all logs of a training run, and text lines to `text`. If a log cannot
// be written, warns and closes that log; the run continues.
class TrainLogs {
 public:
  // `workspace`: base of a relative --raport-file, as in NVIDIA's script.
  TrainLogs(const LogFlags& flags, const std::string& workspace, FILE* text);
  ~TrainLogs();
  TrainLogs(const TrainLogs&) = delete;
  TrainLogs& operator=(const TrainLogs&) = delete;

  // Throws kUsage if a log file cannot be written. Call before training.
  void Check() const;
  void Open(const runtime::TrainLogInfo& info);
  // Sets the callbacks that the logs need. Shows progress on a terminal.
  void Watch(runtime::TrainObserver& observer);
  void End(const runtime::TrainReport& report);
  // Throws the first failure of a log. Call after results are saved.
  void Finish() const;

 private:
  void Print(const std::string& line);
  void Warn(const std::string& text);
  template <typename Call>
  void ForEach(Call call);

  const LogFlags& flags_;
  const std::string raport_;
  FILE* const text_;
  runtime::TrainLogInfo info_;
  std::vector<std::unique_ptr<runtime::TrainLog>> logs_;
  std::string failure_;
  std::optional<Progress> training_;
};

}  // namespace fusor::tools
