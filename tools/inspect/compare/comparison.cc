#include "tools/inspect/compare/comparison.h"

#include <fmt/core.h>

#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "ir/shard.h"
#include "ir/weight_copy.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {

const codegen::Plan& VariantRun::plan() const {
  return session == nullptr ? planned.plan : timed->plan();
}

const ir::Graph& VariantRun::graph() const {
  return session == nullptr ? *planned.graph : timed->graph();
}

const codegen::CompileReport& VariantRun::report() const {
  return session == nullptr ? planned.report : timed->report();
}

const codegen::TargetCompiler& VariantRun::compiler() const {
  return session == nullptr ? *planner : session->compiler();
}

std::string_view ValueKindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kOutput:
      return "output";
    case ValueKind::kState:
      return "state";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kIntermediate:
      return "intermediate";
  }
  return "";
}

namespace {

using codegen::ArenaKind;
using codegen::Plan;
using codegen::Step;
using codegen::StepKind;

struct Captured {
  ir::TensorType type;
  std::vector<uint8_t> bytes;
  bool backward = false;  // computed by the backward pass
};

ir::DType WiderOf(ir::DType a, ir::DType b) {
  return ir::DTypeSize(a) > ir::DTypeSize(b) ? a : b;
}

// Compares two values. A value narrowed by mixed precision is compared in the
// wider dtype, which represents all its values. Returns nullopt if shapes
// differ, or for f16 against bf16.
std::optional<TensorDifference> Between(const Captured& a, const Captured& b) {
  if (a.type.shape != b.type.shape) return std::nullopt;
  if (a.type.dtype == b.type.dtype) {
    return Difference(a.type, a.bytes.data(), b.type, b.bytes.data());
  }
  const ir::DType wide = WiderOf(a.type.dtype, b.type.dtype);
  if (!IsFloat(a.type.dtype) || !IsFloat(b.type.dtype) ||
      ir::DTypeSize(wide) < ir::DTypeSize(ir::DType::kF32)) {
    return std::nullopt;
  }
  ir::Tensor x = ir::LoadTensor(a.type, a.bytes.data());
  ir::Tensor y = ir::LoadTensor(b.type, b.bytes.data());
  x.type = y.type = {wide, a.type.shape, {}};
  return Difference(x, y);
}

// Compares with the loss scales undone. Most values of the backward pass are
// gradients, which carry the loss scale. The others are copied or recomputed
// forward values. Tries both and keeps the smaller difference; the other one is
// off by the ratio of the scales.
std::optional<TensorDifference> BetweenScaled(const Captured& a,
                                              const Captured& b, double scale) {
  const auto plain = Between(a, b);
  if (!plain.has_value() || plain->bit_identical() || scale == 1 ||
      !a.backward || !b.backward || !IsFloat(a.type.dtype)) {
    return plain;
  }
  ir::Tensor x = ir::LoadTensor(a.type, a.bytes.data());
  ir::Tensor y = ir::LoadTensor(b.type, b.bytes.data());
  for (double& element : y.data) element *= scale;
  x.type = y.type = {WiderOf(a.type.dtype, b.type.dtype), a.type.shape, {}};
  const TensorDifference unscaled = Difference(x, y);
  return unscaled.relative < plain->relative ? unscaled : plain;
}

// Returns the steps of library calls by "location op", without names that occur
// twice. Skips copies, which depend on the layouts of a variant.
std::map<std::string, size_t> NamedCalls(const Plan& plan) {
  std::map<std::string, size_t> calls;
  std::set<std::string> repeated;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (step.kind != StepKind::kLibrary || step.location.path.empty()) continue;
    const codegen::LibraryCall& call = plan.calls[step.index];
    if (call.op == ir::OpKind::kCopy) continue;
    const std::string name =
        fmt::format("{} {}", step.location.path, call.op_name());
    if (!calls.emplace(name, s).second) repeated.insert(name);
  }
  for (const std::string& name : repeated) calls.erase(name);
  return calls;
}

// Returns whether two calls compute the same result from the same operands. The
// algorithm may differ, but not e.g. a fused ReLU.
bool SameWork(const Plan& plan_a, size_t step_a, const Plan& plan_b,
              size_t step_b) {
  const auto work = [](const Plan& plan, size_t step) {
    const codegen::LibraryCall& call = plan.calls[plan.steps[step].index];
    ir::Attrs attrs = call.attrs;
    if (call.HasTrait(ir::OpTrait::kConvolution)) {
      attrs.Set("algorithm", std::string());
    }
    return std::pair(attrs, call.body ? ir::FusedOps(*call.body) : "");
  };
  return work(plan_a, step_a) == work(plan_b, step_b);
}

