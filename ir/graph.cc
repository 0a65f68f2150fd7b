#include "ir/graph.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

constexpr std::string_view kRoleNames[] = {"data",
                                           "weight",
                                           "bias",
                                           "norm_scale",
                                           "norm_shift",
                                           "statistic",
                                           "optimizer_state",
                                           "accumulator",
                                           "weight_copy",
                                           "hyper_parameter"};

}  // namespace

std::string_view InputRoleName(InputRole role) {
  return kRoleNames[static_cast<int>(role)];
}

std::optional<InputRole> ParseInputRole(std::string_view name) {
  for (size_t i = 0; i < std::size(kRoleNames); ++i) {
    if (kRoleNames[i] == name) return static_cast<InputRole>(i);
  }
  return std::nullopt;
}

bool IsParameter(InputRole role) {
  return role == InputRole::kWeight || role == InputRole::kBias ||
         role == InputRole::kNormScale || role == InputRole::kNormShift;
}

bool IsState(InputRole role) {
  return IsParameter(role) || role == InputRole::kStatistic ||
         role == InputRole::kOptimizerState ||
         role == InputRole::kAccumulator || role == InputRole::kWeightCopy;
}

OpKind Node::kind() const { return op_->kind; }

std::string_view Node::op_name() const { return op_->name; }

bool Node::HasTrait(OpTrait trait) const { return op_->Has(trait); }

bool IsOp(const Node* node, OpKind kind) {
  return node != nullptr && node->kind() == kind;
}

Location LocationOf(const Value& value) {
  return value.producer() == nullptr ? Location()
                                     : value.producer()->location();
}

void Node::SetInput(size_t i, Value* value) {
  FUSOR_CHECK(value != nullptr && i < inputs_.size(), kGraph,
              "{}{}: operand {} of {}: expected a value, got {}", op_name(),
              AtLocation(location_), i, inputs_.size(),
              value == nullptr ? "null" : value->name());
  const Use use{this, static_cast<int>(i)};
  std::erase(inputs_[i]->uses_, use);
  inputs_[i] = value;
  value->uses_.push_back(use);
}

struct Graph::Names {
  std::unordered_set<std::string> taken;
  std::unordered_map<std::string, int> next_suffix;
};

Graph::Graph(std::string name)
    : name_(std::move(name)), names_(std::make_unique<Names>()) {}
Graph::~Graph() = default;

// Returns "x" if it is free, then "x_1", "x_2", ...
std::string Graph::UniqueName(std::string wanted) {
  if (names_->taken.insert(wanted).second) return wanted;
  int& suffix = names_->next_suffix[wanted];
  for (;;) {
    std::string candidate = wanted + "_" + std::to_string(++suffix);
    if (names_->taken.insert(candidate).second) return candidate;
  }
}

Value* Graph::AddInput(TensorType type, InputRole role, std::string name,
                       Attrs attrs) {
  auto value = std::make_unique<Value>();
  value->type_ = std::move(type);
  value->index_ = static_cast<int>(inputs_.size());
  value->name_ = UniqueName(name.empty() ? "in" : std::move(name));
  inputs_.push_back({std::move(value), role, std::move(attrs)});
  return inputs_.back().value.get();
}

namespace {

// Rethrows an error with the node that it is about.
[[noreturn]] void Reject(std::string_view op, const std::vector<Value*>& inputs,
                         const Location& location, const Error& error) {
  ThrowError(
      ErrorCode::kGraph,
      fmt::format("{}({}){}: {}", op,
                  Join(inputs, ", ",
                       [](const Value* v) { return ToString(v->type()); }),
                  AtLocation(location), error.what()));
}

void CheckOperands(std::string_view op, const std::vector<Value*>& inputs,
                   const Location& location) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    FUSOR_CHECK(inputs[i] != nullptr, kGraph,
                "{}{}: operand {}: expected a value, got null", op,
                AtLocation(location), i);
  }
}

OpKind KindOf(std::string_view name, const Location& location) {
  try {
    return GetOp(name).kind;
  } catch (const Error& error) {
    ThrowError(ErrorCode::kGraph, error.what() + AtLocation(location));
  }
}

std::vector<TensorType> ResultTypes(const OpDef& op,
                                    const std::vector<Value*>& inputs,
                                    Attrs& attrs, const Graph* body,
                                    const Location& location) {
  try {
    FillDefaults(op, attrs);
    CheckAttrs(op, attrs);
    std::vector<TensorType> types;
    for (const Value* value : inputs) types.push_back(value->type());
    return InferResults(op, types, attrs, body);
  } catch (const Error& error) {
    Reject(op.name, inputs, location, error);
  }
}

