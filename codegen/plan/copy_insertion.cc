#include "codegen/plan/copy_insertion.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "codegen/plan/plan.h"
#include "codegen/plan/views.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::OpTrait;
using ir::Value;

using Values = std::vector<Value*>;

// --- State that is updated in place --------------------------------------

// Value -> index of the input that its producer overwrites.
using StateAliases = std::unordered_map<const Value*, int>;

struct Reading {
  int step;
  int operand;
};

bool MayOverwrite(const LoweredNodes& lowered, const Node* node, int operand,
                  int result) {
  const auto it = lowered.find(node);
  if (it == lowered.end()) return false;
  return std::any_of(it->second.in_place.begin(), it->second.in_place.end(),
                     [&](const LoweredKernel::Alias& alias) {
                       return alias.operand == operand &&
                              alias.result == result;
                     });
}

// Removes the aliases of spans if not every result of the span has one.
void DropPartialSpans(const std::vector<Node*>& steps,
                      const LoweredNodes& lowered, StateAliases& aliases) {
  for (const Node* node : steps) {
    const auto it = lowered.find(node);
    if (it == lowered.end()) continue;
    for (const std::vector<int>& span : it->second.result_spans) {
      const bool all = std::all_of(span.begin(), span.end(), [&](int result) {
        return aliases.contains(node->output(result));
      });
      if (all) continue;
      for (int result : span) aliases.erase(node->output(result));
    }
  }
}

// Returns the values that are written over old state. A value aliases its input
// only if
//   - all readers of the old value run before the producer, or are the producer
//     itself and it may overwrite that operand;
//   - the producer is no collective: these write only into the gradient arena;
//   - no output returns the old value;
//   - all results of its span alias their inputs.
// All other aliased outputs need a copy after the last step.
StateAliases AliasState(const Graph& graph, const std::vector<Node*>& steps,
                        const LoweredNodes& lowered) {
  std::unordered_map<const Node*, int> at;
  std::unordered_map<const Value*, std::vector<Reading>> readings;
  for (const Node* node : steps) {
    const auto step = static_cast<int>(at.size());
    at.emplace(node, step);
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      readings[StorageOf(node->input(i))].push_back(
          {step, static_cast<int>(i)});
    }
  }
  // Inputs whose old value an output returns.
  std::unordered_set<const Value*> kept;
  for (const ir::Output& output : graph.outputs()) {
    const Value* storage = StorageOf(output.value);
    if (output.alias < 0 || graph.input(output.alias) != storage) {
      kept.insert(storage);
    }
  }
  StateAliases aliases;
  for (const ir::Output& output : graph.outputs()) {
    if (output.alias < 0) continue;
    const Value* input = graph.input(output.alias);
    const Value* value = StorageOf(output.value);
    const auto producer = at.find(value->producer());
    if (producer == at.end() || kept.contains(input)) continue;
    const auto step_reads_first = [&](const Reading& reading) {
      return reading.step < producer->second ||
             (reading.step == producer->second &&
              MayOverwrite(lowered, value->producer(), reading.operand,
                           value->index()));
    };
    const std::vector<Reading>& all = readings[input];
    if (std::all_of(all.begin(), all.end(), step_reads_first)) {
      aliases.emplace(value, output.alias);
    }
  }
  DropPartialSpans(steps, lowered, aliases);
  std::erase_if(aliases, [](const auto& alias) {
    return alias.first->producer()->HasTrait(OpTrait::kCollective);
  });
  return aliases;
}

// --- Copies ------------------------------------------------------------------

// Visits the nodes in the order in which they run, places their results and
// inserts the copies that their operands need.
class CopyInserter {
 public:
  CopyInserter(Graph& graph, const LoweredNodes& lowered,
               const StateLayout* state)
      : graph_(graph), lowered_(lowered), state_(state) {}

  BufferConstraints Run(std::span<Node* const> order);

 private:
  void PlaceInputs();
  void GroupStateSpans();
  void FindExchanged(const std::vector<Node*>& steps);
  void VisitKernel(Node* node, const LoweredKernel& lowered);
  void VisitCollective(Node* node);
  void PlaceResult(const Value* value);
  void CopyExchanged(const Node& node);
  Value* CollectiveOperand(Value* value, bool taken);
  void VisitOutputs();

  Values OperandSpan(const Values& values);
  bool IsGrouped(const Value* value) const { return group_of_.contains(value); }
  bool CanGroup(const Values& values) const;
  void Group(const Values& values);
  Value* Base(Value* value) const;

  Value* CopyOf(Value* value, BufferPlacement placement);
  Value* WithStorage(Value* value, Value* storage, Node* before);
  void SetOperandStorage(Node* node, size_t operand, Value* storage);
  void EraseUnusedViews(Value* value);

