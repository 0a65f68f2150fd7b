// A pad whose padded dimensions a reshape splits has no loop nest with the ops
// behind the reshape: its operand cannot be split. A gather can, since it
// computes the index:
//
//   %p = pad(%x) {high=[4,0], interior=[0,0], low=[0,0]} : f32[32,64]
//   %w = reshape(%p) : f32[4,8,64]
//
//   %i = iota() {dim=0, dtype="i32", shape=[32,64]} : i32[32,64]
//   %g = gather(%x, %i) {dims=[-1,1]} : f32[32,64]
//   %in = compare(%i, 28) {direction="lt"} : bool[32,64]
//   %s = select(%in, %g, 0) : f32[32,64]
//   %w = reshape(%s) : f32[4,8,64]
//
// A gather reads memory, so a pad before it would have to be stored. If the
// indices are constants, it reads the pad's operand instead:
//
//   %g = gather(%p, %j) {dims=[-1,1]} : f32[32,64]
//
//   %g = gather(%x, %j) {dims=[-1,1]} : f32[32,64]
//   %in = compare(%j, 28) {direction="lt"} : bool[32,64]
//   %s = select(%in, %g, 0) : f32[32,64]
//
// Swin Transformer pads images to whole windows, and rolls every second one.

#include "passes/fusion/index_pads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/fusion/iteration_domain.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

