// Chooses layouts and library algorithms once for the whole step.
//
//  1. A convolution's weight is stored in the layout in which the library
//     writes its gradient. Gradient, momentum, weight and update then agree,
//     and the update is one flat loop. Forward and data gradient repack the
//     weight if they require another layout.
//  2. In graph order, library ops take a candidate of the target
//     (ChooseCandidate). Ops with the kSame rule take their operands' layout, a
//     blocked one if any. If a value already has another layout, a `copy` is
//     inserted. A normalisation's gradient takes the layout in which the
//     normalisation read its operand.
//  3. The nodes that FuseNormActivation would fuse get the layout that the
//     fused op would have. The layout determines the summation order over an
//     image, and fusion must not change it.
//  4. Values without a fixed layout (results of re-indexing ops, state,
//     elementwise results of these) take the first layout requested. On a
//     CPU, a concatenation takes its operands' layout if each fills whole
//     tiles.
//  5. Shards of parameters and of their state then use the same physical order
//     (ShardInPhysicalLayout).

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "passes/collectives/shard_layout.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"
#include "passes/patterns/norm_activation.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Layout;
using ir::LayoutRule;
using ir::Node;
using ir::OpKind;
using ir::OpTrait;
using ir::Value;

constexpr char kAssignLayoutPass[] = "assign_layout";

class Assignment {
 public:
  Assignment(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    SeparateNumbers();
    FindSums();
    FixState();
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    for (Node* node : nodes) Visit(*node);
    // A value may have been fixed after some of its users were visited.
    // Visiting these again may fix other values that they read.
    size_t fixed = 0;
    do {
      fixed = fixed_.size();
      for (Node* node : nodes) {
        if (node->op().layout != LayoutRule::kSame) continue;
        if (node->HasTrait(OpTrait::kPure)) {
          VisitAlike(*node);
        } else if (node->HasTrait(OpTrait::kCollective)) {
          KeepPairwise(*node);
        }
      }
    } while (fixed_.size() != fixed);
    MatchAliases();
    return changed_;
  }

 private:
  // --- State -----------------------------------------------------------------

  void FixState() {
    const auto& given = context_.options().state_places;
    for (const ir::Input& input : graph_.inputs()) {
      if (!ir::IsState(input.role)) {
        fixed_.insert(input.value.get());
        continue;
      }
      const auto it = given.find(input.value->name());
      if (it != given.end()) Fix(input.value.get(), it->second.layout);
    }
    for (const auto& node : graph_.nodes()) {
      if (node->kind() != OpKind::kConv2dGradWeight) continue;
      Value* weight = WeightOf(*node);
      const auto candidate = ChooseCandidate(*node, context_);
      if (weight == nullptr || !candidate.has_value() ||
          fixed_.contains(weight)) {
        continue;
      }
      Fix(weight, candidate->results[0]);
    }
  }

  // Returns the parameter whose gradient the node computes: the weight read by
  // the layer with the same location.
  Value* WeightOf(const Node& gradient) const {
    const ir::Shape& shape = gradient.attrs().Ints("weight_shape");
    for (const ir::Input& input : graph_.inputs()) {
      if (input.role != ir::InputRole::kWeight ||
          input.value->type().shape != shape) {
        continue;
      }
      if (IsReadBeside(*input.value, gradient)) return input.value.get();
    }
    return nullptr;
  }

  // Returns true if that layer reads the weight directly or through casts.
  static bool IsReadBeside(const Value& weight, const Node& gradient) {
    return std::any_of(
        weight.uses().begin(), weight.uses().end(), [&](const ir::Use& use) {
          const Node& reader = *use.node;
          const bool cast = reader.num_inputs() == 1 &&
                            reader.op().fusion == ir::FusionKind::kElementwise;
          return cast ? IsReadBeside(*reader.output(), gradient)
                      : reader.location().path == gradient.location().path &&
                            reader.input(0) == gradient.input(0);
        });
  }

  void MatchAliases() {
    ir::Builder builder(graph_);
    for (ir::Output& output : graph_.mutable_outputs()) {
      if (output.alias < 0) continue;
      const Layout& wanted = graph_.input(output.alias)->type().layout;
      if (output.value->type().layout == wanted) continue;
      builder.Inherit(ir::LocationOf(*output.value));
      output.value = builder.Copy(output.value, wanted);
      Count("state_copies");
    }
  }

