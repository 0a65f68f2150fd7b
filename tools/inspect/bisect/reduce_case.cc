#include "tools/inspect/bisect/reduce_case.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/verifier.h"
#include "passes/simplify/dead_code.h"

namespace fusor::inspect {
namespace {

using ir::Graph;
using ir::Node;
using ir::Tensor;
using ir::Value;

std::vector<size_t> UpTo(size_t n) {
  std::vector<size_t> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = i;
  return all;
}

// Builds a case from some nodes and outputs of a graph.
class Selection {
 public:
  explicit Selection(const TestCase& original) : graph_(*original.graph) {
    ir::Interpret(graph_, original.inputs, ir::EvalMode::kTyped,
                  [&](const Value& value, const Tensor& tensor) {
                    values_[&value] = tensor;
                  });
  }

  // Returns nullopt if the selection has no outputs.
  std::optional<TestCase> Take(const std::vector<size_t>& nodes,
                               const std::vector<size_t>& outputs) const;

 private:
  struct Copy {
    TestCase made;
    std::unordered_map<const Value*, Value*> map;
  };
  void Need(const Value* value, Copy& copy) const;
  void AddOutputs(const std::unordered_set<const Node*>& kept,
                  const std::vector<size_t>& outputs, Copy& copy) const;

  const Graph& graph_;
  std::unordered_map<const Value*, Tensor> values_;
};

void Selection::Need(const Value* value, Copy& copy) const {
  if (copy.map.contains(value)) return;
  Graph& graph = *copy.made.graph;
  if (value->producer() == nullptr) {
    const ir::Input& input = graph_.inputs()[value->index()];
    copy.map[value] =
        graph.AddInput(value->type(), input.role, value->name(), input.attrs);
  } else {
    copy.map[value] =
        graph.AddInput(value->type(), ir::InputRole::kData, value->name());
  }
  copy.made.inputs.push_back(values_.at(value));
}

// Adds the chosen outputs still computed, and values that lost all readers.
void Selection::AddOutputs(const std::unordered_set<const Node*>& kept,
                           const std::vector<size_t>& outputs,
                           Copy& copy) const {
  Graph& graph = *copy.made.graph;
  std::unordered_set<const Value*> named;
  for (size_t i : outputs) {
    const ir::Output& output = graph_.outputs()[i];
    if (!kept.contains(output.value->producer())) continue;
    int alias = -1;
    if (output.alias >= 0) {
      const auto it = copy.map.find(graph_.input(output.alias));
      if (it != copy.map.end()) alias = it->second->index();
    }
    graph.AddOutput(copy.map.at(output.value), output.name, alias);
    named.insert(output.value);
  }
  // Adds values that lost their readers. Adds values that never had readers
  // only if there are no other outputs.
  for (const bool unread : {false, true}) {
    if (unread && !graph.outputs().empty()) break;
    for (const auto& node : graph_.nodes()) {
      if (!kept.contains(node.get())) continue;
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        const Value* value = node->output(i);
        const bool read = std::any_of(
            value->uses().begin(), value->uses().end(),
            [&](const ir::Use& use) { return kept.contains(use.node); });
        if (read || value->uses().empty() != unread || named.contains(value)) {
          continue;
        }
        graph.AddOutput(copy.map.at(value), "value/" + value->name());
      }
    }
  }
}

std::optional<TestCase> Selection::Take(
    const std::vector<size_t>& nodes,
    const std::vector<size_t>& outputs) const {
  Copy copy;
  copy.made.graph = std::make_unique<Graph>(graph_.name());
  std::unordered_set<const Node*> kept;
  for (size_t i : nodes) {
    const Node& node = *graph_.nodes()[i];
    kept.insert(&node);
    std::vector<Value*> inputs;
    for (const Value* input : node.inputs()) {
      Need(input, copy);
      inputs.push_back(copy.map.at(input));
    }
    Node* made = copy.made.graph->AddNode(
        node.kind(), inputs, node.attrs(), node.location(), nullptr,
        node.body() != nullptr ? node.body()->Clone() : nullptr);
    for (size_t k = 0; k < node.num_outputs(); ++k) {
      made->output(k)->set_type(node.output(k)->type());
      copy.made.graph->Rename(made->output(k), node.output(k)->name());
      copy.map[node.output(k)] = made->output(k);
    }
  }
  AddOutputs(kept, outputs, copy);
  if (copy.made.graph->outputs().empty()) return std::nullopt;
  return std::move(copy.made);
}

// --- Smaller tensors --------------------------------------------------------

// Returns the leading elements of each dimension, up to the shape of `type`.
Tensor Crop(const Tensor& tensor, const ir::TensorType& type) {
  Tensor cropped{type, std::vector<double>(type.num_elements())};
  const ir::Shape& from = tensor.type.shape;
  const ir::Shape& to = type.shape;
  for (size_t i = 0; i < cropped.data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    int64_t source = 0;
    int64_t stride = 1;
    for (size_t d = to.size(); d-- > 0;) {
      source += rest % to[d] * stride;
      rest /= to[d];
      stride *= from[d];
    }
    cropped.data[i] = tensor.data[source];
  }
  return cropped;
}

void Replace(ir::Shape& shape, const ExtentMap& extents) {
  for (int64_t& extent : shape) {
    const auto it = extents.find(extent);
    if (it != extents.end()) extent = it->second;
  }
}

// Replaces extents in attributes that hold shapes.
ir::Attrs AttrsWithExtents(const ir::Attrs& attrs, const ExtentMap& extents) {
  ir::Attrs changed = attrs;
  for (const char* name : {"shape", "limit", "input_shape", "weight_shape"}) {
    if (!attrs.Has(name)) continue;
    ir::Shape shape = attrs.Ints(name);
    Replace(shape, extents);
    changed.Set(name, shape);
  }
  return changed;
}

std::set<int64_t, std::greater<>> Extents(const Graph& graph) {
  std::set<int64_t, std::greater<>> extents;
  for (const ir::Input& input : graph.inputs()) {
    const ir::Shape& shape = input.value->type().shape;
    extents.insert(shape.begin(), shape.end());
  }
  for (const auto& node : graph.nodes()) {
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const ir::Shape& shape = node->output(i)->type().shape;
      extents.insert(shape.begin(), shape.end());
    }
  }
  return extents;
}

