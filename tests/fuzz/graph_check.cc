#include "tests/fuzz/graph_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/fuzz/noisy_interpreter.h"
#include "tests/testing/bare_target.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::fuzz {
namespace {

using codegen::ProgramKind;
using inspect::TestCase;
using ir::Graph;
using ir::Tensor;
using ir::Value;

// Outputs of a run by name.
using Outputs = std::map<std::string, Tensor>;

// --- The reference ----------------------------------------------------------

// Returns the graph whose typed interpretation is correct: the model, with
// gradients and updates if it trains, in the precision of the options.
std::unique_ptr<Graph> Reference(const Graph& model, const Variant& variant,
                                 const ir::TargetQueries& target) {
  auto graph = model.Clone();
  passes::PassContext context(target, variant.compile.passes);
  passes::RunPipeline(*graph, context, passes::Stage::kForward);
  if (variant.kind == ProgramKind::kTrain) {
    passes::RunPipeline(*graph, context, passes::Stage::kTraining);
  }
  if (variant.compile.passes.precision.dtype != ir::DType::kF32) {
    const std::string names[] = {"drop_stop_gradient", "mask_pooled_gradient",
                                 "mixed_precision"};
    passes::RunPasses(*graph, context, names);
  }
  return graph;
}

// Returns the reference's inputs: those of the case, and values for inputs that
// passes added.
std::vector<Tensor> ReferenceInputs(const TestCase& test_case,
                                    const Graph& reference) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : reference.inputs()) {
    const Value* own = test_case.graph->FindInput(input.value->name());
    inputs.push_back(own != nullptr ? test_case.inputs[own->index()]
                                    : inspect::DrawInput(input, 1));
  }
  return inputs;
}

// --- Running ----------------------------------------------------------------

// Returns the outputs of the second of two runs, since the first leaves values
// in the arenas.
Outputs Run(const Graph& model, const Variant& variant, const Graph& reference,
            const std::vector<Tensor>& inputs) {
  runtime::Session session(runtime::LoadBackend("cpu"),
                           {.threads = variant.threads});
  runtime::Program& program =
      session.Compile(model.Clone(), variant.kind, variant.compile);
  for (int run = 0; run < 2; ++run) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = reference.input(i)->name();
      const auto bytes = ir::TensorBytes(inputs[i]);
      if (session.state().Has(name)) {
        session.state().WriteBytes(name, bytes);
      } else if (program.HasInput(name)) {
        program.SetInput(program.FindInput(name), bytes.data(), bytes.size());
      }
    }
    program.Run();
  }
  Outputs outputs;
  for (const ir::Output& output : reference.outputs()) {
    if (program.graph().FindOutput(output.name) < 0) continue;
    outputs[output.name] = program.Read(program.FindOutput(output.name));
  }
  return outputs;
}

// --- Comparing --------------------------------------------------------------

// Sets `may_spread` like NoisyOutputs.
std::string CompareWithInterpreter(const Graph& reference,
                                   const std::vector<Tensor>& inputs,
                                   const Outputs& actual, bool& skipped,
                                   bool& may_spread) {
  // A failure must be confirmed by more samples: with more noise, and with so
  // little that values which may be equal are equal in some.
  std::string message;
  for (const NoiseOptions& noise :
       {NoiseOptions{1, 6, 2}, NoiseOptions{101, 60, 8},
        NoiseOptions{1001, 600, 2}}) {
    const NoisyOutputs expected = InterpretNoisy(reference, inputs, noise);
    may_spread = expected.may_spread;
    if (expected.overflow) {
      skipped = true;
      return "";
    }
    message.clear();
    for (size_t i = 0; i < reference.outputs().size(); ++i) {
      const std::string& name = reference.outputs()[i].name;
      const auto it = actual.find(name);
      if (it == actual.end()) continue;
      if (auto mismatch = Mismatch(expected, i, it->second)) {
        message = fmt::format("interpreter: output {}: {}", name, *mismatch);
        break;
      }
    }
    if (message.empty()) break;
  }
  return message;
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.data.size() == b.data.size() &&
         std::equal(a.data.begin(), a.data.end(), b.data.begin(),
                    [](double x, double y) {
                      return std::bit_cast<uint64_t>(x) ==
                                 std::bit_cast<uint64_t>(y) ||
                             (std::isnan(x) && std::isnan(y));
                    });
}