// Derives names from location and op only, so changes elsewhere do not rename
// it.
std::string ResultName(std::string_view op, const std::string& location) {
  if (location.empty()) return std::string(op);
  const size_t dot = location.rfind('.');
  const std::string_view last = std::string_view(location).substr(dot + 1);
  return last == op ? location : fmt::format("{}.{}", location, op);
}

}  // namespace

Node* Graph::AddNode(std::string_view name, std::vector<Value*> inputs,
                     Attrs attrs, Location location, Node* before,
                     std::unique_ptr<Graph> body) {
  const OpKind kind = KindOf(name, location);
  return AddNode(kind, std::move(inputs), std::move(attrs), std::move(location),
                 before, std::move(body));
}

Node* Graph::AddNode(OpKind kind, std::vector<Value*> inputs, Attrs attrs,
                     Location location, Node* before,
                     std::unique_ptr<Graph> body) {
  const OpDef& op = GetOp(kind);
  CheckOperands(op.name, inputs, location);
  std::vector<TensorType> types =
      ResultTypes(op, inputs, attrs, body.get(), location);
  auto node = std::make_unique<Node>();
  node->op_ = &op;
  node->inputs_ = std::move(inputs);
  node->attrs_ = std::move(attrs);
  node->location_ = std::move(location);
  node->body_ = std::move(body);
  for (size_t i = 0; i < node->inputs_.size(); ++i) {
    node->inputs_[i]->uses_.push_back({node.get(), static_cast<int>(i)});
  }
  for (size_t i = 0; i < types.size(); ++i) {
    auto value = std::make_unique<Value>();
    value->type_ = std::move(types[i]);
    value->producer_ = node.get();
    value->index_ = static_cast<int>(i);
    value->name_ = UniqueName(ResultName(op.name, node->location_.path));
    node->outputs_.push_back(std::move(value));
  }
  Node* result = node.get();
  if (before == nullptr) {
    node->position_ = static_cast<int>(nodes_.size());
    nodes_.push_back(std::move(node));
  } else {
    const auto position = static_cast<size_t>(before->position_);
    nodes_.insert(nodes_.begin() + before->position_, std::move(node));
    for (size_t i = position; i < nodes_.size(); ++i) {
      nodes_[i]->position_ = static_cast<int>(i);
    }
  }
  return result;
}

void Graph::AddOutput(Value* value, std::string name, int alias) {
  FUSOR_CHECK(value != nullptr, kGraph,
              "graph {}: output {}: expected a value, got null", name_, name);
  FUSOR_CHECK(-1 <= alias && alias < static_cast<int>(inputs_.size()), kGraph,
              "output {}: alias {} of {} inputs", name, alias, inputs_.size());
  outputs_.push_back({value, std::move(name), alias});
}

Value* Graph::FindInput(std::string_view name) const {
  for (const Input& input : inputs_) {
    if (input.value->name() == name) return input.value.get();
  }
  return nullptr;
}

int Graph::FindOutput(std::string_view name) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

bool Graph::IsOutput(const Value* value) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const Output& o) { return o.value == value; });
}

bool Graph::IsUnused(const Value* value) const {
  return value->uses().empty() && !IsOutput(value);
}

void Graph::Rename(Value* value, std::string name) {
  FUSOR_CHECK(value != nullptr, kGraph,
              "graph {}: rename to {}: expected a value, got null", name_,
              name);
  if (value->name_ == name) return;
  names_->taken.erase(value->name_);
  value->name_ = UniqueName(std::move(name));
}

void Graph::RenameResults(Node* node, std::vector<std::string> names) {
  FUSOR_ASSERT(names.size() == node->num_outputs(), "{} names of {} results",
               names.size(), node->num_outputs());
  for (const auto& value : node->outputs_) names_->taken.erase(value->name_);
  for (size_t i = 0; i < names.size(); ++i) {
    node->outputs_[i]->name_ = UniqueName(std::move(names[i]));
  }
}

