#include "codegen/plan/plan_builder.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "codegen/lower/lower.h"
#include "codegen/plan/copy_insertion.h"
#include "codegen/plan/memory_planner.h"
#include "codegen/plan/schedule.h"
#include "codegen/plan/verify_plan.h"
#include "codegen/plan/views.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "ir/target/cost.h"

namespace fusor::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::OpTrait;
using ir::Value;

// Returns which operand the call adds to, in place.
std::optional<InPlace> AccumulationOf(const LibraryCall& call) {
  if (call.body == nullptr) return std::nullopt;
  const std::optional<size_t> operand = ir::AccumulatedInput(*call.body);
  if (!operand.has_value()) return std::nullopt;
  return InPlace{static_cast<int>(*operand),
                 static_cast<int>(call.operands.size())};
}

void CheckAccumulations(const Plan& plan) {
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::kLibrary) continue;
    const auto accumulation = AccumulationOf(plan.calls[step.index]);
    if (!accumulation.has_value()) continue;
    const Buffer& operand = plan.buffers[step.args[accumulation->operand]];
    const Buffer& result = plan.buffers[step.args[accumulation->result]];
    FUSOR_ASSERT(
        operand.arena == result.arena && operand.offset == result.offset,
        "plan {}: {} is not in the place of {}, to which it is added",
        plan.name, result.name, operand.name);
  }
}

// Builds a plan in these steps:
//   1. prepare the calls, whose workspaces the schedule depends on
//   2. schedule the graph and insert copies
//   3. add buffers for inputs and constants
//   4. add one step per node: a kernel or call with argument buffers
//   5. assign collectives to a separate stream, with events
//   6. assign offsets
class PlanBuilder {
 public:
  PlanBuilder(Graph& graph, const LoweredNodes& lowered,
              const TargetCompiler& compiler, const PlanOptions& options)
      : graph_(graph),
        lowered_(lowered),
        compiler_(compiler),
        options_(options) {}

  Plan Build();

 private:
  void AddInputs();
  void AddConstant(const Node& node);
  void AddStep(const Node& node);
  void AddCallArgs(const Node& node, Step& step);
  int AddResult(const Value* value, bool packed = false);
  std::vector<int> FusionArgs(const Node& node, const LoweredKernel& kernel);
  int Span(const std::vector<int>& members);
  void AddOutputs();
  void AddGroups();
  WorkspaceBytes AddCalls();
  void PrepareCalls();
  void AddWorkspaces();

  std::string KernelName(const Node& node);
  int AddKernel(const Node& node, const LoweredKernel& lowered);
  int AddCall(LibraryCall call);

  const Buffer& buffer(int b) const { return draft_.plan.buffers[b]; }

  Graph& graph_;
  const LoweredNodes& lowered_;
  const TargetCompiler& compiler_;
  const PlanOptions& options_;
  ArenaLayout draft_;
  BufferConstraints constraints_;
  std::unordered_map<const Value*, int> buffer_of_;  // storage -> buffer
  std::map<std::vector<int>, int> spans_;            // members -> buffer
  std::map<std::string, int> kernels_;               // identity -> index
  size_t prepared_ = 0;                              // number of prepared calls
  std::set<std::string> kernel_names_;
};

Plan PlanBuilder::Build() {
  Plan& plan = draft_.plan;
  plan.name = graph_.name();
  plan.target = compiler_.target().name;
  plan.arenas = {{"state", ArenaKind::kState},
                 {"input", ArenaKind::kInput},
                 {"output", ArenaKind::kOutput},
                 {"constant", ArenaKind::kConstant},
                 {"temporary", ArenaKind::kTemporary}};
  const std::vector<Node*> order = Schedule(graph_, AddCalls());
  std::vector<const Node*> constants;
  for (const Node* node : order) {
    if (node->kind() == OpKind::kConstant) constants.push_back(node);
  }
  constraints_ = InsertCopies(graph_, order, lowered_, options_.state);
  AddInputs();
  for (const Node* node : constants) AddConstant(*node);
  for (const Node* node : constraints_.steps) AddStep(*node);
  AddOutputs();
  AddGroups();
  AddWorkspaces();
  AssignStreams(plan);
  LayOutArenas(draft_, options_.state, options_.memory_limit_bytes);
  CheckAccumulations(plan);
  return std::move(plan);
}

void PlanBuilder::AddInputs() {
  for (const ir::Input& input : graph_.inputs()) {
    const ir::TensorType& type = input.value->type();
    Buffer held{.arena = constraints_.placements.at(input.value.get()).arena,
                .type = type,
                .name = input.value->name(),
                .packed = IsReadPacked(*input.value, lowered_)};
    held.bytes = held.value_bytes();
    const int b = draft_.AddBuffer(std::move(held));
    buffer_of_[input.value.get()] = b;
    draft_.plan.inputs.push_back(
        {input.value->name(), input.role, input.attrs, b});
  }
}

