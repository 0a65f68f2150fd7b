#pragma once

// What every value of a running program looked like, a line each, so that two
// runs can be compared: the first value that differs is where to look.
//
// The file is JSON lines. The first is {"fusor_stats_trace":1, "program":NAME,
// "target":NAME}; then, in the order in which they were computed,
//   {"run":0, "step":3, "name":"relu_1", "op":"fusion",
//    "location":"layer1.0.bn1",
//    "source":"models/resnet.cc:37", "count":64, "min":0.0, "max":1.5,
//    "mean":0.7, "non_finite":0, "checksum":"0123456789abcdef"}
// The program's inputs come first, as step -1. min, max and mean are those of
// the finite elements, null where there is none; the checksum is that of the
// elements in logical order, whatever the layout.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "runtime/session.h"

namespace fusor::runtime {

struct TensorStats {
  int64_t count = 0;
  int64_t non_finite = 0;
  std::optional<double> min, max, mean;  // of the finite elements
  uint64_t checksum = 0;

  bool operator==(const TensorStats&) const = default;
};
TensorStats StatsOf(const ir::Tensor& tensor);

struct TraceEntry {
  int64_t run = 0;   // of the program, from 0
  int64_t step = 0;  // of the plan; -1: an input
  std::string name;  // of the value
  std::string op;    // op class of the step, "input" for inputs
  ir::Location location;
  TensorStats stats;

  bool operator==(const TraceEntry&) const = default;
};

struct Trace {
  std::string program;
  std::string target;
  std::vector<TraceEntry> entries;
};

// Hands out lines, header first, while a session runs one program.
class StatsTracer : public StepObserver {
 public:
  explicit StatsTracer(std::function<void(const std::string& line)> write)
      : write_(std::move(write)) {}

  void Before(const Session& session, int program, size_t step) override;
  void After(const Session& session, int program, size_t step) override;

 private:
  void Write(const TraceEntry& entry);

  std::function<void(const std::string&)> write_;
  int program_ = -1;  // the one that is traced: the first to run
  int64_t run_ = -1;
};

std::string TraceHeader(const std::string& program, const std::string& target);
std::string TraceLine(const TraceEntry& entry);

// Throws kUsage, naming `source` and the line, for anything else.
Trace ParseTrace(const std::string& text, const std::string& source);
// Reads a file; kUsage when that fails.
Trace ReadTrace(const std::string& path);

struct Divergence {
  // Of the first value, in the order of the first trace, that differs; empty
  // when none does.
  std::optional<TraceEntry> a, b;
  std::string what;       // "mean 0.5 and 0.7"
  int64_t values = 0;     // in both
  int64_t different = 0;  // of these
  int64_t only_a = 0, only_b = 0;
};

// Matches values by run and name. With tolerance 0 checksums decide; otherwise
// a value differs when its count of non-finite elements does, or its min, max
// or mean by more than tolerance times the largest magnitude of either trace's
// value. Throws kGraph for traces of different programs: of other names, with
// an input of another size, or without a common value.
Divergence FirstDivergence(const Trace& a, const Trace& b, double tolerance);

}  // namespace fusor::runtime