// Runs one of the two programs step by step and captures the values to compare.
class Side {
 public:
  explicit Side(runtime::Program& program)
      : program_(program), plan_(program.plan()) {
    const ir::Graph& graph = program.graph();
    const std::vector<StepPhase> phases = PhasesOf(graph);
    for (size_t i = 0; i < phases.size(); ++i) {
      if (phases[i] == StepPhase::kForward) continue;
      const ir::Node& node = *graph.nodes()[i];
      for (size_t r = 0; r < node.num_outputs(); ++r) {
        backward_.insert(node.output(r)->name());
      }
    }
  }

  // `results`: whether the call's results are comparable as well.
  void Expect(size_t step, const std::string& name, bool results) {
    calls_[step] = {name, results};
  }

  bool done() const { return next_ == plan_.steps.size(); }
  size_t captured() const { return captured_; }

  // Runs the next step. Calls `found(name, value, tensor)` per captured value.
  template <typename Found>
  void Advance(const Found& found) {
    const auto call = calls_.find(next_);
    if (call != calls_.end()) Capture(call->second.name, false, found);
    program_.RunStep(next_);
    if (call != calls_.end() && call->second.results) {
      Capture(call->second.name, true, found);
    }
    ++next_;
  }

 private:
  template <typename Found>
  void Capture(const std::string& name, bool results, const Found& found) {
    const Step& step = plan_.steps[next_];
    const codegen::LibraryCall& call = plan_.calls[step.index];
    const size_t first = results ? call.operands.size() : 0;
    const size_t count = results ? call.results.size() : call.operands.size();
    for (size_t i = 0; i < count; ++i) {
      const int buffer = step.args[first + i];
      const ArenaKind kind = plan_.arenas[plan_.buffers[buffer].arena].kind;
      if (kind != ArenaKind::kTemporary && kind != ArenaKind::kOutput) continue;
      ++captured_;
      const std::string& value = plan_.buffers[buffer].name;
      Captured tensor{plan_.buffers[buffer].type, program_.ReadBuffer(buffer),
                      backward_.contains(value)};
      found(fmt::format("{} {}{}", name, results ? "result" : "operand",
                        count == 1 ? "" : fmt::format(" {}", i)),
            value, std::move(tensor));
    }
  }

  runtime::Program& program_;
  const Plan& plan_;
  std::set<std::string> backward_;  // values of the backward pass
  struct Call {
    std::string name;
    bool results;
  };
  std::unordered_map<size_t, Call> calls_;
  size_t next_ = 0;
  size_t captured_ = 0;
};

}  // namespace

CallDifferences StepTogether(runtime::Program& a, runtime::Program& b,
                             double scale) {
  const auto calls_a = NamedCalls(a.plan());
  const auto calls_b = NamedCalls(b.plan());
  CallDifferences result;
  Side side_a(a), side_b(b);
  for (const auto& [name, step] : calls_a) {
    const auto other = calls_b.find(name);
    if (other == calls_b.end()) {
      ++result.unmatched;
      continue;
    }
    const bool same = SameWork(a.plan(), step, b.plan(), other->second);
    side_a.Expect(step, name, same);
    side_b.Expect(other->second, name, same);
  }
  for (const auto& [name, step] : calls_b) {
    result.unmatched += calls_a.contains(name) ? 0 : 1;
  }
  std::map<std::string, Captured> waiting_a, waiting_b;
  std::set<std::string> seen;  // value names of `a`
  const auto compare = [&](const std::string& name, const Captured& x,
                           const Captured& y) {
    const auto difference = BetweenScaled(x, y, scale);
    if (!difference.has_value()) {
      ++result.unmatched;
      return;
    }
    result.values.push_back({ValueKind::kIntermediate, name, *difference});
  };
  std::set<std::string> skipped;
  const auto from_a = [&](const std::string& name, const std::string& value,
                          Captured tensor) {
    if (!seen.insert(value).second) {
      skipped.insert(name);
      waiting_b.erase(name);
      return;
    }
    const auto it = waiting_b.find(name);
    if (it == waiting_b.end()) {
      waiting_a.emplace(name, std::move(tensor));
      return;
    }
    compare(name, tensor, it->second);
    waiting_b.erase(it);
  };
  const auto from_b = [&](const std::string& name, const std::string&,
                          Captured tensor) {
    if (skipped.contains(name)) return;
    const auto it = waiting_a.find(name);
    if (it == waiting_a.end()) {
      waiting_b.emplace(name, std::move(tensor));
      return;
    }
    compare(name, it->second, tensor);
    waiting_a.erase(it);
  };
  // Advance the program with fewer captured values, so that few values wait.
  while (!side_a.done() || !side_b.done()) {
    const bool a_next =
        side_b.done() ||
        (!side_a.done() && side_a.captured() <= side_b.captured());
    if (a_next) {
      side_a.Advance(from_a);
    } else {
      side_b.Advance(from_b);
    }
  }
  return result;
}