void Graph::ReplaceAllUses(Value* from, Value* to) {
  FUSOR_CHECK(from != nullptr && to != nullptr, kGraph,
              "graph {}: replace uses: expected two values, got null", name_);
  if (from == to) return;
  for (const Use& use : from->uses_) {
    use.node->inputs_[use.operand] = to;
    to->uses_.push_back(use);
  }
  from->uses_.clear();
  for (Output& output : outputs_) {
    if (output.value == from) output.value = to;
  }
}

void Graph::Erase(Node* node) { EraseAll({node}); }

void Graph::EraseAll(const std::vector<Node*>& dead) {
  if (dead.empty()) return;
  const std::unordered_set<const Node*> set(dead.begin(), dead.end());
  for (const Output& output : outputs_) {
    FUSOR_ASSERT(!set.contains(output.value->producer()), "erasing output {}",
                 output.value->name());
  }
  std::unordered_set<Value*> operands;
  for (Node* node : dead) {
    for (const auto& output : node->outputs_) {
      for (const Use& use : output->uses_) {
        FUSOR_ASSERT(set.contains(use.node), "erasing {}, used by {}",
                     output->name(), use.node->op_name());
      }
      names_->taken.erase(output->name_);
    }
    operands.insert(node->inputs_.begin(), node->inputs_.end());
    node->inputs_.clear();
  }
  // Once per value, not per use: a constant may have thousands of uses.
  for (Value* value : operands) {
    std::erase_if(value->uses_,
                  [&](const Use& use) { return set.contains(use.node); });
  }
  std::erase_if(nodes_,
                [&](const auto& node) { return set.contains(node.get()); });
  Renumber();
}

void Graph::EraseInput(size_t index) {
  FUSOR_ASSERT(IsUnused(input(index)), "erasing input {} that is used",
               input(index)->name());
  for (Output& output : outputs_) {
    FUSOR_ASSERT(output.alias != static_cast<int>(index),
                 "erasing input {} that is an alias target",
                 input(index)->name());
    if (output.alias > static_cast<int>(index)) --output.alias;
  }
  names_->taken.erase(inputs_[index].value->name_);
  inputs_.erase(inputs_.begin() + static_cast<int64_t>(index));
  for (size_t i = index; i < inputs_.size(); ++i) {
    inputs_[i].value->index_ = static_cast<int>(i);
  }
}

void Graph::Renumber() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->position_ = static_cast<int>(i);
  }
}

void Graph::Reorder(const std::vector<Node*>& order) {
  FUSOR_ASSERT(order.size() == nodes_.size(), "reorder of {} nodes, got {}",
               nodes_.size(), order.size());
  std::unordered_map<const Node*, std::unique_ptr<Node>> owned;
  for (auto& node : nodes_) {
    const Node* key = node.get();
    owned.emplace(key, std::move(node));
  }
  nodes_.clear();
  for (Node* node : order) {
    auto it = owned.find(node);
    FUSOR_ASSERT(it != owned.end() && it->second != nullptr,
                 "reorder names a node twice or a foreign one");
    nodes_.push_back(std::move(it->second));
  }
  Renumber();
  for (const auto& node : nodes_) {
    for (const Value* value : node->inputs_) {
      FUSOR_ASSERT(value->producer() == nullptr ||
                       value->producer()->position() < node->position(),
                   "reorder puts {} before its operand {}", node->op_name(),
                   value->name());
    }
  }
}

void Graph::SortTopologically() {
  std::vector<Node*> present;
  for (const auto& node : nodes_) present.push_back(node.get());
  SortTopologically(present);
}

// Visits depth-first from each node in the wanted order, so that a node moves
// only if one of its operands would come later.
void Graph::SortTopologically(const std::vector<Node*>& wanted) {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> mark(nodes_.size(), Mark::kNew);
  std::vector<Node*> order;
  std::vector<std::pair<Node*, size_t>> stack;
  for (Node* root : wanted) {
    if (mark[root->position_] != Mark::kNew) continue;
    stack.emplace_back(root, 0);
    mark[root->position_] = Mark::kOpen;
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == node->inputs_.size()) {
        mark[node->position_] = Mark::kDone;
        order.push_back(node);
        stack.pop_back();
        continue;
      }
      Node* producer = node->inputs_[next++]->producer();
      if (producer == nullptr || mark[producer->position_] == Mark::kDone) {
        continue;
      }
      FUSOR_CHECK(mark[producer->position_] == Mark::kNew, kGraph,
                  "graph {}: cycle through {}", name_,
                  producer->output()->name());
      mark[producer->position_] = Mark::kOpen;
      stack.emplace_back(producer, 0);
    }
  }
  Reorder(order);
}

