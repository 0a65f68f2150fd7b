#include "passes/collectives/shard_layout.h"

#include <set>
#include <string>
#include <vector>

#include "ir/shard.h"
#include "ir/support/error.h"
#include "passes/collectives/collective.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::TensorType;
using ir::Value;

// Returns the reduce-scatter from which the shard's next value is computed,
// element by element.
Node* SumOf(const Value& updated) {
  std::vector<const Value*> values{&updated};
  std::set<const Value*> seen{&updated};
  Node* sum = nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    Node* producer = values[i]->producer();
    if (producer == nullptr) continue;
    if (IsSumOverRanks(*producer)) {
      FUSOR_ASSERT(sum == nullptr || sum == producer, "{}: of two sums",
                   updated.name());
      sum = producer;
      continue;
    }
    for (const Value* operand : producer->inputs()) {
      const bool alike = operand->type().shape == updated.type().shape;
      if (alike && seen.insert(operand).second) values.push_back(operand);
    }
  }
  return sum;
}

// Returns the reshapes of the gathered shards to the parameter's shape.
std::vector<Node*> Wholes(const Value& updated, const ir::Shape& shape) {
  std::vector<Node*> wholes;
  std::vector<const Value*> values;
  for (const ir::Use& use : updated.uses()) {
    if (use.node->HasTrait(ir::OpTrait::kCollective))
      values.push_back(use.node->output());
  }
  for (size_t i = 0; i < values.size(); ++i) {
    for (const ir::Use& use : values[i]->uses()) {
      if (use.node->num_inputs() != 1) continue;
      const Value* result = use.node->output();
      if (result->type().shape == shape) {
        wholes.push_back(use.node);
      } else {
        values.push_back(result);
      }
    }
  }
  return wholes;
}

class Storing {
 public:
  Storing(Graph& graph, const TensorType& type)
      : graph_(graph),
        type_(type),
        order_(FormatLayout(type.layout, type.rank())) {}

  void Sum(Node& sum) {
    FUSOR_ASSERT(sum.num_inputs() == 1, "{} sums", sum.num_inputs());
    ir::Builder b(graph_, &sum);
    b.Inherit(sum.location());
    Value* gradient = sum.input(0);
    Node* copy = gradient->producer();
    if (IsCopyOf(copy, type_.layout)) {
      gradient = copy->input(0);
    } else {
      gradient = b.Copy(gradient, type_.layout);
    }
    sum.SetInput(0,
                 b.Add("flatten", {gradient}, {{"order", order_}})->output());
    if (copy != nullptr && copy != gradient->producer() &&
        graph_.IsUnused(copy->output())) {
      graph_.Erase(copy);
    }
  }

  void Whole(Node& reshape) {
    ir::Builder b(graph_, &reshape);
    b.Inherit(reshape.location());
    const TensorType row_major = reshape.output()->type();
    Value* flat = b.Reshape(reshape.input(0), {row_major.num_elements()});
    Value* whole =
        UnflattenParts(b, flat, {row_major.dtype, type_.shape, type_.layout});
    std::vector<Node*> dead;
    const std::vector<ir::Use> uses = reshape.output()->uses();
    for (const ir::Use& use : uses) {
      Value* result = use.node->output();
      if (use.node->kind() == OpKind::kCopy &&
          result->type() == whole->type()) {
        graph_.ReplaceAllUses(result, whole);
        dead.push_back(use.node);
      }
    }
    graph_.EraseAll(dead);
    if (!graph_.IsUnused(reshape.output())) {
      graph_.ReplaceAllUses(reshape.output(), b.Copy(whole, {}));
    }
    graph_.Erase(&reshape);
  }

 private:
  static bool IsCopyOf(const Node* node, const ir::Layout& layout) {
    return IsOp(node, OpKind::kCopy) &&
           node->input(0)->type().layout == layout &&
           node->input(0)->type().dtype == node->output()->type().dtype;
  }

  Graph& graph_;
  const TensorType type_;
  const std::string order_;
};

}  // namespace

Value* UnflattenParts(ir::Builder& builder, Value* flat,
                      const TensorType& type) {
  return builder
      .Add("unflatten", {flat},
           {{"shape", type.shape},
            {"order", FormatLayout(type.layout, type.rank())}})
      ->output();
}

bool ShardInPhysicalLayout(Graph& graph) {
  bool changed = false;
  for (const ir::Input& input : graph.inputs()) {
    const Value* shard = graph.FindInput(ir::ShardName(input.value->name()));
    if (shard == nullptr || input.value->type().layout.is_row_major()) continue;
    for (const ir::Output& output : graph.outputs()) {
      if (output.alias != shard->index()) continue;
      Node* sum = SumOf(*output.value);
      FUSOR_ASSERT(sum != nullptr, "{}: of no sum", output.name);
      Storing storing(graph, input.value->type());
      storing.Sum(*sum);
      for (Node* whole : Wholes(*output.value, input.value->type().shape)) {
        storing.Whole(*whole);
      }
      changed = true;
      break;
    }
  }
  return changed;
}

Value* GatherParts(ir::Builder& builder, Value* part,
                   const ir::TensorType& type, int64_t ranks) {
  Value* parts =
      builder.Add("all_gather", {part}, {{"ranks", ranks}})->output();
  const int64_t n = type.num_elements();
  parts = builder.Reshape(parts, {parts->type().num_elements()});
  if (parts->type().num_elements() > n) {
    parts = builder.Slice(parts, {0}, {n});
  }
  if (type.layout.is_row_major()) return builder.Reshape(parts, type.shape);
  return UnflattenParts(builder, parts, type);
}

}  // namespace fusor::passes
