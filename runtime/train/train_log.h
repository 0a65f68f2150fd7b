#pragma once

// Training logs in formats that other tools read.

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/train/training_loop.h"

namespace fusor::runtime {

// A file written line by line and flushed after each write. Failures throw
// kUsage with the system's error message.
class LogFile {
 public:
  // Truncates the file unless `append` is set.
  LogFile(const std::string& path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void Write(std::string_view bytes);

 private:
  const std::string path_;
  std::FILE* file_;
};

// Returns seconds since 1970.
double WallSeconds();
// Formats local time as "2020-09-15 14:29:13.473765".
std::string Timestamp(double wall_seconds);

struct TrainLogInfo {
  std::map<std::string, std::string> parameters;  // of the run, by name
  int64_t steps_per_epoch = 1;
  int64_t batch_size = 1;  // images per step, all ranks
  int64_t start = 0;       // steps done before this run
};

// A log. Throws kUsage with the file's name if it cannot be written.
class TrainLog {
 public:
  virtual ~TrainLog();
  virtual void Step(const StepReport&) {}
  virtual void Interval(const IntervalReport&) {}
  virtual void Evaluated(int64_t epoch, const EvalReport&) { (void)epoch; }
  // Called at the end of a run, unless an error ends it.
  virtual void End(const TrainReport&) {}
};

// NVIDIA DLLogger's JSON format ("DLLL {...}" lines), with the keys of its
// ResNet-50 script. A resumed run is appended.
std::unique_ptr<TrainLog> OpenRaport(const std::string& path,
                                     const TrainLogInfo& info);

// One JSON object per line: "start", each "step", "evaluation", "end". Losses
// have full precision. A resumed run is appended, after removing the lines of
// steps that it repeats.
std::unique_ptr<TrainLog> OpenJsonLines(const std::string& path,
                                        const TrainLogInfo& info);

// A new TensorBoard event file in the folder: scalars of each interval and
// evaluation.
std::unique_ptr<TrainLog> OpenTensorBoard(const std::string& folder,
                                          const TrainLogInfo& info);

// Gauges in Prometheus text format, for node exporter's textfile collector. The
// file is replaced at each interval.
std::unique_ptr<TrainLog> OpenPrometheus(const std::string& path,
                                         const TrainLogInfo& info);

// Formats lines as NVIDIA DLLogger does on stdout, without line ends.
std::string DllParameters(const TrainLogInfo& info);
std::string DllInterval(const TrainLogInfo& info, const IntervalReport& report);
std::string DllEvaluation(int64_t epoch, const EvalReport& report);
std::string DllSummary(const TrainReport& report);

}  // namespace fusor::runtime
