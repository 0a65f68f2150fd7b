#pragma once

// Logs of a training run, in the forms that other tools read.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/train/training_loop.h"

namespace fusor::runtime {

struct TrainLogInfo {
  std::map<std::string, std::string> parameters;  // of the run, by name
  int64_t steps_per_epoch = 1;
  int64_t batch_size = 1;  // images a step, all ranks
  int64_t start = 0;       // steps done before this run
};

// One log. What cannot be written throws kUsage with the file's name.
class TrainLog {
 public:
  virtual ~TrainLog();
  virtual void Step(const StepReport&) {}
  virtual void Interval(const IntervalReport&) {}
  virtual void Evaluated(int64_t epoch, const EvalReport&) { (void)epoch; }
  // At the end of a run, however it ends.
  virtual void End(const TrainReport&) {}
};

// NVIDIA DLLogger's JSON form ("DLLL {...}" lines), with the keys of its
// ResNet-50 script. A run that is resumed is appended.
std::unique_ptr<TrainLog> OpenRaport(const std::string& path,
                                     const TrainLogInfo& info);

// One JSON object a line: "start", each "step", "evaluation", "end". Losses
// have all their digits. A run that is resumed is appended, after the lines of
// steps that it will do again have been dropped.
std::unique_ptr<TrainLog> OpenJsonLines(const std::string& path,
                                        const TrainLogInfo& info);

// A TensorBoard event file of its own in the folder: scalars of each interval
// and evaluation.
std::unique_ptr<TrainLog> OpenTensorBoard(const std::string& folder,
                                          const TrainLogInfo& info);

// Gauges in Prometheus' text form, for its node exporter's textfile collector;
// the file is replaced at each interval.
std::unique_ptr<TrainLog> OpenPrometheus(const std::string& path,
                                         const TrainLogInfo& info);

// Lines of NVIDIA DLLogger's stdout form, without their ends.
std::string DllParameters(const TrainLogInfo& info);
std::string DllInterval(const TrainLogInfo& info, const IntervalReport& report);
std::string DllEvaluation(int64_t epoch, const EvalReport& report);
std::string DllSummary(const TrainReport& report);

}  // namespace fusor::runtime