  bool IsProduced(const Value* value) const {
    const PlanArena arena = Place(value).arena;
    return arena == kTemporaryArena || arena == kOutputArena;
  }
  const BufferPlacement& Place(const Value* value) const {
    return result_.placements.at(value);
  }

  Graph& graph_;
  const LoweredNodes& lowered_;
  const StateLayout* state_;
  BufferConstraints result_;
  StateAliases aliases_;
  std::unordered_set<const Value*> outputs_;  // storages of those without alias
  std::unordered_map<const Value*, size_t> group_of_;
  // Operands of collectives that their producers write into the gradient
  // arena, with the number of copies for further collectives.
  std::unordered_map<const Value*, int> exchanged_;
  // Operand -> its copies that no collective has used yet.
  std::unordered_map<const Value*, Values> unused_copies_;
  std::map<Values, Values> copied_spans_;  // span -> span with copies
};

BufferConstraints CopyInserter::Run(std::span<Node* const> order) {
  std::vector<Node*> steps;
  for (Node* node : order) {
    if (node->kind() == OpKind::kConstant) {
      result_.placements[node->output()] = {kConstantArena};
    } else if (!ir::IsView(*node)) {
      steps.push_back(node);
    }
  }
  aliases_ = AliasState(graph_, steps, lowered_);
  for (const ir::Output& output : graph_.outputs()) {
    if (output.alias < 0) outputs_.insert(StorageOf(output.value));
  }
  FindExchanged(steps);
  PlaceInputs();
  GroupStateSpans();
  for (Node* node : steps) {
    const auto kernel = lowered_.find(node);
    if (kernel != lowered_.end()) {
      VisitKernel(node, kernel->second);
    } else if (node->HasTrait(OpTrait::kCollective)) {
      VisitCollective(node);
    } else {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        PlaceResult(node->output(i));
      }
    }
    result_.steps.push_back(node);
    CopyExchanged(*node);
  }
  VisitOutputs();
  return std::move(result_);
}

void CopyInserter::PlaceInputs() {
  std::set<int> updated;
  for (const ir::Output& output : graph_.outputs()) {
    updated.insert(output.alias);
  }
  for (size_t i = 0; i < graph_.inputs().size(); ++i) {
    const ir::Input& input = graph_.inputs()[i];
    const bool state =
        ir::IsState(input.role) || updated.contains(static_cast<int>(i)) ||
        (state_ != nullptr && state_->Find(input.value->name()) != nullptr);
    result_.placements[input.value.get()] = {state ? kStateArena : kInputArena};
  }
}

// State that a span of results overwrites must be contiguous like the span.
// This precedes operand spans, which can fall back to copies.
void CopyInserter::GroupStateSpans() {
  for (const auto& node : graph_.nodes()) {
    const auto it = lowered_.find(node.get());
    if (it == lowered_.end()) continue;
    for (const std::vector<int>& span : it->second.result_spans) {
      if (span.size() < 2 || !aliases_.contains(node->output(span[0]))) {
        continue;
      }
      Values inputs;
      for (int result : span) {
        inputs.push_back(graph_.input(aliases_.at(node->output(result))));
      }
      const auto group = group_of_.find(inputs[0]);
      if (group != group_of_.end() &&
          std::ranges::equal(result_.contiguous[group->second], inputs)) {
        continue;
      }
      FUSOR_ASSERT(CanGroup(inputs), "{}: its state cannot be made contiguous",
                   node->output()->name());
      Group(inputs);
    }
  }
}

// Finds the operands of collectives that their producers can write into the
// gradient arena. No other step may read them after the first collective that
// takes them.
void CopyInserter::FindExchanged(const std::vector<Node*>& steps) {
  std::unordered_map<const Value*, size_t> read;  // last, by no collective
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s]->HasTrait(OpTrait::kCollective)) continue;
    for (const Value* operand : steps[s]->inputs())
      read[StorageOf(operand)] = s;
  }
  std::unordered_map<const Value*, size_t> taken;  // by this collective first
  for (size_t s = 0; s < steps.size(); ++s) {
    if (!steps[s]->HasTrait(OpTrait::kCollective)) continue;
    for (const Value* operand : steps[s]->inputs()) {
      const Value* value = StorageOf(operand);
      const size_t begin = taken.emplace(value, s).first->second;
      if (value->producer() == nullptr || aliases_.contains(value) ||
          outputs_.contains(value) ||
          (read.contains(value) && read.at(value) > begin) ||
          value->producer()->kind() == OpKind::kConstant ||
          value->producer()->HasTrait(OpTrait::kCollective)) {
        continue;
      }
      const auto [at, first] = exchanged_.emplace(value, 0);
      if (!first) ++at->second;
    }
  }
}

