#pragma once

// For every op of the registry, ways to apply it and the dtypes that it
// accepts: what tests of all ops run through. An op without a sample fails
// tests/ir/ops/registry_test.cc.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// One way to apply an op, with operands of the dtype under test, or of a fixed
// one.
struct SampleOperand {
  ir::Shape shape;
  std::optional<ir::DType> fixed = std::nullopt;
  double low = 0.25;  // positive, in the domain of log and sqrt
  double high = 1.75;
};

struct OpSample {
  std::vector<SampleOperand> operands;
  ir::Attrs attrs;
  // That it accepts; empty: it takes no operand of the dtype under test.
  std::set<ir::DType> dtypes;
};

// By op. All but `fusion`, which has its body's operands and results.
using OpSamples = std::multimap<std::string, OpSample, std::less<>>;
const OpSamples& AllOpSamples();

// Operands of the sample in `dtype` where they have none of their own; results
// of the op on them are finite.
std::vector<ir::Tensor> SampleOperands(const OpSample& sample, ir::DType dtype);

}  // namespace fusor::test