  // --- Nodes -----------------------------------------------------------------

  void Visit(Node& node) {
    if (node.HasTrait(OpTrait::kCollective) &&
        node.op().layout == LayoutRule::kSame) {
      return VisitPairwise(node);
    }
    switch (node.op().layout) {
      case LayoutRule::kChosen:
        return VisitChosen(node);
      case LayoutRule::kSame:
        return VisitAlike(node);
      case LayoutRule::kRowMajor:
      case LayoutRule::kOrdered:
        for (size_t i = 0; i < node.num_inputs(); ++i) {
          DemandExactly(node, i, {});
        }
        for (size_t i = 0; i < node.num_outputs(); ++i) {
          fixed_.insert(node.output(i));
        }
        if (node.kind() == OpKind::kMatmul) ChooseMatmul(node);
        return;
      case LayoutRule::kMapped:
        return VisitMapped(node);
    }
  }

  // Result i has operand i's layout: all-reduces.
  void VisitPairwise(Node& node) {
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      Fix(node.output(i), node.input(i)->type().layout);
    }
  }

  // The results keep their layout for their readers, even if it has changed for
  // the operands since.
  void KeepPairwise(Node& node) {
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      Demand(node, i, node.output(i)->type().layout);
    }
  }

  void VisitChosen(Node& node) {
    const auto candidate = ChooseCandidate(node, context_);
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      DemandExactly(node, i,
                    candidate.has_value() ? candidate->operands[i] : Layout{});
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      Fix(node.output(i),
          candidate.has_value() ? candidate->results[i] : Layout{});
    }
    if (candidate.has_value() && node.HasTrait(OpTrait::kConvolution)) {
      CountChoice(node);
      Choose(node, *candidate);
    }
  }

  // On a GPU, a kernel for tensor cores may be chosen. Libraries have only one
  // candidate, whose algorithm they choose themselves.
  void ChooseMatmul(Node& node) {
    if (!context_.target().target().simt || !ir::FitsTensorCores(node)) return;
    const auto candidate = ChooseCandidate(node, context_);
    if (candidate.has_value() &&
        candidate->algorithm == ir::kGeneratedAlgorithm) {
      Choose(node, *candidate);
    }
  }

  void Choose(Node& node, const ir::LibraryCandidate& candidate) {
    changed_ |= node.attrs().String("algorithm") != candidate.algorithm;
    node.mutable_attrs().Set("algorithm", candidate.algorithm);
    context_.Record(
        {.pass = kAssignLayoutPass,
         .subject = node.output()->name(),
         .accepted = true,
         .reason = candidate.algorithm + " " + candidate.implementation,
         .modelled_ns = candidate.modelled_ns,
         .location = node.location()});
  }

  // These counters show whether the choices belong to this step.
  void CountChoice(const Node& node) {
    const ir::AutotuneResults& choices = context_.options().choices;
    if (choices.empty()) return;
    const std::string problem = ir::LibraryProblem(node);
    if (problem.empty()) return;
    Count("convolutions");
    const ir::DType dtype = node.input(0)->type().dtype;
    const bool chosen =
        choices.FindCandidate(problem, dtype) != nullptr ||
        choices.FindPrecision(problem, context_.options().precision.dtype) !=
            nullptr;
    context_.counters()["chosen_convolutions"] += chosen ? 1 : 0;
  }

  // Gives each reader its own copy of a number that is broadcast to the shape
  // of a filter. All updates of weights of one shape share the weight decay and
  // the learning rate, but the weights may have different layouts.
  void SeparateNumbers() {
    std::set<ir::Shape> filters;
    for (const ir::Input& input : graph_.inputs()) {
      const ir::Shape& shape = input.value->type().shape;
      if (ir::IsState(input.role) && shape.size() == 4) filters.insert(shape);
    }
    std::vector<Node*> numbers;
    for (const auto& node : graph_.nodes()) {
      const Value& value = *node->output(0);
      const bool broadcast = node->kind() == OpKind::kBroadcast &&
                             node->input(0)->type().num_elements() == 1;
      if (filters.contains(value.type().shape) &&
          (broadcast || SplatAttribute(value).has_value())) {
        numbers.push_back(node.get());
      }
    }
    for (Node* node : numbers) {
      const std::vector<ir::Use> uses = node->output()->uses();
      for (size_t i = 1; i < uses.size(); ++i) {
        ir::Builder builder(graph_, uses[i].node);
        builder.Inherit(node->location());
        uses[i].node->SetInput(
            uses[i].operand,
            builder.Add(node->kind(), node->inputs(), node->attrs())->output());
        changed_ = true;
      }
    }
  }

  // Maps the residual add of each NormActivation, and the normalisations that
  // it adds, to that match.
  void FindSums() {
    const NormActivations matches(graph_);
    for (const auto& node : graph_.nodes()) {
      const NormActivation match = matches.Of(node.get());
      if (match.norm == nullptr || match.add == nullptr) continue;
      for (const Node* part : {match.norm, match.norm2, match.add}) {
        if (part != nullptr) sums_[part] = match;
      }
    }
  }

  void VisitAlike(Node& node) {
    const auto sum = sums_.find(&node);
    if (sum == sums_.end()) return VisitSame(node);
    // No node of rank 4 reads a normalised operand earlier.
    if (&node == sum->second.add) VisitSum(sum->second);
  }

  void VisitSum(const NormActivation& sum) {
    const std::optional<Layout> layout =
        LayoutOf(sum.Operands(), sum.add->output()->type().rank());
    if (!layout.has_value()) return;
    for (Node* part : {sum.norm, sum.norm2, sum.add}) {
      if (part != nullptr) Apply(*part, *layout);
    }
  }

  void VisitSame(Node& node) {
    const size_t rank = node.output()->type().rank();
    const Node* norm = NormOfGradient(node);
    const auto sum = sums_.find(norm);
    if (sum != sums_.end()) norm = sum->second.norm;
    std::optional<Layout> layout;
    if (norm != nullptr) layout = LayoutOf({norm->input(0)}, rank);
    if (!layout.has_value()) layout = LayoutOf(node.inputs(), rank);
    if (layout.has_value()) Apply(node, *layout);
  }

  // Returns the layout of the first operand that has one; prefers a blocked
  // one.
  std::optional<Layout> LayoutOf(const std::vector<Value*>& operands,
                                 size_t rank) const {
    const Layout* layout = nullptr;
    for (const Value* operand : operands) {
      const ir::TensorType& type = operand->type();
      if (type.rank() != rank || IsFlexible(operand)) continue;
      if (layout == nullptr ||
          (layout->tiles.empty() && !type.layout.tiles.empty())) {
        layout = &type.layout;
      }
    }
    return layout != nullptr ? std::optional(*layout) : std::nullopt;
  }

  // Applies the layout to all operands and results of the first result's rank,
  // or the layout of a result that a reader relies on.
  void Apply(Node& node, Layout layout) {
    const size_t rank = node.output()->type().rank();
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      if (demanded_.contains(node.output(i)) &&
          node.output(i)->type().rank() == rank) {
        layout = node.output(i)->type().layout;
      }
    }
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      if (node.input(i)->type().rank() == rank) Demand(node, i, layout);
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      if (node.output(i)->type().rank() == rank) Fix(node.output(i), layout);
    }
  }

  void VisitMapped(Node& node) {
    // On a GPU, slices of few channels with channels last have narrow accesses.
    if (node.kind() == OpKind::kConcat && !context_.target().target().simt) {
      return VisitConcat(node);
    }
    if (node.kind() == OpKind::kConcat || node.kind() == OpKind::kPad) {
      fixed_.insert(node.output());  // row-major
    }
    if (node.kind() == OpKind::kGather) {
      for (const Layout::Tile& tile : node.input(0)->type().layout.tiles) {
        if (node.attrs().Ints("dims")[tile.dim] < 0) {
          return DemandExactly(node, 0, {});
        }
      }
    }
    if (node.kind() != OpKind::kSlice) return;
    const ir::Shape& start = node.attrs().Ints("start");
    const ir::Shape& stride = node.attrs().Ints("stride");
    const Layout& layout = node.input(0)->type().layout;
    for (const Layout::Tile& tile : layout.tiles) {
      const int64_t block = ir::TileExtent(layout, tile.dim);
      const int64_t size = node.output()->type().shape[tile.dim];
      const bool whole = size == node.input(0)->type().shape[tile.dim];
      const bool whole_tiles = start[tile.dim] % block == 0 &&
                               size % block == 0 && stride[tile.dim] == 1;
      if (!whole && !whole_tiles) return DemandExactly(node, 0, {});
    }
  }

  // The result has the layout of an operand if each operand fills whole tiles
  // in it. The kernel reads operands in any layout.
  void VisitConcat(Node& node) {
    const std::vector<Value*>& inputs = node.inputs();
    const size_t rank = node.output()->type().rank();
    Layout layout = LayoutOf(inputs, rank).value_or(Layout{});
    const auto fills_tiles = [&](const Value* input) {
      return std::all_of(layout.tiles.begin(), layout.tiles.end(),
                         [&](const Layout::Tile& tile) {
                           return input->type().shape[tile.dim] %
                                      ir::TileExtent(layout, tile.dim) ==
                                  0;
                         });
    };
    if (!std::all_of(inputs.begin(), inputs.end(), fills_tiles)) layout = {};
    for (Value* input : inputs) {
      if (IsFlexible(input)) Fix(input, layout);
    }
    Fix(node.output(), layout);
  }

  // --- Values ----------------------------------------------------------------

  // Returns true if no layout was chosen and the producer can write any.
  bool IsFlexible(const Value* value) const {
    if (fixed_.contains(value)) return false;
    const Node* producer = value->producer();
    if (producer == nullptr) return true;  // state
    if (producer->op().layout == LayoutRule::kMapped) {
      return producer->kind() != OpKind::kCopy;
    }
    return producer->op().layout == LayoutRule::kSame &&
           producer->HasTrait(OpTrait::kPure) &&
           std::all_of(producer->inputs().begin(), producer->inputs().end(),
                       [&](const Value* input) {
                         return input->type().rank() != value->type().rank() ||
                                IsFlexible(input);
                       });
  }

  // Fixes the layout of a value and of the flexible values it is computed from.
  void Fix(Value* value, const Layout& layout) {
    const Node* producer = value->producer();
    if (producer != nullptr && producer->op().layout == LayoutRule::kSame &&
        producer->HasTrait(OpTrait::kPure) && IsFlexible(value)) {
      for (Value* input : producer->inputs()) {
        if (input->type().rank() == value->type().rank()) Fix(input, layout);
      }
    }
    fixed_.insert(value);
    if (value->type().layout == layout) return;
    ir::TensorType type = value->type();
    type.layout = layout;
    value->set_type(type);
    changed_ = true;
  }

  // Returns true for state, also if cast.
  bool IsState(const Value& value) const {
    const Node* producer = value.producer();
    if (producer == nullptr) {
      return ir::IsState(
          graph_.inputs()[static_cast<size_t>(value.index())].role);
    }
    return producer->num_inputs() == 1 &&
           producer->op().fusion == ir::FusionKind::kElementwise &&
           IsState(*producer->input(0));
  }

  void Demand(Node& node, size_t operand, const Layout& layout) {
    Value* value = node.input(operand);
    if (value->type().layout == layout || IsFlexible(value)) {
      return Fix(value, layout);
    }
    Count(IsState(*value) ? "weight_repacks" : "activation_copies");
    ir::Builder builder(graph_, &node);
    builder.Inherit(node.location());
    Value* copy = builder.Copy(value, layout);
    const Node* cast = value->producer();
    if (cast != nullptr && IsState(*value) &&
        ir::NodeScalar(*cast) == ir::ScalarOp::kIdentity &&
        ir::IsFloat(cast->input(0)->type().dtype) &&
        ir::IsFloat(value->type().dtype)) {
      // One pass over the weight casts and repacks it.
      copy->producer()->SetInput(0, cast->input(0));
      copy->producer()->mutable_attrs().Set(
          "result_dtype", std::string(DTypeName(value->type().dtype)));
    }
    fixed_.insert(copy);
    node.SetInput(operand, copy);
    changed_ = true;
  }

  // For a reader that supports no other layout.
  void DemandExactly(Node& node, size_t operand, const Layout& layout) {
    Demand(node, operand, layout);
    demanded_.insert(node.input(operand));
  }

  void Count(const std::string& counter) { ++context_.counters()[counter]; }

  Graph& graph_;
  PassContext& context_;
  std::unordered_map<const Node*, NormActivation> sums_;
  std::unordered_set<const Value*> fixed_;
  std::unordered_set<const Value*> demanded_;  // their layout must not change
  bool changed_ = false;
};

}  // namespace

bool AssignLayout(Graph& graph, PassContext& context) {
  const bool assigned = Assignment(graph, context).Run();
  return ShardInPhysicalLayout(graph) || assigned;
}

}  // namespace fusor::passes