// --- Search -----------------------------------------------------------------

class Reducer {
 public:
  Reducer(const TestCase& original, const StillFails& fails,
          const std::function<bool()>& stop)
      : best_(original.Clone()), fails_(fails), stop_(stop) {}

  TestCase Run() {
    LeaveOut();
    Bypass();
    ShrinkExtents();
    return std::move(best_);
  }

 private:
  // Keeps the case if it still fails.
  bool Try(std::optional<TestCase> candidate) {
    if (!candidate.has_value()) return false;
    try {
      ir::Verify(*candidate->graph);
      if (!fails_(*candidate)) return false;
    } catch (const Error&) {
      return false;
    }
    best_ = std::move(*candidate);
    return true;
  }

  // Removes runs of `items`, long ones first, if `attempt` of the rest
  // succeeds.
  template <typename Attempt>
  void Minimize(std::vector<size_t>& items, const Attempt& attempt) const {
    for (size_t run = (items.size() + 1) / 2; run > 0;
         run = run == 1 ? 0 : (run + 1) / 2) {
      for (size_t i = 0; i < items.size();) {
        if (stop_()) return;
        std::vector<size_t> rest(items.begin(), items.begin() + i);
        rest.insert(rest.end(), items.begin() + std::min(i + run, items.size()),
                    items.end());
        if (!rest.empty() && attempt(rest)) {
          items = std::move(rest);
        } else {
          i += run;
        }
      }
    }
  }

  void LeaveOut() {
    const TestCase original = best_.Clone();
    const Selection selection(original);
    std::vector<size_t> nodes = UpTo(original.graph->nodes().size());
    std::vector<size_t> outputs = UpTo(original.graph->outputs().size());
    Minimize(outputs, [&](const std::vector<size_t>& rest) {
      return Try(selection.Take(nodes, rest));
    });
    Minimize(nodes, [&](const std::vector<size_t>& rest) {
      return Try(selection.Take(rest, outputs));
    });
    // Single nodes may be removable now even if no run was.
    for (size_t before = 0; before != nodes.size();) {
      before = nodes.size();
      for (size_t i = nodes.size(); i-- > 0 && nodes.size() > 1;) {
        if (stop_()) return;
        std::vector<size_t> rest = nodes;
        rest.erase(rest.begin() + static_cast<int64_t>(i));
        if (Try(selection.Take(rest, outputs))) nodes = std::move(rest);
      }
    }
  }