void CopyInserter::PlaceResult(const Value* value) {
  BufferPlacement& place = result_.placements[value];
  const auto alias = aliases_.find(value);
  if (alias != aliases_.end()) {
    place = {kStateArena, graph_.input(alias->second)};
  } else if (exchanged_.contains(value)) {
    place = {kGradientArena};
  } else if (outputs_.contains(value)) {
    place = {kOutputArena};
  }
}

void CopyInserter::VisitKernel(Node* node, const LoweredKernel& lowered) {
  for (const std::vector<int>& span : lowered.operand_spans) {
    Values wanted;
    for (int operand : span) wanted.push_back(StorageOf(node->input(operand)));
    const Values found = OperandSpan(wanted);
    for (size_t i = 0; i < span.size(); ++i) {
      SetOperandStorage(node, span[i], found[i]);
    }
  }
  for (const std::vector<int>& span : lowered.result_spans) {
    Values results;
    for (int result : span) {
      results.push_back(node->output(result));
      PlaceResult(results.back());
    }
    if (span.size() > 1 && Place(results[0]).overwrites == nullptr) {
      Group(results);
    }
  }
}

// The results of an all_reduce overwrite its operands. The results of any other
// collective have their own buffers. An all_gather only reads its operands, so
// they may be state.
void CopyInserter::VisitCollective(Node* node) {
  const bool in_place = node->kind() == OpKind::kAllReduce;
  Values operands;
  for (size_t i = 0; i < node->num_inputs(); ++i) {
    Value* value = StorageOf(node->input(i));
    Value* operand = value;
    if (node->kind() != OpKind::kAllGather ||
        Place(value).arena != kStateArena) {
      const auto copies = unused_copies_.find(value);
      const bool taken =
          in_place ? IsGrouped(value) || std::ranges::count(operands, value) > 0
                   : copies != unused_copies_.end() && !copies->second.empty();
      operand = CollectiveOperand(value, taken);
    }
    operands.push_back(operand);
    SetOperandStorage(node, i, operand);
  }
  if (in_place) Group(operands);
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    result_.placements[node->output(i)] = {kGradientArena,
                                           in_place ? operands[i] : nullptr};
  }
}

// Returns a value in the gradient arena for a collective's operand: the
// operand, or a copy if it is elsewhere or another collective has `taken` it.
Value* CopyInserter::CollectiveOperand(Value* value, bool taken) {
  if (!exchanged_.contains(value)) return CopyOf(value, {kGradientArena});
  if (!taken) return value;
  Values& copies = unused_copies_[value];
  FUSOR_ASSERT(!copies.empty(), "{}: no copy is left for a collective",
               value->name());
  Value* copy = copies.back();
  copies.pop_back();
  return copy;
}

// Copies results that several collectives use, before the first changes them.
void CopyInserter::CopyExchanged(const Node& node) {
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const auto found = exchanged_.find(node.output(i));
    if (found == exchanged_.end()) continue;
    for (int copy = 0; copy < found->second; ++copy) {
      unused_copies_[found->first].push_back(
          CopyOf(node.output(i), {kGradientArena}));
    }
  }
}

// First saves old state that outputs return but updates overwrite, then copies
// new state over old.
void CopyInserter::VisitOutputs() {
  std::unordered_set<const Value*> overwritten;  // inputs
  for (const ir::Output& output : graph_.outputs()) {
    if (output.alias < 0) continue;
    const Value* old = graph_.input(output.alias);
    if (StorageOf(output.value) != old) overwritten.insert(old);
  }
  const auto stays = [&](const ir::Output& output) {
    return output.alias >= 0 &&
           graph_.input(output.alias) == StorageOf(output.value);
  };
  std::unordered_map<const Value*, Value*> saved;
  for (ir::Output& output : graph_.mutable_outputs()) {
    Value* value = StorageOf(output.value);
    if (!overwritten.contains(value) || stays(output)) continue;
    Value*& copy = saved[value];
    if (copy == nullptr) copy = CopyOf(value, {kOutputArena});
    Value* old = output.value;
    output.value = WithStorage(old, copy, nullptr);
    EraseUnusedViews(old);
  }
  for (ir::Output& output : graph_.mutable_outputs()) {
    if (output.alias < 0 || stays(output)) continue;
    const auto alias = aliases_.find(StorageOf(output.value));
    if (alias != aliases_.end() && alias->second == output.alias) continue;
    output.value =
        CopyOf(output.value, {kStateArena, graph_.input(output.alias)});
  }
}

// --- Spans ---------------------------------------------------------------

