#include "ir/verifier.h"

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/weight_copy.h"

namespace fusor::ir {
namespace {

std::string Describe(const Node& node) {
  std::vector<std::string> names;
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    names.push_back("%" + node.output(i)->name());
  }
  return fmt::format("{} = {}{}",
                     Join(names, ", ", [](const std::string& n) { return n; }),
                     node.op_name(), AtLocation(node.location()));
}

// Sites of the `random` nodes visited so far, shared by a graph and its bodies.
using Sites = std::unordered_set<int64_t>;

class Verifier {
 public:
  Verifier(const Graph& graph, std::string where, Sites& sites)
      : graph_(graph), where_(std::move(where)), sites_(sites) {}

  void Run() {
    for (const Input& input : graph_.inputs()) CheckInput(input);
    for (const auto& node : graph_.nodes()) {
      node_ = node.get();
      CheckNode(*node);
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        Define(*node->output(i), static_cast<int>(i), node.get());
      }
      ++position_;
    }
    node_ = nullptr;
    CheckUses();
    CheckOutputs();
    for (const Input& input : graph_.inputs()) {
      if (input.role == InputRole::kWeightCopy) CheckWeightCopy(input);
    }
  }

 private:
  template <typename... Args>
  void Require(bool condition, fmt::format_string<Args...> format,
               Args&&... args) const {
    if (condition) [[likely]] {
      return;
    }
    Reject(fmt::format(format, std::forward<Args>(args)...));
  }

  [[noreturn]] void Reject(const std::string& rule) const {
    throw Violation{
        fmt::format("{}: {}{}", where_,
                    node_ == nullptr ? "" : Describe(*node_) + ": ", rule),
        node_, output_};
  }

  // Rethrows an error of an op or a type as an error about this node.
  template <typename Function>
  void Attempt(Function function) const {
    try {
      function();
    } catch (const Error& error) {
      Reject(error.what());
    }
  }

  void Define(const Value& value, int index, const Node* producer) {
    Require(value.producer() == producer && value.index() == index,
            "%{} does not know its producer", value.name());
    Require(names_.insert(value.name()).second, "name %{} is taken",
            value.name());
    Attempt([&] { CheckType(value.type()); });
    defined_.insert(&value);
  }

  void CheckInput(const Input& input) {
    Require(input.value != nullptr, "input {} has no value", defined_.size());
    Define(*input.value, static_cast<int>(defined_.size()), nullptr);
  }

  void CheckWeightCopy(const Input& input) const {
    Attempt([&] {
      CopyRounding(input.attrs);
      const std::string& name = CopiedWeight(input.attrs);
      const Value* weight = graph_.FindInput(name);
      Require(weight != nullptr &&
                  IsParameter(graph_.inputs()[weight->index()].role) &&
                  weight->type().shape == input.value->type().shape,
              "%{} is not a copy of {}", input.value->name(), name);
    });
  }

