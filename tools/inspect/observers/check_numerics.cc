#include "tools/inspect/observers/check_numerics.h"

#include <algorithm>
#include <cmath>

#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "runtime/program.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {
namespace {

using codegen::Plan;
using codegen::Step;
using codegen::StepKind;

bool AllFinite(const ir::Tensor& tensor) {
  return std::all_of(tensor.data.begin(), tensor.data.end(),
                     [](double x) { return std::isfinite(x); });
}

bool Overlap(const codegen::Buffer& a, const codegen::Buffer& b) {
  return a.arena == b.arena && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

// Returns the first op of `body` with a non-finite result and finite operands;
// null if there is none. Ignores constants, which may be infinite on purpose.
const ir::Node* FirstCulprit(const ir::Graph& body,
                             std::span<const ir::Tensor> operands) {
  const ir::Node* culprit = nullptr;
  std::vector<const ir::Value*> bad;
  ir::Interpret(
      body, operands, ir::EvalMode::kTyped,
      [&](const ir::Value& value, const ir::Tensor& tensor) {
        if (AllFinite(tensor)) return;
        bad.push_back(&value);
        const ir::Node* node = value.producer();
        if (culprit != nullptr || node == nullptr || node->num_inputs() == 0) {
          return;
        }
        const bool inherited = std::any_of(
            node->inputs().begin(), node->inputs().end(),
            [&](const ir::Value* input) {
              return std::find(bad.begin(), bad.end(), input) != bad.end();
            });
        if (!inherited) culprit = node;
      });
  return culprit;
}

std::string DescribeStep(const Plan& plan, const Step& step) {
  if (step.kind == StepKind::kLaunch) {
    return "kernel " + plan.kernels[step.index].kernel.name;
  }
  const codegen::LibraryCall& call = plan.calls[step.index];
  return std::string(call.op_name()) + " by " + call.implementation;
}

}  // namespace

std::string NonFinite::Describe() const {
  return fmt::format("run {}, {}", run, Finding());
}

std::string NonFinite::Finding() const {
  std::string text =
      fmt::format("{}{}: {} of {} elements of {} are not finite", what,
                  ir::AtLocation(location), elements, of, value);
  if (step >= 0) {
    text += op.empty() ? "; the interpreter computes finite ones from the same "
                         "operands: the generated code is wrong"
                       : fmt::format("; first by {} of {}{}", op, op_value,
                                     ir::AtLocation(op_location));
  }
  return snapshot.empty() ? text : text + "; see " + snapshot;
}

void NumericsChecker::Before(const runtime::Program& program, size_t step) {
  Runs& state = runs_[&program];
  if (step == 0) {
    ++state.run;
    if (!state.found) CheckInputs(program);
  }
  saved_.clear();
  if (state.found) return;
  // Save the operands that the step overwrites.
  const Plan& plan = program.plan();
  const StepValues values = ValuesOfStep(plan, plan.steps[step]);
  for (int operand : values.operands) {
    const bool lost = std::any_of(
        values.results.begin(), values.results.end(), [&](int result) {
          return Overlap(plan.buffers[operand], plan.buffers[result]);
        });
    saved_.push_back(lost ? program.ReadBuffer(operand) : Bytes{});
  }
}

void NumericsChecker::CheckInputs(const runtime::Program& program) {
  const Plan& plan = program.plan();
  for (const codegen::PlanInput& input : plan.inputs) {
    // Accumulators may hold stale values of earlier micro-batches.
    if (input.role == ir::InputRole::kAccumulator) continue;
    const ir::TensorType& type = plan.buffers[input.buffer].type;
    const int64_t bad = CountNonFinite(type, program.ReadBuffer(input.buffer));
    if (bad == 0) continue;
    NonFinite found{.run = runs_[&program].run,
                    .step = -1,
                    .what = "input " + input.name,
                    .value = input.name,
                    .elements = bad,
                    .of = type.num_elements()};
    return Report(std::move(found), runs_[&program]);
  }
}

void NumericsChecker::After(const runtime::Program& program, size_t step) {
  if (runs_[&program].found) return;
  const Plan& plan = program.plan();
  const Step& s = plan.steps[step];
  for (int result : ValuesOfStep(plan, s).results) {
    const codegen::Buffer& buffer = plan.buffers[result];
    const int64_t bad = CountNonFinite(buffer.type, program.ReadBuffer(result));
    if (bad == 0) continue;
    return Find(program, step,
                {.run = runs_[&program].run,
                 .step = static_cast<int64_t>(step),
                 .what = DescribeStep(plan, s),
                 .location = s.location,
                 .value = buffer.name,
                 .elements = bad,
                 .of = buffer.type.num_elements()});
  }
}

std::vector<ir::Tensor> NumericsChecker::Operands(
    const runtime::Program& program, size_t step) const {
  const Plan& plan = program.plan();
  const Step& s = plan.steps[step];
  const ir::Node& node = NodeOfStep(program.graph(), s);
  const std::vector<int> buffers = ValuesOfStep(plan, s).operands;
  std::vector<ir::Tensor> tensors;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Bytes bytes =
        saved_[i].empty() ? program.ReadBuffer(buffers[i]) : saved_[i];
    tensors.push_back(ir::LoadTensor(node.input(i)->type(), bytes));
  }
  return tensors;
}

void NumericsChecker::Find(const runtime::Program& program, size_t step,
                           NonFinite found) {
  const Plan& plan = program.plan();
  const Step& s = plan.steps[step];
  const ir::Node& node = NodeOfStep(program.graph(), s);
  const std::vector<ir::Tensor> operands = Operands(program, step);
  const auto graph = GraphOfNode(node);
  const ir::Graph* body = graph->nodes()[0]->body();
  // A library call is a single op.
  const ir::Node* culprit = s.kind == codegen::StepKind::kLibrary
                                ? graph->nodes()[0].get()
                                : FirstCulprit(*body, operands);
  if (culprit != nullptr) {
    found.op = std::string(culprit->op_name());
    found.op_value = culprit->output()->name();
    found.op_location = culprit->location();
  }
  if (!options_.snapshot_folder.empty()) {
    found.snapshot = fmt::format("{}/numerics_{}_{}", options_.snapshot_folder,
                                 plan.name, step);
    const std::vector<size_t> input_of = InputsOfOperands(node);
    std::vector<ir::Tensor> inputs(graph->inputs().size());
    for (size_t i = 0; i < operands.size(); ++i) {
      inputs[input_of[i]] = operands[i];
    }
    WriteSnapshot(found.snapshot, *graph, inputs);
  }
  Report(std::move(found), runs_[&program]);
}

void NumericsChecker::Report(NonFinite found, Runs& runs) {
  runs.found = true;
  if (options_.report) options_.report(found);
  FUSOR_CHECK(!options_.fail, kGraph, "{}", found.Describe());
}

std::string FindNonFinite(runtime::Session& session,
                          runtime::Program& program) {
  std::string found;
  NumericsOptions options;
  options.report = [&](const NonFinite& first) { found = first.Finding(); };
  NumericsChecker checker(std::move(options));
  session.Observe(&checker);
  program.Run();
  session.Observe(nullptr);
  return found;
}

}  // namespace fusor::inspect