  // Replaces a node's result by an operand of the same type. Removes links of a
  // chain whose ends must stay, e.g. before a loss, which cannot be left out.
  void Bypass() {
    for (size_t i = best_.graph->nodes().size(); i-- > 0;) {
      if (stop_()) return;
      if (i >= best_.graph->nodes().size()) continue;
      const size_t operands = best_.graph->nodes()[i]->num_inputs();
      for (size_t k = 0; k < operands; ++k) {
        if (TryBypass(i, k)) break;
      }
    }
  }

  bool TryBypass(size_t position, size_t operand) {
    TestCase candidate = best_.Clone();
    Graph& graph = *candidate.graph;
    const Node& node = *graph.nodes()[position];
    Value* result = node.output();
    Value* input = node.input(operand);
    if (input->type() != result->type()) return false;
    graph.ReplaceAllUses(result, input);
    passes::EraseDeadNodes(graph);
    for (size_t i = graph.inputs().size(); i-- > 0;) {
      const bool aliased = std::any_of(
          graph.outputs().begin(), graph.outputs().end(),
          [&](const ir::Output& o) { return o.alias == static_cast<int>(i); });
      if (aliased || !graph.IsUnused(graph.input(i))) continue;
      graph.EraseInput(i);
      candidate.inputs.erase(candidate.inputs.begin() +
                             static_cast<std::ptrdiff_t>(i));
    }
    if (graph.nodes().empty()) return false;
    return Try(std::move(candidate));
  }

  void ShrinkExtents() {
    for (int64_t extent : Extents(*best_.graph)) {
      for (const int64_t to : {int64_t{1}, int64_t{2}, extent / 2}) {
        if (stop_()) return;
        if (to > 0 && to < extent && TryExtent(extent, to)) break;
      }
    }
  }

  bool TryExtent(int64_t from, int64_t to) {
    TestCase candidate;
    try {
      candidate.graph = WithExtents(*best_.graph, {{from, to}});
    } catch (const Error&) {
      return false;
    }
    for (size_t i = 0; i < best_.inputs.size(); ++i) {
      candidate.inputs.push_back(
          Crop(best_.inputs[i], candidate.graph->input(i)->type()));
    }
    return Try(std::move(candidate));
  }

  TestCase best_;
  const StillFails& fails_;
  const std::function<bool()>& stop_;
};

}  // namespace

TestCase TestCase::Clone() const { return {graph->Clone(), inputs}; }

std::unique_ptr<Graph> WithExtents(const Graph& graph,
                                   const ExtentMap& extents) {
  auto made = std::make_unique<Graph>(graph.name());
  std::unordered_map<const Value*, Value*> map;
  for (const ir::Input& input : graph.inputs()) {
    ir::TensorType type = input.value->type();
    Replace(type.shape, extents);
    map[input.value.get()] =
        made->AddInput(type, input.role, input.value->name(), input.attrs);
  }
  for (const auto& node : graph.nodes()) {
    std::vector<Value*> inputs;
    for (const Value* value : node->inputs()) inputs.push_back(map.at(value));
    Node* copy = made->AddNode(
        node->kind(), inputs, AttrsWithExtents(node->attrs(), extents),
        node->location(), nullptr,
        node->body() != nullptr ? WithExtents(*node->body(), extents)
                                : nullptr);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      ir::TensorType type = copy->output(i)->type();
      type.layout = node->output(i)->type().layout;
      copy->output(i)->set_type(type);
      made->Rename(copy->output(i), node->output(i)->name());
      map[node->output(i)] = copy->output(i);
    }
  }
  for (const ir::Output& output : graph.outputs()) {
    made->AddOutput(map.at(output.value), output.name, output.alias);
  }
  return made;
}

TestCase ReduceCase(const TestCase& original, const StillFails& fails,
                    const std::function<bool()>& stop) {
  return Reducer(original, fails, stop).Run();
}

}  // namespace fusor::inspect
