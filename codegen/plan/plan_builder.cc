#include "codegen/plan/plan_builder.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "codegen/lower/lower.h"
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
//   1. schedule the graph and select the values that update state in place
//   2. add buffers for inputs and constants
//   3. add one step per node: a kernel or call with argument buffers. Buffers
//      of a span form a group; those that cannot join one are copied.
//   4. copy aliased outputs that could not be written in place
//   5. assign collectives to a separate stream, with events
//   6. assign offsets
class PlanBuilder {
 public:
  PlanBuilder(const Graph& graph, const LoweredNodes& lowered,
              const TargetCompiler& compiler, const PlanOptions& options)
      : graph_(graph),
        lowered_(lowered),
        compiler_(compiler),
        options_(options) {}

  Plan Build();

 private:
  void AddInputs();
  void GroupClaimedSpans();
  void AddConstant(const Node& node);
  void AddStep(const Node& node);
  void AddCallArgs(const Node& node, Step& step);
  void AddCollectiveArgs(const Node& node, Step& step);
  void AddApartArgs(const Node& node, Step& step);
  int CollectiveArgument(const Value* value, bool taken);
  void FindSummed(const std::vector<Node*>& steps);
  void CopySummed(const Node& node);
  int AddResult(const Value* value, bool packed = false);
  std::vector<int> FusionArgs(const Node& node, const LoweredKernel& kernel);
  void AddOutputs();
  WorkspaceBytes AddCalls();
  void PrepareCalls();
  void AddWorkspaces();

  int OperandSpan(const std::vector<int>& buffers);
  int Span(const std::vector<int>& buffers);
  bool CanGroup(const std::vector<int>& buffers) const;
  void Group(const std::vector<int>& buffers);
  int Base(int buffer) const;  // the buffer whose offset it shares, or itself

  std::string KernelName(const Node& node);
  int AddKernel(const Node& node, const LoweredKernel& lowered);
  int AddCall(LibraryCall call);
  void AddCopy(int from, int to);
  int CopyOf(int buffer, int arena, int slot);

  Buffer& buffer(int b) { return draft_.plan.buffers[b]; }
  const Buffer& buffer(int b) const { return draft_.plan.buffers[b]; }

  const Graph& graph_;
  const LoweredNodes& lowered_;
  const TargetCompiler& compiler_;
  const PlanOptions& options_;
  ArenaLayout draft_;
  std::unordered_map<const Value*, int> buffer_of_;  // storage -> buffer
  std::unordered_map<const Value*, int> claims_;     // value -> input
  std::set<const Value*> outputs_;  // storages of outputs without alias
  // summed_: operands of collectives that their producers write into the
  // gradient arena, with the number of copies for further collectives. more_:
  // those copies that no collective has used yet.
  std::map<const Value*, int> summed_;
  std::map<const Value*, std::vector<int>> more_;
  std::map<std::vector<int>, int> spans_;  // members -> buffer
  // Buffers of which some were copied -> span.
  std::map<std::vector<int>, int> copied_spans_;
  std::map<std::string, int> kernels_;  // identity -> index
  size_t prepared_ = 0;                 // number of prepared calls
  std::set<std::string> names_;         // of values and copies
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
  for (const auto& node : graph_.nodes()) {
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      names_.insert(node->output(i)->name());
    }
  }
  std::vector<Node*> steps;
  std::vector<const Node*> constants;
  for (Node* node : Schedule(graph_, AddCalls())) {
    if (node->kind() == OpKind::kConstant) {
      constants.push_back(node);
    } else if (!ir::IsView(*node)) {
      steps.push_back(node);
    }
  }
  claims_ = AliasState(graph_, steps, lowered_);
  // Collectives write only into the gradient arena, never into state.
  std::erase_if(claims_, [](const auto& claim) {
    return claim.first->producer()->HasTrait(OpTrait::kCollective);
  });
  for (const ir::Output& output : graph_.outputs()) {
    if (output.alias < 0) outputs_.insert(StorageOf(output.value));
  }
  FindSummed(steps);
  AddInputs();
  for (const Node* node : constants) AddConstant(*node);
  GroupClaimedSpans();
  for (const Node* node : steps) AddStep(*node);
  AddOutputs();
  AddWorkspaces();
  AssignStreams(plan);
  LayOutArenas(draft_, options_.state, options_.memory_limit_bytes);
  CheckAccumulations(plan);
  return std::move(plan);
}

