#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/train/train_log.h"
#include "tools/fusor/flags/flag_groups.h"
#include "tools/fusor/output/progress.h"

namespace fusor::tools {

struct LogFlags {
  std::string format = "text";  // of stdout: text or dll
  std::string raport;
  std::string json_lines;
  std::string tensorboard;  // folder
  std::string prometheus;
};
void AddLogFlags(CLI::App& app, LogFlags& flags);

// All logs of a training run, and the lines on `text`. A log that cannot be
// written is a warning and the end of that log; the run goes on.
class TrainLogs {
 public:
  // `workspace`: where a relative --raport-file goes, as in NVIDIA's script;
  // may be empty.
  TrainLogs(const LogFlags& flags, const std::string& workspace, FILE* text);
  ~TrainLogs();
  TrainLogs(const TrainLogs&) = delete;
  TrainLogs& operator=(const TrainLogs&) = delete;

  // Throws kUsage where a file could not be written, before the work.
  void Check() const;
  void Open(const runtime::TrainLogInfo& info);
  // Sets the callbacks that it has a use for. On a terminal the run's progress
  // is shown.
  void Watch(runtime::TrainObserver& observer);
  void End(const runtime::TrainReport& report);
  // Throws the first failure of a log, once what matters more is saved.
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