void PlanBuilder::AddConstant(const Node& node) {
  const Value* value = node.output();
  const int b = draft_.AddBuffer({.arena = kConstantArena,
                                  .bytes = value->type().num_bytes(),
                                  .type = value->type(),
                                  .name = value->name(),
                                  .location = node.location()});
  buffer_of_[value] = b;
  draft_.plan.constants.push_back({b, ConstantBytes(node)});
}

int PlanBuilder::AddResult(const Value* value, bool packed) {
  const BufferPlacement& place = constraints_.placements.at(value);
  Buffer result{.arena = place.arena,
                .type = value->type(),
                .name = value->name(),
                .location = value->producer()->location(),
                .packed = packed};
  result.bytes = result.value_bytes();
  const int b = draft_.AddBuffer(
      std::move(result),
      place.overwrites == nullptr ? -1 : buffer_of_.at(place.overwrites));
  buffer_of_[value] = b;
  return b;
}

void PlanBuilder::AddStep(const Node& node) {
  Step step{.name = node.output()->name(),
            .location = node.location(),
            .op_class = std::string(ir::LibraryOp(node).op_name()),
            .bytes = ir::NodeBytes(node),
            .flops = NodeFlops(node)};
  const auto fusion = lowered_.find(&node);
  if (fusion != lowered_.end()) {
    step.kind = StepKind::kLaunch;
    step.args = FusionArgs(node, fusion->second);
    step.index = AddKernel(node, fusion->second);
  } else {
    FUSOR_ASSERT(!ir::IsKernelFusion(node), "fusion {} was not lowered",
                 step.name);
    AddCallArgs(node, step);
    step.index = AddCall(CallOf(node));
  }
  for (const int b : std::set<int>(step.args.begin(), step.args.end())) {
    const ir::TensorType& type = buffer(b).type;
    if (type.dtype != ir::DType::kBool || buffer(b).packed) continue;
    step.bytes += type.num_bytes() - ir::KernelBytes(type);
  }
  draft_.plan.steps.push_back(std::move(step));
}

void PlanBuilder::AddCallArgs(const Node& node, Step& step) {
  step.kind = StepKind::kLibrary;
  if (node.HasTrait(OpTrait::kCollective)) {
    step.kind = StepKind::kCollective;
    const bool first = draft_.plan.arenas.size() == kGradientArena;
    if (first) draft_.plan.arenas.push_back({"gradient", ArenaKind::kGradient});
  }
  for (const Value* operand : node.inputs()) {
    step.args.push_back(buffer_of_.at(StorageOf(operand)));
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    step.args.push_back(AddResult(node.output(i)));
  }
}

std::vector<int> PlanBuilder::FusionArgs(const Node& node,
                                         const LoweredKernel& lowered) {
  std::vector<int> args;
  for (const std::vector<int>& span : lowered.operand_spans) {
    std::vector<int> members;
    for (int operand : span) {
      members.push_back(buffer_of_.at(StorageOf(node.input(operand))));
    }
    args.push_back(Span(members));
  }
  for (const std::vector<int>& span : lowered.result_spans) {
    const bool packed = lowered.kernel.buffers[args.size()].packed;
    std::vector<int> members;
    for (int result : span) {
      members.push_back(AddResult(node.output(result), packed));
    }
    args.push_back(Span(members));
  }
  const size_t tensors = args.size();
  const std::vector<KernelBuffer>& buffers = lowered.kernel.buffers;
  FUSOR_ASSERT(tensors <= buffers.size(), "{}: {} kernel buffers for {} spans",
               node.output()->name(), buffers.size(), tensors);
  for (size_t i = tensors; i < buffers.size(); ++i) {
    args.push_back(
        draft_.AddBuffer({.arena = kTemporaryArena,
                          .bytes = buffers[i].num_bytes(),
                          .type = {ir::DType::kU8, {}, {}},
                          .name = node.output()->name() + "." + buffers[i].name,
                          .location = node.location()}));
  }
  return args;
}

int PlanBuilder::Span(const std::vector<int>& members) {
  if (members.size() == 1) return members[0];
  const auto [it, added] = spans_.try_emplace(members, -1);
  if (!added) return it->second;
  int64_t bytes = 0;
  for (int b : members) bytes += PadToAlignment(buffer(b).bytes);
  it->second = draft_.AddBuffer({.arena = buffer(members[0]).arena,
                                 .bytes = bytes,
                                 .type = {ir::DType::kU8, {}, {}},
                                 .name = buffer(members.front()).name + ".." +
                                         buffer(members.back()).name,
                                 .members = members});
  return it->second;
}

// Names a kernel after the first value that it computes, so that adding or
// removing other kernels does not change its name.
std::string PlanBuilder::KernelName(const Node& node) {
  std::string name = "k_" + node.output()->name();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  std::string unique = name;
  for (int i = 2; !kernel_names_.insert(unique).second; ++i) {
    unique = fmt::format("{}_{}", name, i);
  }
  return unique;
}