class PadIndexer {
 public:
  PadIndexer(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    std::vector<Node*> pads;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kPad && IsPlacement(*node)) {
        pads.push_back(node.get());
      }
    }
    for (Node* pad : pads) Visit(*pad);
    graph_.EraseAll(dead_);
    return !dead_.empty();
  }

 private:
  void Visit(Node& pad) {
    const std::vector<ir::Use> uses = pad.output()->uses();
    if (uses.empty() || graph_.IsOutput(pad.output()) || !IsRowMajor(pad)) {
      return;
    }
    const bool gathers = std::ranges::all_of(uses, [&](const ir::Use& use) {
      return use.operand == 0 && ReadsWithin(*use.node, pad);
    });
    const bool reshapes = std::ranges::all_of(uses, [&](const ir::Use& use) {
      return SplitsPaddedDim(*use.node, pad);
    });
    if ((!gathers && !reshapes) ||
        !context_.ConsumeFuel("move_reshapes", *pad.output())) {
      return;
    }
    ++context_.counters()["indexed_pads"];
    if (reshapes) {
      Replace(pad, Indexed(pad, pad, Iotas(pad)));
    } else {
      for (const ir::Use& use : uses) {
        Node& gather = *use.node;
        const std::vector<Value*> indices(gather.inputs().begin() + 1,
                                          gather.inputs().end());
        Replace(gather, Indexed(gather, pad, indices));
      }
    }
    if (!reshapes) dead_.push_back(&pad);
  }

  static bool IsRowMajor(const Node& pad) {
    return pad.input(0)->type().layout.is_row_major() &&
           pad.output()->type().layout.is_row_major();
  }

  static bool IsPadded(const Node& pad, size_t dim) {
    return pad.attrs().Ints("low")[dim] != 0 ||
           pad.attrs().Ints("high")[dim] != 0;
  }

  // Returns whether a reshape changes a padded dimension other than by
  // dimensions of extent 1: then no kernel computes both.
  static bool SplitsPaddedDim(const Node& reader, const Node& pad) {
    if (reader.kind() != OpKind::kReshape || IsFusible(reader)) return false;
    const ir::Shape& from = pad.output()->type().shape;
    const ir::Shape& to = reader.output()->type().shape;
    int64_t inner = 1;
    for (size_t d = from.size(); d-- > 0; inner *= from[d]) {
      if (IsPadded(pad, d) && !HasDim(to, from[d], inner)) return true;
    }
    return false;
  }

  // Returns whether the shape has a dimension of this extent with this many
  // elements behind it.
  static bool HasDim(const ir::Shape& shape, int64_t extent, int64_t inner) {
    int64_t after = 1;
    for (size_t d = shape.size(); d-- > 0; after *= shape[d]) {
      if (shape[d] == extent && after == inner) return true;
    }
    return false;
  }

  // Returns whether all padded dimensions are indexed by constants that are
  // inside the pad.
  static bool ReadsWithin(const Node& reader, const Node& pad) {
    if (reader.kind() != OpKind::kGather) return false;
    size_t operand = 1;
    const std::vector<int64_t>& dims = reader.attrs().Ints("dims");
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] >= 0) {
        if (IsPadded(pad, d)) return false;
        continue;
      }
      const Value* index = reader.input(operand++);
      if (IsOp(index->producer(), OpKind::kBroadcast)) {
        index = index->producer()->input(0);
      }
      if (!IsOp(index->producer(), OpKind::kConstant)) return false;
      const auto extent = static_cast<double>(pad.output()->type().shape[d]);
      for (const double i : index->producer()->attrs().Floats("value")) {
        if (!(i >= 0 && i < extent)) return false;
      }
    }
    return true;
  }

  // Returns the index along each padded dimension.
  std::vector<Value*> Iotas(Node& pad) {
    ir::Builder builder(graph_, &pad);
    builder.Inherit(pad.location());
    std::vector<Value*> iotas;
    for (size_t d = 0; d < pad.output()->type().rank(); ++d) {
      if (!IsPadded(pad, d)) continue;
      iotas.push_back(builder.Iota(ir::DType::kI32, pad.output()->type().shape,
                                   static_cast<int64_t>(d)));
    }
    return iotas;
  }

  // Returns, before `reader`, the elements of the pad at these indices of the
  // dimensions that the reader, a gather or the pad, has no dimension for.
  Value* Indexed(Node& reader, const Node& pad, std::vector<Value*> indices) {
    ir::Builder builder(graph_, &reader);
    builder.Inherit(reader.location());
    const bool gathers = reader.kind() == OpKind::kGather;
    std::vector<int64_t> dims;
    Value* inside = nullptr;
    const auto require = [&](Value* condition) {
      inside = inside == nullptr ? condition : builder.And(inside, condition);
    };
    size_t next = 0;
    for (size_t d = 0; d < pad.output()->type().rank(); ++d) {
      const bool indexed =
          gathers ? reader.attrs().Ints("dims")[d] < 0 : IsPadded(pad, d);
      if (!indexed) {
        dims.push_back(gathers ? reader.attrs().Ints("dims")[d]
                               : static_cast<int64_t>(d));
        continue;
      }
      dims.push_back(-1);
      Value*& index = indices[next++];
      const int64_t low = pad.attrs().Ints("low")[d];
      if (low != 0) {
        index = builder.Minus(
            index, builder.ScalarLike(index, static_cast<double>(low)));
        require(builder.Compare("ge", index, 0.0));
      }
      if (pad.attrs().Ints("high")[d] != 0) {
        require(builder.Compare(
            "lt", index, static_cast<double>(pad.input(0)->type().shape[d])));
      }
    }
    Value* elements = builder.Gather(pad.input(0), indices, dims);
    if (inside == nullptr) return elements;
    const ir::TensorType& type = reader.output()->type();
    return builder.Select(
        inside, elements,
        builder.Constant(type.dtype, type.shape, {pad.attrs().Float("value")}));
  }

  void Replace(Node& node, Value* by) {
    std::string name = node.output()->name();
    graph_.ReplaceAllUses(node.output(), by);
    graph_.Rename(node.output(), name + ".old");
    graph_.Rename(by, std::move(name));
    dead_.push_back(&node);
  }

  Graph& graph_;
  PassContext& context_;
  std::vector<Node*> dead_;
};

}  // namespace

bool IndexPads(Graph& graph, PassContext& context) {
  return PadIndexer(graph, context).Run();
}

}  // namespace fusor::passes
