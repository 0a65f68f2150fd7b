// Every op of the registry, in every dtype that it accepts, compiled for the
// CPU and run as a program of its own: generated kernels for what fusion takes,
// library calls for the rest.

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tests/testing/numeric.h"
#include "tests/testing/op_samples.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::FusionKind;
using ir::Tensor;
using runtime::Session;

// Of the largest element: some units in the last place of its dtype.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-14;
    case DType::kF32:
      return 2e-6;
    case DType::kF16:
      return 2e-3;
    case DType::kBF16:
      return 1e-2;
    default:
      return 0;
  }
}

std::unique_ptr<ir::Graph> OneOp(std::string_view op, const ir::Attrs& attrs,
                                 const std::vector<Tensor>& operands) {
  auto graph = std::make_unique<ir::Graph>("one");
  std::vector<ir::Value*> values;
  for (const Tensor& operand : operands) {
    values.push_back(graph->AddInput(operand.type, ir::InputRole::kData, "x"));
  }
  const ir::Node* node = graph->AddNode(op, values, attrs);
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    graph->AddOutput(node->output(i), "y" + std::to_string(i));
  }
  return graph;
}

// What should have run the op.
void ExpectRunBy(const ir::OpDef& op, const codegen::Plan& plan) {
  const auto count = [&](codegen::StepKind kind) {
    return std::count_if(
        plan.steps.begin(), plan.steps.end(),
        [&](const codegen::Step& step) { return step.kind == kind; });
  };
  switch (op.fusion) {
    case FusionKind::kElementwise:
    case FusionKind::kIndexed:
    case FusionKind::kReduce:
    case FusionKind::kSeparate:
      // Only differentiation looks at a stop_gradient.
      if (op.name == "stop_gradient") return;
      EXPECT_EQ(count(codegen::StepKind::kLaunch), 1);
      return;
    case FusionKind::kLibrary:
      EXPECT_EQ(count(codegen::StepKind::kLibrary), 1);
      return;
    case FusionKind::kInjective:
    case FusionKind::kSource:
    case FusionKind::kOpaque:
      return;
  }
}

// Normalisations keep their statistics in the dtype of their parameters, which
// may be coarser than that of the result.
double ToleranceOf(const ir::OpDef& op, const std::vector<Tensor>& operands,
                   DType result) {
  double tolerance = Tolerance(result);
  if (op.fusion != FusionKind::kOpaque) return tolerance;
  for (const Tensor& operand : operands) {
    tolerance = std::max(tolerance, Tolerance(operand.type.dtype));
  }
  return tolerance;
}

void ExpectAgrees(Session& session, const ir::OpDef& op, const OpSample& sample,
                  DType dtype) {
  const std::vector<Tensor> operands = SampleOperands(sample, dtype);
  auto graph = OneOp(op.name, sample.attrs, operands);
  const std::vector<Tensor> expected =
      ir::Interpret(*graph, operands, ir::EvalMode::kTyped);
  codegen::CompileOptions options;
  options.verification = passes::Verification::kAll;
  options.passes.disabled = {"simplify"};  // it would fold some away
  runtime::Program& program =
      session.Compile(std::move(graph), codegen::ProgramKind::kEval, options);
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto bytes = ir::TensorBytes(operands[i]);
    program.SetInput(static_cast<int>(i), bytes.data(), bytes.size());
  }
  program.Run();
  ExpectRunBy(op, program.plan());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor actual = program.Read(static_cast<int>(i));
    ASSERT_EQ(actual.type.dtype, expected[i].type.dtype);
    ASSERT_EQ(actual.type.shape, expected[i].type.shape);
    EXPECT_LE(MaxRelativeError(actual, expected[i]),
              ToleranceOf(op, operands, actual.type.dtype))
        << "result " << i;
  }
}

class CpuEveryOp : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuEveryOp, AgreesWithTheInterpreterInEveryDtypeItAccepts) {
  const ir::OpDef& op = ir::GetOp(GetParam());
  const auto [first, last] = AllOpSamples().equal_range(GetParam());
  ASSERT_NE(first, last) << "no sample of " << GetParam();
  Session session(runtime::LoadBackend("cpu"), {});
  for (auto it = first; it != last; ++it) {
    for (const DType dtype : ir::kAllDTypes) {
      const std::set<DType>& dtypes = it->second.dtypes;
      if (!dtypes.empty() && !dtypes.contains(dtype)) continue;
      SCOPED_TRACE(DTypeName(dtype));
      ExpectAgrees(session, op, it->second, dtype);
      if (dtypes.empty()) break;  // the dtype plays no part
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const ir::OpDef* op : ir::AllOps()) {
    if (!op->has_body) names.emplace_back(op->name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, CpuEveryOp, ::testing::ValuesIn(Names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace fusor::test