void PlanBuilder::AddInputs() {
  std::set<int> updated;
  for (const ir::Output& output : graph_.outputs()) {
    updated.insert(output.alias);
  }
  for (size_t i = 0; i < graph_.inputs().size(); ++i) {
    const ir::Input& input = graph_.inputs()[i];
    const bool state = ir::IsState(input.role) ||
                       updated.contains(static_cast<int>(i)) ||
                       (options_.state != nullptr &&
                        options_.state->Find(input.value->name()) != nullptr);
    const ir::TensorType& type = input.value->type();
    Buffer held{.arena = state ? kStateArena : kInputArena,
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

// State that a span of results overwrites must be contiguous like the span.
// This precedes operand spans, which can fall back to copies.
void PlanBuilder::GroupClaimedSpans() {
  for (const auto& node : graph_.nodes()) {
    const auto it = lowered_.find(node.get());
    if (it == lowered_.end()) continue;
    for (const std::vector<int>& span : it->second.result_spans) {
      if (span.size() < 2 || !claims_.contains(node->output(span[0]))) continue;
      std::vector<int> slots;
      for (int result : span) {
        const int input = claims_.at(node->output(result));
        slots.push_back(buffer_of_.at(graph_.input(input)));
      }
      const int group = draft_.group_of[slots[0]];
      if (group >= 0 && draft_.groups[group] == slots) continue;
      FUSOR_ASSERT(CanGroup(slots), "{}: its state cannot be made contiguous",
                   node->output()->name());
      Group(slots);
    }
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
  const auto claim = claims_.find(value);
  int slot = -1;
  int arena = outputs_.contains(value) ? kOutputArena : kTemporaryArena;
  if (claim != claims_.end()) {
    slot = buffer_of_.at(graph_.input(claim->second));
    arena = kStateArena;
  } else if (summed_.contains(value)) {
    arena = kGradientArena;
  }
  Buffer result{.arena = arena,
                .type = value->type(),
                .name = value->name(),
                .location = value->producer()->location(),
                .packed = packed};
  result.bytes = result.value_bytes();
  const int b = draft_.AddBuffer(std::move(result), slot);
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
  CopySummed(node);
}

void PlanBuilder::AddCallArgs(const Node& node, Step& step) {
  if (node.kind() == OpKind::kAllReduce) return AddCollectiveArgs(node, step);
  if (node.HasTrait(OpTrait::kCollective)) return AddApartArgs(node, step);
  step.kind = StepKind::kLibrary;
  for (const Value* operand : node.inputs()) {
    step.args.push_back(buffer_of_.at(StorageOf(operand)));
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    step.args.push_back(AddResult(node.output(i)));
  }
}

// Finds the operands of collectives that their producers can write into the
// gradient arena. No other step may read them after the first collective that
// takes them.
void PlanBuilder::FindSummed(const std::vector<Node*>& steps) {
  std::map<const Value*, size_t> read;  // last step that is no collective
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s]->HasTrait(OpTrait::kCollective)) continue;
    for (const Value* operand : steps[s]->inputs())
      read[StorageOf(operand)] = s;
  }
  std::map<const Value*, size_t> taken;  // by this collective first
  for (size_t s = 0; s < steps.size(); ++s) {
    const Node* node = steps[s];
    if (!node->HasTrait(OpTrait::kCollective)) continue;
    if (draft_.plan.arenas.size() == kGradientArena) {
      draft_.plan.arenas.push_back({"gradient", ArenaKind::kGradient});
    }
    for (const Value* operand : node->inputs()) {
      const Value* value = StorageOf(operand);
      const size_t begin = taken.emplace(value, s).first->second;
      if (value->producer() == nullptr || claims_.contains(value) ||
          outputs_.contains(value) ||
          (read.contains(value) && read.at(value) > begin) ||
          value->producer()->kind() == OpKind::kConstant ||
          value->producer()->HasTrait(OpTrait::kCollective)) {
        continue;
      }
      const auto [at, first] = summed_.emplace(value, 0);
      if (!first) ++at->second;
    }
  }
}

// Copies results that several collectives use, before the first changes them.
void PlanBuilder::CopySummed(const Node& node) {
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const auto found = summed_.find(node.output(i));
    if (found == summed_.end()) continue;
    for (int copy = 0; copy < found->second; ++copy) {
      more_[found->first].push_back(
          CopyOf(buffer_of_.at(found->first), kGradientArena, -1));
    }
  }
}