int PlanBuilder::AddKernel(const Node& node, const LoweredKernel& lowered) {
  // Spans alias only if every operand may be overwritten by its result.
  const size_t operands = lowered.operand_spans.size();
  CompiledKernel kernel{.kernel = lowered.kernel};
  const auto allowed = [&](int operand, int result) {
    return std::any_of(lowered.in_place.begin(), lowered.in_place.end(),
                       [&](const LoweredKernel::Alias& alias) {
                         return alias.operand == operand &&
                                alias.result == result;
                       });
  };
  for (size_t o = 0; o < operands; ++o) {
    for (size_t r = 0; r < lowered.result_spans.size(); ++r) {
      if (std::equal(lowered.operand_spans[o].begin(),
                     lowered.operand_spans[o].end(),
                     lowered.result_spans[r].begin(),
                     lowered.result_spans[r].end(), allowed)) {
        kernel.in_place.push_back(
            {static_cast<int>(o), static_cast<int>(operands + r)});
      }
    }
  }
  std::string identity = Print(lowered.kernel, true);
  for (const InPlace& pair : kernel.in_place) {
    identity += fmt::format("{}>{},", pair.operand, pair.result);
  }
  std::vector<CompiledKernel>& kernels = draft_.plan.kernels;
  const auto [it, added] =
      kernels_.emplace(std::move(identity), static_cast<int>(kernels.size()));
  if (added) {
    kernel.kernel.name = KernelName(node);
    kernels.push_back(std::move(kernel));
  }
  FUSOR_ASSERT(kernels[it->second].kernel.buffers.size() ==
                   lowered.kernel.buffers.size(),
               "{}: equal kernels with unequal buffers", node.output()->name());
  return it->second;
}

int PlanBuilder::AddCall(LibraryCall call) {
  std::vector<LibraryCall>& calls = draft_.plan.calls;
  const auto found = std::find_if(
      calls.begin(), calls.end(),
      [&](const LibraryCall& other) { return SameCall(call, other); });
  const auto index = static_cast<int>(found - calls.begin());
  if (found == calls.end()) calls.push_back(std::move(call));
  return index;
}

void PlanBuilder::AddOutputs() {
  for (const ir::Output& output : graph_.outputs()) {
    draft_.plan.outputs.push_back(
        {output.name, buffer_of_.at(StorageOf(output.value)), output.alias});
  }
}

void PlanBuilder::AddGroups() {
  for (const std::vector<const Value*>& values : constraints_.contiguous) {
    std::vector<int> group;
    for (const Value* value : values) {
      group.push_back(buffer_of_.at(value));
      draft_.group_of[group.back()] = static_cast<int>(draft_.groups.size());
    }
    draft_.groups.push_back(std::move(group));
  }
}

// Adds the calls of nodes before scheduling, which depends on their workspaces.
WorkspaceBytes PlanBuilder::AddCalls() {
  std::unordered_map<const Node*, int> call_of;
  for (const auto& node : graph_.nodes()) {
    const bool call = !ir::IsKernelFusion(*node) &&
                      !lowered_.contains(node.get()) && !ir::IsView(*node) &&
                      node->kind() != OpKind::kConstant;
    if (call) call_of.emplace(node.get(), AddCall(CallOf(*node)));
  }
  PrepareCalls();
  return [this, call_of = std::move(call_of)](const Node& node) -> int64_t {
    const auto call = call_of.find(&node);
    return call == call_of.end()
               ? 0
               : draft_.plan.calls[call->second].workspace_bytes;
  };
}

void PlanBuilder::PrepareCalls() {
  std::vector<LibraryCall>& calls = draft_.plan.calls;
  const size_t first = std::exchange(prepared_, calls.size());
  ParallelFor(calls.size() - first, options_.threads, [&](size_t i) {
    LibraryCall& call = calls[first + i];
    if (!call.HasTrait(OpTrait::kCollective)) {
      compiler_.PrepareCall(call);
      if (const auto accumulation = AccumulationOf(call)) {
        call.in_place.push_back(*accumulation);
      }
      return;
    }
    if (call.op != OpKind::kAllReduce) return;
    const auto operands = static_cast<int>(call.operands.size());
    for (int o = 0; o < operands; ++o) {
      call.in_place.push_back({o, operands + o});
    }
  });
}

void PlanBuilder::AddWorkspaces() {
  Plan& plan = draft_.plan;
  PrepareCalls();  // copies
  for (Step& step : plan.steps) {
    if (step.kind == StepKind::kLaunch) continue;
    const int64_t bytes = plan.calls[step.index].workspace_bytes;
    if (bytes == 0) continue;
    step.args.push_back(draft_.AddBuffer({.arena = kTemporaryArena,
                                          .bytes = bytes,
                                          .type = {ir::DType::kU8, {}, {}},
                                          .name = step.name + ".workspace",
                                          .location = step.location}));
  }
}

}  // namespace

Plan BuildPlan(Graph& graph, const LoweredNodes& lowered,
               const TargetCompiler& compiler, const PlanOptions& options) {
  Plan plan = PlanBuilder(graph, lowered, compiler, options).Build();
  if (options.verify) VerifyPlan(plan, graph);
  return plan;
}

}  // namespace fusor::codegen