namespace {

using codegen::PlanOutput;

constexpr std::string_view kGradientPrefix = "grad/";

bool IsGradient(const PlanOutput& output) {
  return output.name.starts_with(kGradientPrefix);
}

// Reads the outputs of one program.
class OutputSide {
 public:
  OutputSide(runtime::Session& session, runtime::Program& program)
      : session_(session), program_(program) {}

  // Returns the outputs to compare, in the plan's order.
  std::vector<const PlanOutput*> Outputs(bool gradients) const {
    std::vector<const PlanOutput*> outputs;
    for (const PlanOutput& output : program_.plan().outputs) {
      if (IsGradient(output) == gradients && IsCompared(output)) {
        outputs.push_back(&output);
      }
    }
    return outputs;
  }

  // Returns the output's name; for a shard, the parameter's name.
  std::string NameOf(const PlanOutput& output) const {
    const bool part =
        output.alias >= 0 && session_.state().IsParameterShard(output.name);
    return part ? output.name.substr(ir::ShardName("").size()) : output.name;
  }

  const PlanOutput* Find(const std::string& name) const {
    for (const PlanOutput& output : program_.plan().outputs) {
      if (IsCompared(output) && NameOf(output) == name) return &output;
    }
    return nullptr;
  }

  // A tensor, gathered from all ranks if it is sharded.
  struct Whole {
    ir::TensorType type;
    std::vector<uint8_t> bytes;
  };
  Whole Read(const PlanOutput& output) const {
    const codegen::Buffer& buffer = program_.plan().buffers[output.buffer];
    Whole whole{buffer.type, program_.ReadBuffer(output.buffer)};
    const std::optional<ir::TensorType> parts = PartsType(output);
    if (!parts.has_value()) return whole;
    whole.type = {buffer.type.dtype, parts->shape, parts->layout};
    whole.bytes = session_.AllGather(whole.bytes);
    whole.bytes.resize(static_cast<size_t>(whole.type.num_bytes()));
    return whole;
  }

 private:
  // Skips weight copies, and parameters that have shards.
  bool IsCompared(const PlanOutput& output) const {
    if (ir::ParseWeightCopyName(output.name).has_value()) return false;
    return output.alias < 0 || !session_.state().IsSharded(output.name);
  }

  // Returns the type of a sharded tensor; nullopt if it is not sharded.
  std::optional<ir::TensorType> PartsType(const PlanOutput& output) const {
    std::string part = output.name;
    if (IsGradient(output)) {
      part = ir::ShardName(output.name.substr(kGradientPrefix.size()));
      if (!session_.state().Has(part)) return {};
    } else if (output.alias < 0 || !session_.state().IsShard(part)) {
      return {};
    }
    return session_.state().GatheredType(part);
  }

  runtime::Session& session_;
  const runtime::Program& program_;
};

}  // namespace

OutputDifferences CompareOutputs(runtime::Session& a,
                                 runtime::Program& program_a,
                                 runtime::Session& b,
                                 runtime::Program& program_b, bool gradients) {
  const OutputSide side_a(a, program_a), side_b(b, program_b);
  OutputDifferences result;
  std::vector<ValueDifference> states;
  for (const PlanOutput* output : side_a.Outputs(gradients)) {
    const std::string name = side_a.NameOf(*output);
    const PlanOutput* other = side_b.Find(name);
    if (other == nullptr) {
      ++result.unmatched;
      continue;
    }
    const OutputSide::Whole x = side_a.Read(*output);
    const OutputSide::Whole y = side_b.Read(*other);
    if (x.type.dtype != y.type.dtype || x.type.shape != y.type.shape) {
      ++result.unmatched;
      continue;
    }
    const ValueKind kind = gradients            ? ValueKind::kGradient
                           : output->alias >= 0 ? ValueKind::kState
                                                : ValueKind::kOutput;
    ValueDifference value{
        kind, gradients ? name.substr(kGradientPrefix.size()) : name,
        Difference(x.type, x.bytes.data(), y.type, y.bytes.data())};
    (kind == ValueKind::kState ? states : result.values)
        .push_back(std::move(value));
  }
  for (const PlanOutput* output : side_b.Outputs(gradients)) {
    result.unmatched += side_a.Find(side_b.NameOf(*output)) == nullptr ? 1 : 0;
  }
  result.values.insert(result.values.end(), states.begin(), states.end());
  return result;
}

}  // namespace fusor::inspect
