#pragma once

// For every op of the registry, ways to apply it and the dtypes that it
// accepts. Tests of all ops iterate over them. An op without a sample fails
// tests/ir/ops/registry_test.cc.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// An operand of the dtype under test, or of a fixed dtype.
struct SampleOperand {
  ir::Shape shape;
  std::optional<ir::DType> fixed = std::nullopt;
  double low = 0.25;  // positive, in the domain of log and sqrt
  double high = 1.75;
};

struct OpSample {
  std::vector<SampleOperand> operands;
  ir::Attrs attrs;
  // The dtypes that the op accepts. Empty if no operand has the dtype under
  // test.
  std::set<ir::DType> dtypes;
};

// Samples by op. `fusion` has none: its body determines its operands.
using OpSamples = std::multimap<std::string, OpSample, std::less<>>;
const OpSamples& AllOpSamples();

// Draws operands of the sample, in `dtype` unless their dtype is fixed. The
// op's results on them are finite.
std::vector<ir::Tensor> SampleOperands(const OpSample& sample, ir::DType dtype);

}  // namespace fusor::test
