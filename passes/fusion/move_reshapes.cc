// Moves reshapes out of the way of fusion.
//
// A kernel has one loop nest, so a reshape that merges or splits dimensions
// separates it from its neighbours:
//
//   %m = matmul(%x, %w) : f32[1576,768]
//   %a = add(%m, %bias) : f32[1576,768]
//   %r = reshape(%a) : f32[8,197,768]
//   %y = add(%r, %z) : f32[8,197,768]
//
// The pass splits the dimensions of the ops on both sides until the reshape
// changes none, or only dimensions of extent 1. Reshapes then stand next to
// library calls and inputs, where they are views:
//
//   %m = matmul(%x, %w) : f32[1576,768]
//   %r = reshape(%m) : f32[8,197,768]
//   %a = add(%r, %bias) : f32[8,197,768]
//   %y = add(%a, %z) : f32[8,197,768]
//
// Likewise, a transpose that only moves the dimension along which single rows
// were concatenated becomes reshapes of the rows:
//
//   %c = concat(%q, %k) {dim=0} : f32[2,197,768]
//   %t = transpose(%c) {permutation=[1,0,2]} : f32[197,2,768]
//
//   %q1 = reshape(%q) : f32[197,1,768]
//   %k1 = reshape(%k) : f32[197,1,768]
//   %t = concat(%q1, %k1) {dim=1} : f32[197,2,768]

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/fusion/index_pads.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::FusionKind;
using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Shape;
using ir::Value;
using Ints = std::vector<int64_t>;

// The extents that each dimension of a tensor is split into, slowest first.
using Split = std::vector<Ints>;

bool Splits(const Split& split) {
  return std::ranges::any_of(
      split, [](const Ints& parts) { return parts.size() > 1; });
}

Split NoSplit(const Shape& shape) {
  Split split;
  for (const int64_t extent : shape) split.push_back({extent});
  return split;
}

Shape SplitShape(const Split& split) {
  Shape shape;
  for (const Ints& parts : split) {
    shape.insert(shape.end(), parts.begin(), parts.end());
  }
  return shape;
}

// Returns the positions of the parts of the given dimensions.
Ints PartsOf(const Split& split, const Ints& dims) {
  Ints positions;
  for (const int64_t dim : dims) {
    int64_t first = 0;
    for (int64_t d = 0; d < dim; ++d) {
      first += static_cast<int64_t>(split[d].size());
    }
    for (size_t i = 0; i < split[dim].size(); ++i) {
      positions.push_back(first + static_cast<int64_t>(i));
    }
  }
  return positions;
}

// Returns the products of the last dimensions, from 1 up, without repetitions.
Ints SuffixProducts(const Shape& shape) {
  Ints products = {1};
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1) products.push_back(products.back() * shape[d]);
  }
  return products;
}

// Splits each dimension at those of the products, which are sorted, that lie
// within it.
Split SplitAt(const Shape& shape, const Ints& products) {
  Split split(shape.size());
  int64_t inner = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t outer = inner * shape[d];
    for (size_t i = 1; i < products.size(); ++i) {
      if (products[i] <= inner || products[i] > outer) continue;
      split[d].insert(split[d].begin(), products[i] / products[i - 1]);
    }
    if (split[d].empty()) split[d] = {1};
    inner = outer;
  }
  return split;
}

// Returns the splits of two shapes of equally many elements into the same
// extents, apart from those of 1; nullopt if there are none.
std::optional<std::pair<Split, Split>> CommonSplits(const Shape& a,
                                                    const Shape& b) {
  const Ints of_a = SuffixProducts(a), of_b = SuffixProducts(b);
  Ints products;
  std::ranges::set_union(of_a, of_b, std::back_inserter(products));
  for (size_t i = 1; i < products.size(); ++i) {
    if (products[i - 1] == 0 || products[i] % products[i - 1] != 0) {
      return std::nullopt;
    }
  }
  return std::pair(SplitAt(a, products), SplitAt(b, products));
}

// The dimensions that an op is split along: those of its operand for a
// reduction, otherwise those of its result.
const Shape& LoopShape(const Node& node) {
  return node.kind() == OpKind::kReduce ? node.input(0)->type().shape
                                        : node.output()->type().shape;
}