// Returns the buffer of a collective's operand. Copies values outside the
// gradient arena: state, outputs and values that other steps read later.
// Returns a copy made by CopySummed if another collective has `taken` the
// buffer.
int PlanBuilder::CollectiveArgument(const Value* value, bool taken) {
  const int b = buffer_of_.at(value);
  if (!summed_.contains(value)) return CopyOf(b, kGradientArena, -1);
  if (!taken) return b;
  std::vector<int>& more = more_.at(value);
  const int copy = more.back();
  more.pop_back();
  return copy;
}

// Adds the arguments of an all_gather or reduce_scatter, whose results are
// separate buffers. all_gather only reads its operands, so they may be state.
void PlanBuilder::AddApartArgs(const Node& node, Step& step) {
  step.kind = StepKind::kCollective;
  for (const Value* operand : node.inputs()) {
    const Value* value = StorageOf(operand);
    const int b = buffer_of_.at(value);
    if (node.kind() == OpKind::kAllGather && buffer(b).arena == kStateArena) {
      step.args.push_back(b);
      continue;
    }
    const auto more = more_.find(value);
    step.args.push_back(CollectiveArgument(
        value, more != more_.end() && !more->second.empty()));
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const Value* result = node.output(i);
    const int b = draft_.AddBuffer({.arena = kGradientArena,
                                    .bytes = result->type().num_bytes(),
                                    .type = result->type(),
                                    .name = result->name(),
                                    .location = node.location()});
    buffer_of_[result] = b;
    step.args.push_back(b);
  }
}

