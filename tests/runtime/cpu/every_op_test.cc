// Compiles every op of the registry for the CPU in every dtype that it accepts,
// and runs it as a program: a generated kernel if fusion supports the op,
// otherwise a library call.

#include <fmt/core.h>
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

// Returns the tolerance relative to the largest element: a few units in the
// last place of `dtype`.
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

// Checks that the plan runs the op by the expected kind of step.
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
      // stop_gradient only matters to autodiff.
      if (op.name == "stop_gradient") return;
      EXPECT_EQ(count(codegen::StepKind::kLaunch), 1);
      return;
    case FusionKind::kLibrary: {
      // Copies to other layouts may surround it.
      const auto calls = std::count_if(
          plan.steps.begin(), plan.steps.end(), [&](const codegen::Step& step) {
            return step.kind == codegen::StepKind::kLibrary &&
                   plan.calls[static_cast<size_t>(step.index)].op == op.kind;
          });
      EXPECT_EQ(calls + (op.kind == ir::OpKind::kCopy
                             ? count(codegen::StepKind::kLaunch)
                             : 0),
                1);
      return;
    }
    case FusionKind::kInjective:
    case FusionKind::kSource:
    case FusionKind::kOpaque:
      return;
  }
}

// Returns the tolerance of an op. Normalisations keep statistics in the dtype
// of their parameters, which may be less precise than the result's.
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
  options.passes.disabled = {"simplify"};  // it would fold some ops
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
      if (dtypes.empty()) break;  // no operand has the dtype
    }
  }
}

// x in one layout, and a copy of it in another layout and dtype.
std::unique_ptr<ir::Graph> TwoCopies(const ir::TensorType& type,
                                     const std::string& from,
                                     const std::string& to, DType dtype) {
  auto graph = std::make_unique<ir::Graph>("copies");
  ir::Value* x = graph->AddInput(type, ir::InputRole::kData, "x");
  const ir::Node* first = graph->AddNode("copy", {x}, {{"layout", from}});
  const ir::Node* second = graph->AddNode(
      "copy", {first->output()},
      {{"layout", to}, {"result_dtype", std::string(DTypeName(dtype))}});
  graph->AddOutput(second->output(), "y");
  return graph;
}

TEST(CpuCopies, AreExactAndNeverOneElementAtATime) {
  Session session(runtime::LoadBackend("cpu"), {});
  const std::string layouts[] = {"abcd", "acdb", "aBcd8b", "ABcd8b8a",
                                 "ABcd8b16a2b"};
  codegen::CompileOptions options;
  options.verification = passes::Verification::kAll;
  options.passes.disabled = {"simplify"};
  for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (size_t i = 0; i < std::size(layouts); ++i) {
        const std::string& layout = layouts[(i + 2) % std::size(layouts)];
        SCOPED_TRACE(fmt::format("{} {} to {} {}", DTypeName(from), layouts[i],
                                 DTypeName(to), layout));
        const Tensor x = RandomTensor({from, {32, 16, 3, 5}, {}}, 3, -9, 9);
        auto graph = TwoCopies(x.type, layouts[i], layout, to);
        const Tensor expected =
            ir::Interpret(*graph, std::vector{x}, ir::EvalMode::kTyped)[0];
        runtime::Program& program = session.Compile(
            std::move(graph), codegen::ProgramKind::kEval, options);
        for (const codegen::LibraryCall& call : program.plan().calls) {
          // oneDNN has one name for a copy of all bytes and for a slow loop.
          if (call.operands[0] != call.results[0]) {
            EXPECT_NE(call.implementation, "simple:any");
          }
          EXPECT_NE(call.implementation, "reference");
        }
        const auto bytes = ir::TensorBytes(x);
        program.SetInput(0, bytes.data(), bytes.size());
        program.Run();
        EXPECT_EQ(program.Read(0).data, expected.data);
      }
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