// Returns the dimensions of LoopShape that become those of operand `i`; -1 for
// dimensions that an index replaces.
Ints OperandDims(const Node& node, size_t i) {
  if (node.kind() == OpKind::kBroadcast ||
      (node.kind() == OpKind::kGather && i == 0)) {
    return node.attrs().Ints("dims");
  }
  if (node.kind() == OpKind::kTranspose) {
    return ir::InversePermutation(node.attrs().Ints("permutation"));
  }
  Ints dims(node.input(i)->type().rank());
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

// Returns the dimensions of LoopShape that become those of the result.
Ints ResultDims(const Node& node) {
  Ints dims;
  for (size_t d = 0; d < LoopShape(node).size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (node.kind() == OpKind::kReduce &&
        std::ranges::count(node.attrs().Ints("dims"), dim) > 0) {
      continue;
    }
    dims.push_back(dim);
  }
  return dims;
}

// Returns the split of operand `i` that follows from that of LoopShape.
Split OperandSplit(const Node& node, size_t i, const Split& split) {
  Split operand = NoSplit(node.input(i)->type().shape);
  const Ints dims = OperandDims(node, i);
  for (size_t d = 0; d < dims.size(); ++d) {
    // The operand of a slice may be longer.
    const bool splits = dims[d] >= 0 && split[dims[d]].size() > 1;
    if (splits) operand[d] = split[dims[d]];
  }
  return operand;
}

// Returns the split of LoopShape in which dims[i] is split like part[i].
Split LoopSplit(const Node& node, const Ints& dims, const Split& part) {
  Split split = NoSplit(LoopShape(node));
  for (size_t i = 0; i < dims.size(); ++i) {
    if (part[i].size() > 1) split[dims[i]] = part[i];
  }
  return split;
}

class ReshapeMover {
 public:
  ReshapeMover(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    bool changed = IndexPads(graph_, context_);
    changed |= ConcatenateInPlace();
    CountSplits();
    // Each round removes reshapes, but may add some further up or down.
    while (Round()) changed = true;
    if (!context_.options().eager_rounding) changed |= AlignReductions();
    changed |= MergeViews();
    return changed;
  }

 private:
  bool ConcatenateInPlace() {
    std::vector<Node*> transposes;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kTranspose) transposes.push_back(node.get());
    }
    bool changed = false;
    for (Node* transpose : transposes) {
      changed |= ConcatenateInPlace(*transpose);
    }
    return changed;
  }

  // Rewrites the transpose of a concatenation, perhaps reshaped between them,
  // whose operands have one row each.
  bool ConcatenateInPlace(Node& transpose) {
    std::vector<Node*> nodes = {&transpose};
    const auto operand = [&] {
      Node* producer = nodes.back()->input(0)->producer();
      const bool alone = producer != nullptr &&
                         producer->output()->uses().size() == 1 &&
                         !graph_.IsOutput(producer->output());
      return alone ? producer : nullptr;
    };
    Node* concat = operand();
    if (concat != nullptr && concat->kind() == OpKind::kReshape) {
      nodes.push_back(concat);
      concat = operand();
    }
    if (concat == nullptr || concat->kind() != OpKind::kConcat) return false;
    nodes.push_back(concat);
    for (const Node* node : nodes) {
      if (!node->output()->type().layout.is_row_major()) return false;
    }
    const int64_t dim = concat->attrs().Int("dim");
    for (const Value* part : concat->inputs()) {
      if (part->type().shape[dim] != 1 || !part->type().layout.is_row_major()) {
        return false;
      }
    }
    const std::optional<int64_t> target =
        MovedDim(transpose, concat->output()->type().shape, dim);
    if (!target.has_value() ||
        !context_.ConsumeFuel("move_reshapes", *transpose.output())) {
      return false;
    }
    Shape part = transpose.output()->type().shape;
    part[*target] = 1;
    std::vector<Value*> parts;
    for (Value* input : concat->inputs()) {
      parts.push_back(View(input, part, concat));
    }
    const Node* moved =
        graph_.AddNode(OpKind::kConcat, std::move(parts), {{"dim", *target}},
                       concat->location(), concat);
    graph_.ReplaceAllUses(transpose.output(), moved->output());
    graph_.EraseAll(nodes);
    return true;
  }

  // Returns where the transpose moves dimension `dim` of `shape`, of which its
  // operand is a reshape; nullopt if it also moves other dimensions.
  static std::optional<int64_t> MovedDim(const Node& transpose,
                                         const Shape& shape, int64_t dim) {
    const Shape& from = transpose.input(0)->type().shape;
    const auto elements_before = [](const Shape& s, int64_t d) {
      return ir::NumElements(Shape(s.begin(), s.begin() + d));
    };
    std::optional<int64_t> target;
    int64_t last = -1;
    const Ints& permutation = transpose.attrs().Ints("permutation");
    for (size_t i = 0; i < permutation.size(); ++i) {
      const int64_t d = permutation[i];
      if (from[d] == 1) continue;
      if (from[d] == shape[dim] &&
          elements_before(from, d) == elements_before(shape, dim)) {
        target = static_cast<int64_t>(i);
        continue;
      }
      if (d < last) return std::nullopt;
      last = d;
    }
    return target;
  }

  // Lets reductions share loops with other nodes: with the kernel before a
  // transpose, and with readers of one value in a shape with more dimensions.
  // Changes the order of the sums.
  bool AlignReductions() {
    std::vector<Node*> reductions;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kReduce) reductions.push_back(node.get());
    }
    bool changed = false;
    for (Node* node : reductions) {
      changed |= ReadUntransposed(*node) || ReadSplit(*node);
    }
    graph_.EraseAll({dead_.begin(), dead_.end()});
    dead_.clear();
    if (changed) EraseUnusedViews();
    return changed;
  }

  bool ReadUntransposed(Node& reduction) {
    const Node* transpose = reduction.input(0)->producer();
    if (transpose == nullptr || transpose->kind() != OpKind::kTranspose ||
        !IsLoop(transpose->input(0)->producer()) ||
        !transpose->input(0)->type().layout.is_row_major() ||
        !reduction.output()->type().layout.is_row_major()) {
      return false;
    }
    const Ints& permutation = transpose->attrs().Ints("permutation");
    Ints kept, reduced;
    for (const int64_t dim : ResultDims(reduction)) {
      kept.push_back(permutation[dim]);
    }
    if (!std::ranges::is_sorted(kept) ||
        !context_.ConsumeFuel("move_reshapes", *reduction.output())) {
      return false;
    }
    for (const int64_t dim : reduction.attrs().Ints("dims")) {
      reduced.push_back(permutation[dim]);
    }
    std::ranges::sort(reduced);
    reduction.SetInput(0, transpose->input(0));
    reduction.mutable_attrs().Set("dims", std::move(reduced));
    return true;
  }

  // Splits reduced dimensions like another reader of the same value does.
  bool ReadSplit(Node& reduction) {
    const Value* operand = reduction.input(0);
    const Node* reshape = operand->producer();
    if (reshape == nullptr || reshape->kind() != OpKind::kReshape) return false;
    for (const ir::Use& use : reshape->input(0)->uses()) {
      if (use.node->kind() != OpKind::kReshape || use.node == reshape) continue;
      const auto splits =
          CommonSplits(operand->type().shape, use.node->output()->type().shape);
      if (!splits.has_value() || !Splits(splits->first) ||
          Splits(splits->second) || !CanSplit(reduction, splits->first)) {
        continue;
      }
      const bool reduced = std::ranges::all_of(
          ResultDims(reduction),
          [&](int64_t dim) { return splits->first[dim].size() == 1; });
      if (!reduced ||
          !context_.ConsumeFuel("move_reshapes", *reduction.output())) {
        continue;
      }
      ++context_.counters()["moved_reshapes"];
      Apply(reduction, splits->first);
      return true;
    }
    return false;
  }

  // Replaces reshapes that equal an earlier one.
  bool MergeViews() {
    std::map<std::pair<const Value*, Shape>, Node*> views;
    std::vector<Node*> merged;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() != OpKind::kReshape || graph_.IsOutput(node->output())) {
        continue;
      }
      const auto [first, added] = views.emplace(
          std::pair(node->input(0), node->output()->type().shape), node.get());
      if (added) continue;
      graph_.ReplaceAllUses(node->output(), first->second->output());
      merged.push_back(node.get());
    }
    graph_.EraseAll(merged);
    return !merged.empty();
  }

  bool Round() {
    std::vector<Node*> reshapes;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kReshape) reshapes.push_back(node.get());
    }
    bool changed = false;
    for (Node* reshape : reshapes) {
      if (!dead_.contains(reshape)) changed |= Move(*reshape);
    }
    graph_.EraseAll({dead_.begin(), dead_.end()});
    dead_.clear();
    if (changed) EraseUnusedViews();
    return changed;
  }

  // Counts by shape how many reshapes split it in each way.
  void CountSplits() {
    for (const auto& node : graph_.nodes()) {
      if (node->kind() != OpKind::kReshape) continue;
      const Shape& from = node->input(0)->type().shape;
      const Shape& to = node->output()->type().shape;
      const auto splits = CommonSplits(from, to);
      if (!splits.has_value()) continue;
      ++wanted_[from][SplitShape(splits->first)];
      ++wanted_[to][SplitShape(splits->second)];
    }
  }

  // Returns whether more reshapes split the shape in a way that excludes this
  // one. Ops in it would then be split in both ways, and loops in different
  // shapes cannot share a kernel. Swin Transformer cuts its images into windows
  // in every block, and into pairs of rows once per stage.
  bool IsOutnumbered(const Shape& shape, const Split& split) const {
    const auto counts = wanted_.find(shape);
    if (counts == wanted_.end() || !Splits(split)) return false;
    const Shape mine = SplitShape(split);
    const auto own = counts->second.find(mine);
    const int votes = own == counts->second.end() ? 0 : own->second;
    return std::ranges::any_of(counts->second, [&](const auto& other) {
      return other.second > votes &&
             !CommonSplits(mine, other.first).has_value();
    });
  }

  // Returns whether an output or a node that is not in `except` reads the node.
  bool IsRead(const Node& node, const std::unordered_set<Node*>& except) const {
    return graph_.IsOutput(node.output()) ||
           std::ranges::any_of(node.output()->uses(), [&](const ir::Use& use) {
             return !except.contains(use.node);
           });
  }

  void EraseUnusedViews() {
    std::unordered_set<Node*> unused;
    for (size_t i = graph_.nodes().size(); i-- > 0;) {
      Node* node = graph_.nodes()[i].get();
      const bool view = node->kind() == OpKind::kReshape ||
                        node->kind() == OpKind::kConstant ||
                        node->kind() == OpKind::kIota;
      if (view && !IsRead(*node, unused)) unused.insert(node);
    }
    graph_.EraseAll({unused.begin(), unused.end()});
  }

  // Returns whether the pass knows how to split dimensions of the op, which is
  // part of a kernel's loops.
  static bool IsLoop(const Node* node) {
    if (node == nullptr) return false;
    switch (node->kind()) {
      case OpKind::kBroadcast:
      case OpKind::kGather:
      case OpKind::kRandom:
      case OpKind::kSlice:
      case OpKind::kTranspose:
        return true;
      default:
        return node->op().fusion == FusionKind::kElementwise ||
               node->op().fusion == FusionKind::kReduce;
    }
  }

  // Returns whether the node can be split without a new reshape between ops
  // that may share a kernel.
  bool CanSplit(const Node& node, const Split& split) const {
    if (!CanSplitAlone(node, split)) return false;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      const Node* producer = node.input(i)->producer();
      if (producer == nullptr || producer->kind() == OpKind::kReshape ||
          producer->kind() == OpKind::kConstant ||
          producer->kind() == OpKind::kIota || !IsFusible(*producer)) {
        continue;
      }
      const Split operand = OperandSplit(node, i, split);
      if (!Splits(operand)) continue;
      if (!IsLoop(producer) ||
          !CanSplitAlone(*producer, LoopSplit(*producer, ResultDims(*producer),
                                              operand))) {
        return false;
      }
    }
    return true;
  }

  bool CanSplitAlone(const Node& node, const Split& split) const {
    if (!node.output()->type().layout.is_row_major()) return false;
    for (const int64_t dim : ResultDims(node)) {
      if (split[dim].size() > 1 && graph_.IsOutput(node.output())) return false;
    }
    for (const Value* input : node.inputs()) {
      if (!input->type().layout.is_row_major()) return false;
    }
    for (size_t d = 0; d < split.size(); ++d) {
      if (split[d].size() > 1 && !CanSplitDim(node, d)) return false;
    }
    return true;
  }

  bool CanSplitDim(const Node& node, size_t dim) const {
    const ir::Attrs& attrs = node.attrs();
    if (node.kind() == OpKind::kSlice) {
      const int64_t extent = node.input(0)->type().shape[dim];
      return attrs.Ints("start")[dim] == 0 &&
             attrs.Ints("limit")[dim] == extent &&
             attrs.Ints("stride")[dim] == 1;
    }
    // More loops would add in another order.
    return node.kind() != OpKind::kReduce ||
           !context_.options().eager_rounding ||
           std::ranges::count(attrs.Ints("dims"), dim) == 0;
  }

  // Makes the reshape a view between ops that a kernel can share, by splitting
  // their dimensions.
  bool Move(Node& reshape) {
    Node* producer = reshape.input(0)->producer();
    if (!IsLoop(producer)) return false;
    const auto splits = CommonSplits(reshape.input(0)->type().shape,
                                     reshape.output()->type().shape);
    if (!splits.has_value()) return false;
    const auto& [above, below] = *splits;
    if (!Splits(above) && !Splits(below)) return false;
    if (IsOutnumbered(reshape.input(0)->type().shape, above) ||
        IsOutnumbered(reshape.output()->type().shape, below)) {
      return false;
    }
    const Split of_producer =
        LoopSplit(*producer, ResultDims(*producer), above);
    if (Splits(above) && !CanSplit(*producer, of_producer)) return false;
    std::vector<std::pair<Node*, Split>> readers;
    bool reached = false;
    for (const ir::Use& use : reshape.output()->uses()) {
      // Kernels read the indexed operand of a gather from memory.
      const bool indexed =
          use.node->kind() == OpKind::kGather && use.operand == 0;
      if (dead_.contains(use.node) || !IsLoop(use.node) || indexed) continue;
      if (!Splits(below)) {
        reached = true;
        continue;
      }
      const Split split =
          LoopSplit(*use.node, OperandDims(*use.node, use.operand), below);
      const bool known = std::ranges::count(
          readers, use.node, [](const auto& r) { return r.first; });
      if (!known && CanSplit(*use.node, split)) {
        readers.emplace_back(use.node, split);
      }
    }
    if (!reached && readers.empty()) return false;
    if (!context_.ConsumeFuel("move_reshapes", *reshape.output())) return false;
    ++context_.counters()["moved_reshapes"];
    if (Splits(above)) Apply(*producer, of_producer);
    for (const auto& [reader, split] : readers) Apply(*reader, split);
    return true;
  }

  // Replaces a node by one whose LoopShape is split.
  void Apply(Node& node, const Split& split) {
    std::vector<Value*> operands;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      operands.push_back(
          View(node.input(i), SplitShape(OperandSplit(node, i, split)), &node));
    }
    Node* copy =
        graph_.AddNode(node.kind(), std::move(operands),
                       SplitAttrs(node, split), node.location(), &node);
    Value* old = node.output();
    std::string name = old->name();
    const std::vector<ir::Use> uses = old->uses();
    for (const ir::Use& use : uses) {
      if (use.node->kind() != OpKind::kReshape || dead_.contains(use.node)) {
        continue;
      }
      Replace(*use.node,
              View(copy->output(), use.node->output()->type().shape, use.node));
    }
    if (IsRead(node, dead_)) {
      Replace(node, View(copy->output(), old->type().shape, &node));
    } else {
      dead_.insert(&node);
    }
    graph_.Rename(old, name + ".merged");
    graph_.Rename(copy->output(), std::move(name));
  }

  void Replace(Node& node, Value* by) {
    graph_.ReplaceAllUses(node.output(), by);
    dead_.insert(&node);
  }

  // Returns `value` in another shape.
  Value* View(Value* value, const Shape& shape, Node* before) {
    if (const Node* producer = value->producer();
        producer != nullptr && producer->kind() == OpKind::kReshape) {
      value = producer->input(0);
    }
    if (value->type().shape == shape) return value;
    ir::Builder builder(graph_, before);
    builder.Inherit(before->location());
    if (const Node* producer = value->producer();
        producer != nullptr && producer->kind() == OpKind::kConstant) {
      return builder.Constant(value->type().dtype, shape,
                              producer->attrs().Floats("value"));
    }
    if (IsOp(value->producer(), OpKind::kIota)) {
      if (Value* split = SplitIota(builder, *value->producer(), shape)) {
        return split;
      }
    }
    return builder.Reshape(value, shape);
  }

  // Returns the iota in a shape with split dimensions, as a sum over the parts
  // of its dimension; null if the shape has other dimensions.
  static Value* SplitIota(ir::Builder& builder, const Node& iota,
                          const Shape& shape) {
    const ir::TensorType& type = iota.output()->type();
    const int64_t dim = iota.attrs().Int("dim");
    const int64_t inner =
        ir::NumElements(Shape(type.shape.begin() + dim + 1, type.shape.end()));
    const int64_t extent = type.shape[dim];
    Value* sum = nullptr;
    int64_t covered = 1;
    int64_t after = ir::NumElements(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      after /= shape[d];
      if (shape[d] == 1 || after < inner || after >= inner * extent) continue;
      if (after % inner != 0) return nullptr;
      Value* part = builder.Iota(type.dtype, shape, static_cast<int64_t>(d));
      if (after > inner) {
        part = builder.Times(
            part, builder.ScalarLike(part, static_cast<double>(after / inner)));
      }
      sum = sum == nullptr ? part : builder.Plus(sum, part);
      covered *= shape[d];
    }
    return covered == extent ? sum : nullptr;
  }

  // Returns the bounds of a slice: of the parts of a dimension `whole`, or
  // their extents if there is none.
  static Ints SplitBounds(const Split& split, const Ints& bounds,
                          std::optional<int64_t> whole) {
    Ints parts;
    for (size_t d = 0; d < split.size(); ++d) {
      if (split[d].size() == 1) {
        parts.push_back(bounds[d]);
        continue;
      }
      for (const int64_t extent : split[d]) {
        parts.push_back(whole.value_or(extent));
      }
    }
    return parts;
  }

  static ir::Attrs SplitAttrs(const Node& node, const Split& split) {
    ir::Attrs attrs = node.attrs();
    switch (node.kind()) {
      case OpKind::kReduce:
        attrs.Set("dims", PartsOf(split, attrs.Ints("dims")));
        break;
      case OpKind::kBroadcast:
        attrs.Set("dims", PartsOf(split, attrs.Ints("dims")));
        attrs.Set("shape", SplitShape(split));
        break;
      case OpKind::kGather: {
        Ints dims;
        for (const int64_t dim : attrs.Ints("dims")) {
          const Ints parts = dim < 0 ? Ints{-1} : PartsOf(split, {dim});
          dims.insert(dims.end(), parts.begin(), parts.end());
        }
        attrs.Set("dims", std::move(dims));
        break;
      }
      case OpKind::kRandom:
        attrs.Set("shape", SplitShape(split));
        break;
      case OpKind::kTranspose: {
        // The operand's parts in the order of the result's.
        const Split operand = OperandSplit(node, 0, split);
        attrs.Set("permutation", PartsOf(operand, attrs.Ints("permutation")));
        break;
      }
      case OpKind::kSlice:
        attrs.Set("start", SplitBounds(split, attrs.Ints("start"), 0));
        attrs.Set("limit", SplitBounds(split, attrs.Ints("limit"), {}));
        attrs.Set("stride", SplitBounds(split, attrs.Ints("stride"), 1));
        break;
      default:
        break;
    }
    return attrs;
  }

  Graph& graph_;
  PassContext& context_;
  std::unordered_set<Node*> dead_;  // to erase after the round
  // Shape -> shape with split dimensions -> reshapes that split it so.
  std::map<Shape, std::map<Shape, int>> wanted_;
};

}  // namespace

bool MoveReshapes(Graph& graph, PassContext& context) {
  // On a GPU, the blocks of kernels with more and shorter axes are smaller.
  if (context.target().target().simt) return false;
  return ReshapeMover(graph, context).Run();
}

}  // namespace fusor::passes