// Adds the arguments of an all_reduce. Its results overwrite its operands.
void PlanBuilder::AddCollectiveArgs(const Node& node, Step& step) {
  step.kind = StepKind::kCollective;
  for (const Value* operand : node.inputs()) {
    const Value* value = StorageOf(operand);
    const int b = buffer_of_.at(value);
    const bool taken =
        draft_.group_of[b] >= 0 ||
        std::find(step.args.begin(), step.args.end(), b) != step.args.end();
    step.args.push_back(CollectiveArgument(value, taken));
  }
  const std::vector<int> operands = step.args;
  Group(operands);
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const Value* value = node.output(i);
    const int b = draft_.AddBuffer({.arena = kGradientArena,
                                    .bytes = value->type().num_bytes(),
                                    .type = value->type(),
                                    .name = value->name(),
                                    .location = node.location()},
                                   operands[i]);
    buffer_of_[value] = b;
    step.args.push_back(b);
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
    args.push_back(OperandSpan(members));
  }
  for (const std::vector<int>& span : lowered.result_spans) {
    const bool packed = lowered.kernel.buffers[args.size()].packed;
    std::vector<int> members;
    for (int result : span) {
      members.push_back(AddResult(node.output(result), packed));
    }
    if (members.size() > 1 && draft_.slot[members[0]] < 0) Group(members);
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

int PlanBuilder::Base(int b) const {
  return draft_.slot[b] >= 0 ? draft_.slot[b] : b;
}

bool PlanBuilder::CanGroup(const std::vector<int>& buffers) const {
  std::set<int> seen;
  int64_t end = -1;  // of the previous buffer in the session's layout
  for (int b : buffers) {
    const int arena = buffer(b).arena;
    const bool produced = arena == kTemporaryArena || arena == kOutputArena;
    const bool with_produced = buffer(buffers[0]).arena == kTemporaryArena ||
                               buffer(buffers[0]).arena == kOutputArena;
    if (draft_.group_of[b] >= 0 || draft_.slot[b] >= 0 ||
        !seen.insert(b).second || arena == kConstantArena ||
        produced != with_produced ||
        (!produced && arena != buffer(buffers[0]).arena)) {
      return false;
    }
    if (arena != kStateArena || options_.state == nullptr) continue;
    const int64_t offset =
        FindState(*options_.state, buffer(b).name, buffer(b).type).offset;
    if (end >= 0 && offset != end) return false;
    end = offset + PadToAlignment(buffer(b).bytes);
  }
  return true;
}

void PlanBuilder::Group(const std::vector<int>& buffers) {
  const bool output = std::any_of(buffers.begin(), buffers.end(), [&](int b) {
    return buffer(b).arena == kOutputArena;
  });
  for (int b : buffers) {
    draft_.group_of[b] = static_cast<int>(draft_.groups.size());
    if (output) buffer(b).arena = kOutputArena;
  }
  draft_.groups.push_back(buffers);
}

int PlanBuilder::OperandSpan(const std::vector<int>& buffers) {
  if (buffers.size() == 1) return buffers[0];
  std::vector<int> bases;
  for (int b : buffers) bases.push_back(Base(b));
  const int group = draft_.group_of[bases[0]];
  if (group >= 0) {
    const std::vector<int>& all = draft_.groups[group];
    const auto run =
        std::search(all.begin(), all.end(), bases.begin(), bases.end());
    if (run != all.end()) return Span(buffers);
  }
  if (CanGroup(bases)) {
    Group(bases);
    return Span(buffers);
  }
  // Copies buffers that cannot join a group or occur twice in this span. Later
  // spans of the same buffers share the copies.
  const auto copied = copied_spans_.find(buffers);
  if (copied != copied_spans_.end()) return copied->second;
  std::vector<int> members;
  for (int b : buffers) {
    const bool fits =
        buffer(b).arena == kTemporaryArena && draft_.group_of[b] < 0 &&
        std::find(members.begin(), members.end(), b) == members.end();
    members.push_back(fits ? b : CopyOf(b, kTemporaryArena, -1));
  }
  Group(members);
  return copied_spans_[buffers] = Span(members);
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

void PlanBuilder::AddCopy(int from, int to) {
  const ir::TensorType& type = buffer(to).type;
  LibraryCall call{.op = OpKind::kCopy, .operands = {type}, .results = {type}};
  call.attrs.Set("layout", FormatLayout(type.layout, type.rank()));
  draft_.plan.steps.push_back({.kind = StepKind::kLibrary,
                               .index = AddCall(std::move(call)),
                               .args = {from, to},
                               .name = buffer(to).name,
                               .location = buffer(to).location,
                               .op_class = "copy",
                               .bytes = 2 * buffer(to).bytes});
}

// Adds a buffer and a step that copies `b` into it. Returns the buffer.
int PlanBuilder::CopyOf(int b, int arena, int slot) {
  Buffer copy = buffer(b);
  copy.name += ".copy";
  for (int i = 2; !names_.insert(copy.name).second; ++i) {
    copy.name = fmt::format("{}.copy{}", buffer(b).name, i);
  }
  copy.arena = arena;
  if (slot >= 0) copy.type = buffer(slot).type;
  const int to = draft_.AddBuffer(std::move(copy), slot);
  AddCopy(b, to);
  return to;
}

// Appends copies of outputs that are not in their final buffers. First saves
// old state that outputs return but updates overwrite, then copies new state
// over old.
void PlanBuilder::AddOutputs() {
  Plan& plan = draft_.plan;
  std::set<int> overwritten;  // input buffers
  for (const ir::Output& output : graph_.outputs()) {
    if (output.alias < 0) continue;
    const int old = buffer_of_.at(graph_.input(output.alias));
    if (buffer_of_.at(StorageOf(output.value)) != old) overwritten.insert(old);
  }
  std::map<int, int> saved;
  for (const ir::Output& output : graph_.outputs()) {
    const int b = buffer_of_.at(StorageOf(output.value));
    const bool stays =
        output.alias >= 0 && buffer_of_.at(graph_.input(output.alias)) == b;
    if (overwritten.contains(b) && !stays && !saved.contains(b)) {
      saved[b] = CopyOf(b, kOutputArena, -1);
    }
  }
  for (const ir::Output& output : graph_.outputs()) {
    int b = buffer_of_.at(StorageOf(output.value));
    const int old =
        output.alias < 0 ? -1 : buffer_of_.at(graph_.input(output.alias));
    if (b != old) {
      if (saved.contains(b)) b = saved[b];
      const auto claim = claims_.find(StorageOf(output.value));
      const bool in_place =
          claim != claims_.end() && claim->second == output.alias;
      if (old >= 0 && !in_place) b = CopyOf(b, kStateArena, old);
    }
    plan.outputs.push_back({output.name, b, output.alias});
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

Plan BuildPlan(const Graph& graph, const LoweredNodes& lowered,
               const TargetCompiler& compiler, const PlanOptions& options) {
  Plan plan = PlanBuilder(graph, lowered, compiler, options).Build();
  if (options.verify) VerifyPlan(plan, graph);
  return plan;
}

}  // namespace fusor::codegen
