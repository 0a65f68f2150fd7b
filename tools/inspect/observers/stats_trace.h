#pragma once

// Writes statistics of every value of a running program, one line per value, to
// compare two runs. The first value that differs shows where to look.
//
// The file is JSON lines. The first is {"fusor_stats_trace":1, "program":NAME,
// "target":NAME}. Then one line per value, in execution order:
//   {"run":0, "step":3, "name":"relu_1", "op":"fusion",
//    "location":"layer1.0.bn1",
//    "source":"models/resnet.cc:37", "count":64, "min":0.0, "max":1.5,
//    "mean":0.7, "non_finite":0, "checksum":"0123456789abcdef"}
// Program inputs come first, with step -1. min, max and mean are over the
// finite elements, null if there are none. The checksum is over the elements in
// logical order, independent of the layout.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "runtime/program.h"
#include "runtime/step_observer.h"

namespace fusor::inspect {

struct TensorStats {
  int64_t count = 0;
  int64_t non_finite = 0;
  std::optional<double> min, max, mean;  // of the finite elements
  uint64_t checksum = 0;

  bool operator==(const TensorStats&) const = default;
};
TensorStats StatsOf(const ir::Tensor& tensor);

struct TraceEntry {
  int64_t run = 0;   // number of the program's run, from 0
  int64_t step = 0;  // index in the plan; -1: an input
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

// Passes the header, then a line per value of one program, to `write`.
class StatsTracer : public runtime::StepObserver {
 public:
  explicit StatsTracer(std::function<void(const std::string& line)> write)
      : write_(std::move(write)) {}

  void Before(const runtime::Program& program, size_t step) override;
  void After(const runtime::Program& program, size_t step) override;

 private:
  void Write(const TraceEntry& entry);

  std::function<void(const std::string&)> write_;
  // The traced program: the first one that runs.
  const runtime::Program* program_ = nullptr;
  int64_t run_ = -1;
};

std::string TraceHeader(const std::string& program, const std::string& target);
std::string TraceLine(const TraceEntry& entry);

// Parses a trace. Throws kUsage with `source` and line if malformed.
Trace ParseTrace(const std::string& text, const std::string& source);
// Reads a trace file. Throws kUsage if it cannot be read or parsed.
Trace ReadTrace(const std::string& path);

struct Divergence {
  // The first differing value, in the first trace's order; empty: none.
  std::optional<TraceEntry> a, b;
  std::string what;       // "mean 0.5 and 0.7"
  int64_t values = 0;     // common to both traces
  int64_t different = 0;  // number of common values that differ
  int64_t only_a = 0, only_b = 0;
};

// Matches values by run and name. A value differs if its element count, its
// count of non-finite elements, or its min, max or mean differs by more than
// tolerance * largest magnitude in either trace. With tolerance 0 the checksums
// must be equal, too. Throws kGraph for traces of different programs: different
// names, an input of different sizes, or no common value.
Divergence FirstDivergence(const Trace& a, const Trace& b, double tolerance);

}  // namespace fusor::inspect