// With eager rounding, outputs must be bit-identical with fusion on and off.
std::string CompareFusion(const TestCase& test_case, const Variant& variant,
                          const Graph& reference,
                          const std::vector<Tensor>& inputs) {
  Variant eager = variant;
  eager.compile.passes.eager_rounding = true;
  eager.compile.passes.disabled.clear();
  eager.compile.passes.fusion = true;
  const Outputs on = Run(*test_case.graph, eager, reference, inputs);
  eager.compile.passes.fusion = false;
  const Outputs off = Run(*test_case.graph, eager, reference, inputs);
  for (const auto& [name, tensor] : on) {
    const Tensor& other = off.at(name);
    if (SameBits(tensor, other)) continue;
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      if (tensor.data[i] == other.data[i]) continue;
      return fmt::format(
          "eager rounding: output {}: element {} of {}: {} with fusion, {} "
          "without",
          name, i, tensor.data.size(), tensor.data[i], other.data[i]);
    }
  }
  return "";
}

// --- Numeric gradients ------------------------------------------------------

bool HasOp(const Graph& graph, std::string_view op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const auto& node) { return node->op_name() == op; });
}

double Loss(const Graph& graph, std::span<const Tensor> inputs) {
  return ir::Interpret(graph, inputs,
                       ir::EvalMode::kExact)[static_cast<size_t>(
                                                 graph.FindOutput("loss"))]
      .data[0];
}

// Compares the derivative of the loss along a random direction of all weights,
// in fp64, with the central difference. Skips losses with a kink. A kink nearby
// shows in a difference between two step widths. At a kink, such as equal
// values in a max-pooling window, the slopes of both sides differ, and a
// smaller step does not help.
std::string CompareGradients(const TestCase& test_case) {
  const Graph& model = *test_case.graph;
  // Differentiation treats it as a constant, but the difference does not.
  if (HasOp(model, "stop_gradient")) return "";
  Variant plain;
  plain.kind = ProgramKind::kTrain;
  plain.compile.passes.keep_gradients = true;
  const test::BareTarget target;
  const auto training = Reference(model, plain, target);
  const auto gradients = ir::Interpret(
      *training, ReferenceInputs(test_case, *training), ir::EvalMode::kExact);
  std::vector<Tensor> direction = test_case.inputs;
  double analytic = 0;
  double magnitude = 0;
  for (size_t i = 0; i < direction.size(); ++i) {
    const int output = training->FindOutput("grad/" + model.input(i)->name());
    for (size_t k = 0; k < direction[i].data.size(); ++k) {
      double& v = direction[i].data[k];
      v = output < 0 ? 0 : 2.0 * RandomUniform(i, 0, 0, 0, k) - 1;
      if (output < 0) continue;
      const double term = v * gradients[static_cast<size_t>(output)].data[k];
      analytic += term;
      magnitude += std::fabs(term);
    }
  }
  if (!std::isfinite(analytic)) return "";  // a product with a zero factor
  const double here = Loss(model, test_case.inputs);
  const auto slope = [&](double step) {
    std::vector<Tensor> moved = test_case.inputs;
    for (size_t i = 0; i < moved.size(); ++i) {
      for (size_t k = 0; k < moved[i].data.size(); ++k) {
        moved[i].data[k] += step * direction[i].data[k];
      }
    }
    return (Loss(model, moved) - here) / step;
  };
  const double coarse_right = slope(1e-5), coarse_left = slope(-1e-5);
  const double fine_right = slope(2e-6), fine_left = slope(-2e-6);
  const double coarse = (coarse_right + coarse_left) / 2;
  const double fine = (fine_right + fine_left) / 2;
  const double tolerance = 1e-4 * (magnitude + std::fabs(fine)) + 1e-7;
  const double bend = std::fabs(fine_right - fine_left);
  const bool smooth = std::fabs(coarse - fine) <= 0.1 * tolerance &&
                      (bend <= 0.1 * tolerance ||
                       bend <= 0.5 * std::fabs(coarse_right - coarse_left));
  if (!smooth || std::fabs(fine - analytic) <= tolerance) return "";
  return fmt::format(
      "gradient: derivative along a direction is {}, by differences {}",
      analytic, fine);
}

}  // namespace

Finding CheckCase(const TestCase& test_case, const Variant& variant) {
  Finding finding;
  runtime::Backend& backend = runtime::LoadBackend("cpu");
  const auto compiler =
      backend.CreateCompiler("", {.threads = variant.threads});
  const Graph& model = *test_case.graph;
  const auto reference = Reference(model, variant, *compiler);
  const std::vector<Tensor> inputs = ReferenceInputs(test_case, *reference);
  const Outputs actual = Run(model, variant, *reference, inputs);
  bool may_spread = false;
  finding.message = CompareWithInterpreter(*reference, inputs, actual,
                                           finding.skipped, may_spread);
  // A library may spread NaN in only one of the two programs.
  if (finding.message.empty() && variant.rounding && !may_spread) {
    finding.message = CompareFusion(test_case, variant, *reference, inputs);
  }
  if (finding.message.empty() && variant.gradients) {
    finding.message = CompareGradients(test_case);
  }
  return finding;
}

}  // namespace fusor::fuzz