std::unique_ptr<Graph> Graph::Clone() const {
  auto copy = std::make_unique<Graph>(name_);
  std::unordered_map<const Value*, Value*> map;
  std::unordered_map<const Node*, Node*> twins;
  for (const Input& input : inputs_) {
    map[input.value.get()] = copy->AddInput(input.value->type(), input.role,
                                            input.value->name(), input.attrs);
  }
  for (const auto& node : nodes_) {
    auto twin = std::make_unique<Node>();
    twin->op_ = node->op_;
    twin->attrs_ = node->attrs_;
    twin->location_ = node->location_;
    if (node->body_ != nullptr) twin->body_ = node->body_->Clone();
    for (const Value* input : node->inputs_) {
      twin->inputs_.push_back(map.at(input));
    }
    for (const auto& output : node->outputs_) {
      auto value = std::make_unique<Value>();
      value->type_ = output->type_;
      value->producer_ = twin.get();
      value->index_ = output->index_;
      value->name_ = copy->UniqueName(output->name_);
      map[output.get()] = value.get();
      twin->outputs_.push_back(std::move(value));
    }
    twin->position_ = static_cast<int>(copy->nodes_.size());
    twins[node.get()] = twin.get();
    copy->nodes_.push_back(std::move(twin));
  }
  for (const auto& [value, twin] : map) {
    for (const Use& use : value->uses_) {
      twin->uses_.push_back({twins.at(use.node), use.operand});
    }
  }
  for (const Output& output : outputs_) {
    copy->outputs_.push_back({map.at(output.value), output.name, output.alias});
  }
  *copy->names_ = *names_;
  return copy;
}

namespace {

using Numbering = std::unordered_map<const Value*, int>;

Numbering NumberValues(const Graph& graph) {
  Numbering numbers;
  for (const Input& input : graph.inputs()) {
    numbers.emplace(input.value.get(), static_cast<int>(numbers.size()));
  }
  for (const auto& node : graph.nodes()) {
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      numbers.emplace(node->output(i), static_cast<int>(numbers.size()));
    }
  }
  return numbers;
}

bool SameValue(const Value& a, const Value& b, bool ignore_names) {
  return a.type() == b.type() && (ignore_names || a.name() == b.name());
}

bool SameNode(const Node& a, const Node& b, const Numbering& na,
              const Numbering& nb, bool ignore_names) {
  if (&a.op() != &b.op() || a.num_inputs() != b.num_inputs() ||
      a.num_outputs() != b.num_outputs() || !(a.attrs() == b.attrs()) ||
      a.location() != b.location() ||
      (a.body() == nullptr) != (b.body() == nullptr)) {
    return false;
  }
  for (size_t i = 0; i < a.num_inputs(); ++i) {
    if (na.at(a.input(i)) != nb.at(b.input(i))) return false;
  }
  for (size_t i = 0; i < a.num_outputs(); ++i) {
    if (!SameValue(*a.output(i), *b.output(i), ignore_names)) return false;
  }
  return a.body() == nullptr || SameGraph(*a.body(), *b.body(), ignore_names);
}

}  // namespace

bool SameGraph(const Graph& a, const Graph& b, bool ignore_names) {
  if (a.inputs().size() != b.inputs().size() ||
      a.nodes().size() != b.nodes().size() ||
      a.outputs().size() != b.outputs().size() ||
      (!ignore_names && a.name() != b.name())) {
    return false;
  }
  const Numbering na = NumberValues(a);
  const Numbering nb = NumberValues(b);
  for (size_t i = 0; i < a.inputs().size(); ++i) {
    if (!SameValue(*a.input(i), *b.input(i), ignore_names) ||
        a.inputs()[i].role != b.inputs()[i].role ||
        !(a.inputs()[i].attrs == b.inputs()[i].attrs)) {
      return false;
    }
  }
  for (size_t i = 0; i < a.nodes().size(); ++i) {
    if (!SameNode(*a.nodes()[i], *b.nodes()[i], na, nb, ignore_names)) {
      return false;
    }
  }
  for (size_t i = 0; i < a.outputs().size(); ++i) {
    const Output& x = a.outputs()[i];
    const Output& y = b.outputs()[i];
    if (na.at(x.value) != nb.at(y.value) || x.alias != y.alias ||
        x.name != y.name) {
      return false;
    }
  }
  return true;
}

}  // namespace fusor::ir
