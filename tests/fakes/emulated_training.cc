#include "tests/fakes/emulated_training.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "ir/state_names.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/kernel_runner.h"
#include "tests/testing/library_call.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::Tensor;

EmulatedOptions Gpu(const EmulatedSetup& setup) {
  EmulatedOptions options;
  options.compiler =
      [whole =
           setup.whole_library]() -> std::unique_ptr<codegen::TargetCompiler> {
    if (!whole) return CudaPlanner("nvidia-h200");
    return std::make_unique<ChannelsLastCompiler>("nvidia-h200");
  };
  options.seed = setup.seed;
  options.world_size = setup.world_size;
  return options;
}

// Returns the Euclidean distance. An empty tensor counts as zeros.
double Distance(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double d = a.data[i] - (b.data.empty() ? 0 : b.data[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

// Describes the first element that differs, or returns "". NaN equals NaN.
std::string FirstDifference(const Tensor& actual, const Tensor& expected) {
  for (size_t i = 0; i < expected.data.size(); ++i) {
    const double a = actual.data[i], e = expected.data[i];
    if (std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(e) ||
        (std::isnan(a) && std::isnan(e))) {
      continue;
    }
    return fmt::format("[{}] is {}, expected {}", i, a, e);
  }
  return "";
}

bool IsNarrow(const ir::Value& value) {
  const DType dtype = value.type().dtype;
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

// Returns whether the fusion's kernel rounds exactly where the typed
// interpreter does: it has no reduction, and no op reads a 16-bit intermediate,
// which the kernel keeps unrounded.
bool RoundsAlike(const ir::Node& fusion) {
  for (const auto& node : fusion.body()->nodes()) {
    const ir::FusionKind kind = node->op().fusion;
    if (kind != ir::FusionKind::kElementwise &&
        kind != ir::FusionKind::kInjective &&
        kind != ir::FusionKind::kIndexed && kind != ir::FusionKind::kSource) {
      return false;
    }
    for (const ir::Value* operand : node->inputs()) {
      if (operand->producer() != nullptr && IsNarrow(*operand)) return false;
    }
  }
  return true;
}

// Returns the error of f32 sums whose terms cancel: the rounding error of one
// term, times sqrt(terms per sum), times the norm of the largest operand.
double CancellationOf(const ir::Node& fusion,
                      std::span<const Tensor* const> operands) {
  int64_t terms = 0;
  for (const auto& node : fusion.body()->nodes()) {
    if (node->op().fusion != ir::FusionKind::kReduce) continue;
    terms = std::max(terms, node->input(0)->type().num_elements() /
                                node->output()->type().num_elements());
  }
  double length = 0;
  for (const Tensor* operand : operands) {
    length = std::max(length, Distance(*operand, Tensor{}));
  }
  return 0x1p-24 * std::sqrt(static_cast<double>(terms)) * length;
}

// Describes the differences between the results of a fusion and the typed
// interpreter's.
std::vector<std::string> CompareWithTyped(
    const ir::Node& fusion, std::span<const Tensor* const> operands,
    std::span<const Tensor> results) {
  const auto typed = ir::InterpretNode(fusion, operands, ir::EvalMode::kTyped);
  const bool alike = RoundsAlike(fusion);
  std::vector<Tensor> exact;
  if (!alike) {
    exact = ir::InterpretNode(fusion, operands, ir::EvalMode::kExact);
  }
  const double cancelled = CancellationOf(fusion, operands);
  std::vector<std::string> problems;
  for (size_t i = 0; i < typed.size(); ++i) {
    const std::string name = fusion.output(i)->name();
    if (alike) {
      const std::string difference = FirstDifference(results[i], typed[i]);
      if (!difference.empty()) problems.push_back(name + difference);
      continue;
    }
    const double far = Distance(typed[i], exact[i]);
    const double length = Distance(exact[i], Tensor{});
    const double actual = Distance(results[i], exact[i]);
    if (actual <= 2 * far + 1e-6 * length + cancelled) continue;
    problems.push_back(fmt::format(
        "{}{} is off by {} of {}, the typed interpreter's by {}", name,
        ir::AtLocation(fusion.location()), actual, length, far));
  }
  return problems;
}

}  // namespace

EmulatedTraining::EmulatedTraining(const EmulatedSetup& setup)
    : setup_(setup),
      backend_(Gpu(setup)),
      communicator_(setup.world_size > 1 ? backend_.Connect() : nullptr),
      session_(backend_, {}, communicator_.get()) {
  const int64_t batch = setup.batch;
  data_[ir::kLearningRate] = MakeTensor({DType::kF32, {}, {}}, {0.01});
  data_["random_key"] = MakeTensor({DType::kI64, {}, {}}, {77});
  data_["step"] = MakeTensor({DType::kI32, {}, {}}, {3});
  data_["labels"] =
      RandomTensor({DType::kI32, {batch}, {}}, 3, 0, setup.classes);
  std::vector<double> weights(static_cast<size_t>(batch), 1);
  weights.back() = 0;
  data_["weights"] = MakeTensor({DType::kF32, {batch}, {}}, std::move(weights));
}

int EmulatedTraining::Add(std::unique_ptr<ir::Graph> graph,
                          codegen::ProgramKind kind,
                          std::unique_ptr<ir::Graph> alone) {
  if (const ir::Value* images = graph->FindInput("images")) {
    const bool bytes = images->type().dtype == DType::kU8;
    data_["images"] =
        RandomTensor(images->type(), 2, bytes ? 0 : -1, bytes ? 256 : 1);
  }
  codegen::CompileOptions options;
  options.verification = passes::Verification::kAll;
  options.passes = setup_.passes;
  options.passes.world_size = setup_.world_size;
  options.passes.keep_gradients = true;
  if (setup_.world_size > 1) {
    if (alone == nullptr) alone = graph->Clone();
    codegen::CompileOptions reference = options;
    reference.passes.world_size = 1;
    reference.plan_only = true;
    references_.push_back(
        Compile(std::move(alone), kind, session_.compiler(), reference).graph);
  }
  session_.Compile(std::move(graph), kind, options);
  const size_t programs = session_.programs().size();
  if (programs == 1) session_.state().Initialize(1);
  return static_cast<int>(programs) - 1;
}

void EmulatedTraining::Step(int index, double share) {
  // If all ranks have the same data, they compute what a single rank does.
  const bool alone = references_.empty();
  const std::vector<Tensor> inputs =
      Inputs(alone ? program(index).graph() : *references_[index]);
  const CallMemory memory;
  RunOnDevice(index);
  if (alone) {
    for (const std::string& problem : CompareWithKernels(index, inputs)) {
      ADD_FAILURE() << problem;
    }
  }
  if (share > 0) ExpectNear(index, inputs, share);
}

std::vector<std::string> EmulatedTraining::StepAndCompare(int index) {
  const std::vector<Tensor> inputs = Inputs(program(index).graph());
  const CallMemory memory;
  RunOnDevice(index);
  return CompareWithKernels(index, inputs);
}

std::vector<std::string> EmulatedTraining::CompareWithKernels(
    int index, const std::vector<Tensor>& inputs) {
  const ir::Graph& graph = program(index).graph();
  std::vector<std::string> problems;
  const auto expected = RunWithKernels(
      graph, inputs, session_.compiler().target(),
      [&](const ir::Node& fusion, std::span<const Tensor* const> operands,
          std::span<const Tensor> results) {
        for (auto& problem : CompareWithTyped(fusion, operands, results)) {
          problems.push_back(std::move(problem));
        }
      });
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string& name = graph.outputs()[i].name;
    const Tensor actual = program(index).Read(program(index).FindOutput(name));
    const std::string difference = FirstDifference(actual, expected[i]);
    if (!difference.empty()) problems.push_back(name + difference);
  }
  return problems;
}

void EmulatedTraining::ExpectNear(int index, const std::vector<Tensor>& inputs,
                                  double share) {
  const ir::Graph& graph =
      references_.empty() ? program(index).graph() : *references_[index];
  const auto typed = ir::Interpret(graph, inputs, ir::EvalMode::kTyped);
  const auto exact = ir::Interpret(graph, inputs, ir::EvalMode::kExact);
  for (size_t i = 0; i < typed.size(); ++i) {
    const std::string& name = graph.outputs()[i].name;
    // Its bias correction depends on the number of ranks.
    if (!references_.empty() && name.ends_with("running_var")) continue;
    const Tensor actual = program(index).Read(program(index).FindOutput(name));
    const double far = Distance(typed[i], exact[i]);
    const double length = Distance(exact[i], Tensor{});
    EXPECT_LE(Distance(actual, exact[i]), 10 * far + share * length)
        << name << ": the interpreter's is off by " << far << " of " << length;
    if (name == "loss") {
      EXPECT_NEAR(actual.data[0], typed[i].data[0],
                  share * std::abs(typed[i].data[0]));
    }
  }
}

std::vector<Tensor> EmulatedTraining::Inputs(const ir::Graph& graph) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const std::string& name = input.value->name();
    if (!IsState(input.role)) {
      inputs.push_back(data_.at(name));
      continue;
    }
    const std::vector<float> values = session_.state().Read(name);
    inputs.push_back({input.value->type(), {values.begin(), values.end()}});
  }
  return inputs;
}

void EmulatedTraining::RunOnDevice(int index) {
  for (const codegen::PlanInput& input : program(index).plan().inputs) {
    if (IsState(input.role)) continue;
    const std::vector<uint8_t> bytes = ir::TensorBytes(data_.at(input.name));
    program(index).SetInput(program(index).FindInput(input.name), bytes.data(),
                            bytes.size());
  }
  backend_.Expect(program(index).plan());
  program(index).Run();
}

}  // namespace fusor::test