  void CheckNode(const Node& node) {
    Require(node.position() == position_, "position {} is recorded as {}",
            position_, node.position());
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      // Only compares pointers: an undefined operand may be freed already.
      Require(defined_.contains(node.input(i)),
              "operand {} is not defined before its use", i);
    }
    Attempt([&] { CheckAttrs(node.op(), node.attrs()); });
    CheckResults(node);
    if (node.op().layout == LayoutRule::kRowMajor) CheckRowMajor(node);
    if (node.op().layout == LayoutRule::kOrdered) CheckUntiled(node);
    if (node.op().layout == LayoutRule::kSame) CheckOneLayout(node);
    if (node.kind() == OpKind::kRandom) {
      Require(sites_.insert(node.attrs().Int("site")).second,
              "random site {} is used twice", node.attrs().Int("site"));
    }
    if (node.body() != nullptr) CheckBody(node);
  }

  void CheckResults(const Node& node) const {
    std::vector<TensorType> operands;
    for (const Value* value : node.inputs()) operands.push_back(value->type());
    std::vector<TensorType> inferred;
    Attempt([&] {
      inferred = InferResults(node.op(), operands, node.attrs(), node.body());
    });
    Require(!inferred.empty(), "a node without results");
    Require(node.num_outputs() == inferred.size(),
            "expected {} results, got {}", inferred.size(), node.num_outputs());
    const bool exact = node.op().layout == LayoutRule::kSame ||
                       node.kind() == OpKind::kCopy || node.body() != nullptr;
    for (size_t i = 0; i < inferred.size(); ++i) {
      const TensorType& type = node.output(i)->type();
      if (!exact) inferred[i].layout = type.layout;
      Require(type == inferred[i], "result {}: expected {}, got {}", i,
              ToString(inferred[i]), ToString(type));
    }
  }

  void CheckRowMajor(const Node& node) const {
    ForEachValue(node, [&](const TensorType& type) {
      Require(type.layout.is_row_major(),
              "expected row-major operands and results, got {}",
              ToString(type));
    });
  }

  void CheckUntiled(const Node& node) const {
    ForEachValue(node, [&](const TensorType& type) {
      Require(type.layout.tiles.empty(),
              "expected operands and results without tiles, got {}",
              ToString(type));
    });
  }

  template <typename Check>
  static void ForEachValue(const Node& node, Check check) {
    for (const Value* value : node.inputs()) check(value->type());
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      check(node.output(i)->type());
    }
  }

  void CheckOneLayout(const Node& node) const {
    if (node.op().max_inputs < 0) return;
    for (const Value* a : node.inputs()) {
      for (const Value* b : node.inputs()) {
        Require(a->type().rank() != b->type().rank() ||
                    a->type().layout == b->type().layout,
                "expected operands of one layout, got {} and {}",
                ToString(a->type()), ToString(b->type()));
      }
    }
  }

  void CheckBody(const Node& node) const {
    const Graph& body = *node.body();
    Require(body.inputs().size() == node.num_inputs(),
            "a body of {} inputs, {} operands", body.inputs().size(),
            node.num_inputs());
    for (const auto& inner : body.nodes()) {
      Require(inner->HasTrait(OpTrait::kPure) && !inner->op().has_body,
              "{} inside a body", inner->op_name());
    }
    try {
      Verifier(body, where_ + ": body of " + Describe(node), sites_).Run();
    } catch (Violation& violation) {
      if (violation.node == nullptr) violation.node = &node;
      throw;
    }
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      const Input& input = body.inputs()[i];
      Require(input.value->type() == node.input(i)->type(),
              "operand {} is {}, the body's input {}", i,
              ToString(node.input(i)->type()), ToString(input.value->type()));
      Require(input.role == InputRole::kData && input.attrs.values().empty(),
              "the body's input %{} is not plain data", input.value->name());
    }
    for (const Output& output : body.outputs()) {
      Require(output.alias < 0, "an alias inside a body");
    }
  }

  // Checks that use lists contain each operand slot once, and nothing else.
  void CheckUses() const {
    std::unordered_map<const Node*, std::vector<bool>> seen;
    size_t slots = 0;
    for (const auto& node : graph_.nodes()) {
      seen[node.get()].assign(node->num_inputs(), false);
      slots += node->num_inputs();
    }
    size_t uses = 0;
    const auto check = [&](const Value& value) {
      for (const Use& use : value.uses()) {
        const auto slot = seen.find(use.node);
        const size_t operand = static_cast<size_t>(use.operand);
        Require(slot != seen.end() && operand < slot->second.size() &&
                    use.node->input(operand) == &value &&
                    !slot->second[operand],
                "%{} lists a use that is none", value.name());
        slot->second[operand] = true;
        ++uses;
      }
    };
    for (const Input& input : graph_.inputs()) check(*input.value);
    for (const auto& node : graph_.nodes()) {
      for (size_t i = 0; i < node->num_outputs(); ++i) check(*node->output(i));
    }
    Require(uses == slots, "{} operands, but {} uses are listed", slots, uses);
  }

  void CheckOutputs() {
    std::unordered_set<std::string> names;
    std::unordered_set<int> aliases;
    for (const Output& output : graph_.outputs()) {
      ++output_;
      Require(defined_.contains(output.value),
              "output \"{}\" is not a value of the graph", output.name);
      Require(output.name.empty() || names.insert(output.name).second,
              "two outputs \"{}\"", output.name);
      if (output.alias < 0) continue;
      Require(output.alias < static_cast<int>(graph_.inputs().size()),
              "output \"{}\" is the alias of input {} of {}", output.name,
              output.alias, graph_.inputs().size());
      const Value& input = *graph_.input(static_cast<size_t>(output.alias));
      Require(output.value->type() == input.type(),
              "output \"{}\" is {}, its alias %{} is {}", output.name,
              ToString(output.value->type()), input.name(),
              ToString(input.type()));
      Require(aliases.insert(output.alias).second,
              "input %{} is the alias of two outputs", input.name());
    }
  }

  const Graph& graph_;
  const std::string where_;
  Sites& sites_;
  const Node* node_ = nullptr;  // being checked, for messages
  int output_ = -1;             // being checked, for messages
  int position_ = 0;
  std::unordered_set<const Value*> defined_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::optional<Violation> FindViolation(const Graph& graph) {
  Sites sites;
  try {
    Verifier(graph, "graph " + graph.name(), sites).Run();
  } catch (Violation& violation) {
    return std::move(violation);
  }
  return std::nullopt;
}

void Verify(const Graph& graph) {
  const auto violation = FindViolation(graph);
  if (violation) ThrowError(ErrorCode::kGraph, violation->rule);
}

}  // namespace fusor::ir