// Returns the input whose buffer the value overwrites, or the value itself.
Value* CopyInserter::Base(Value* value) const {
  Value* base = Place(value).overwrites;
  return base == nullptr ? value : base;
}

bool CopyInserter::CanGroup(const Values& values) const {
  std::unordered_set<const Value*> seen;
  int64_t end = -1;  // of the previous value in the session's layout
  for (const Value* value : values) {
    const BufferPlacement& place = Place(value);
    if (IsGrouped(value) || place.overwrites != nullptr ||
        !seen.insert(value).second || place.arena == kConstantArena ||
        IsProduced(value) != IsProduced(values[0]) ||
        (!IsProduced(value) && place.arena != Place(values[0]).arena)) {
      return false;
    }
    if (place.arena != kStateArena || state_ == nullptr) continue;
    const int64_t offset =
        FindState(*state_, value->name(), value->type()).offset;
    if (end >= 0 && offset != end) return false;
    end = offset + PadToAlignment(value->type().num_bytes());
  }
  return true;
}

void CopyInserter::Group(const Values& values) {
  const bool output = std::ranges::any_of(values, [&](const Value* value) {
    return Place(value).arena == kOutputArena;
  });
  for (const Value* value : values) {
    group_of_[value] = result_.contiguous.size();
    if (output) result_.placements.at(value).arena = kOutputArena;
  }
  result_.contiguous.emplace_back(values.begin(), values.end());
}

// Returns contiguous values for a kernel that reads `values` as one span.
// Copies those that cannot join a group or occur twice. Later spans of the same
// values share the copies.
Values CopyInserter::OperandSpan(const Values& values) {
  if (values.size() == 1) return values;
  Values bases;
  for (Value* value : values) bases.push_back(Base(value));
  const auto group = group_of_.find(bases[0]);
  if (group != group_of_.end() &&
      !std::ranges::search(result_.contiguous[group->second], bases).empty()) {
    return values;
  }
  if (CanGroup(bases)) {
    Group(bases);
    return values;
  }
  const auto copied = copied_spans_.find(values);
  if (copied != copied_spans_.end()) return copied->second;
  Values members;
  for (Value* value : values) {
    const bool fits = Place(value).arena == kTemporaryArena &&
                      !IsGrouped(value) &&
                      std::ranges::count(members, value) == 0;
    members.push_back(fits ? value : CopyOf(value, {kTemporaryArena}));
  }
  Group(members);
  return copied_spans_[values] = members;
}

// --- The graph -------------------------------------------------------------

// Appends a step that copies the value. The node is next to the value's
// producer in the graph, so that nodes in any place can read it.
Value* CopyInserter::CopyOf(Value* value, BufferPlacement placement) {
  const Value* storage = StorageOf(value);
  const auto next = static_cast<size_t>(
      value->producer() == nullptr ? 0 : value->producer()->position() + 1);
  Node* before =
      next < graph_.nodes().size() ? graph_.nodes()[next].get() : nullptr;
  ir::Attrs attrs;
  attrs.Set("layout", FormatLayout(value->type().layout, value->type().rank()));
  Node* node = graph_.AddNode(OpKind::kCopy, {value}, std::move(attrs),
                              LocationOf(*storage), before);
  graph_.Rename(node->output(), storage->name() + ".copy");
  result_.steps.push_back(node);
  result_.placements[node->output()] = placement;
  return node->output();
}

// Returns what `value` is if its storage is `storage`: repeats its views before
// `before`, or at the end of the graph.
Value* CopyInserter::WithStorage(Value* value, Value* storage, Node* before) {
  if (value == StorageOf(value)) return storage;
  const Node& view = *value->producer();
  Value* operand = WithStorage(view.input(0), storage, before);
  Value* result = graph_
                      .AddNode(view.kind(), {operand}, view.attrs(),
                               view.location(), before)
                      ->output();
  result->set_type(value->type());  // a pass may have changed its layout
  return result;
}

void CopyInserter::SetOperandStorage(Node* node, size_t operand,
                                     Value* storage) {
  Value* old = node->input(operand);
  if (StorageOf(old) == storage) return;
  node->SetInput(operand, WithStorage(old, storage, node));
  EraseUnusedViews(old);
}

void CopyInserter::EraseUnusedViews(Value* value) {
  while (value->producer() != nullptr && ir::IsView(*value->producer()) &&
         graph_.IsUnused(value)) {
    Node* view = value->producer();
    value = view->input(0);
    graph_.Erase(view);
  }
}

}  // namespace

BufferConstraints InsertCopies(Graph& graph, std::span<Node* const> order,
                               const LoweredNodes& lowered,
                               const StateLayout* state) {
  return CopyInserter(graph, lowered, state).Run(order);
}

}  // namespace fusor::codegen
