// Replaces concatenations of parts of one tensor by ops that a kernel can
// contain, and whose gradients are such ops, too. A concatenation, and the pads
// that are the gradients of its slices, would be kernels of their own.
//
// If the parts are at their own places, with constants between them, they are
// selected:
//
//   %a = slice(%x) {limit=[2], start=[0], stride=[1]} : f32[2]
//   %z = constant() {dtype="f32", shape=[3], value=[0.0]} : f32[3]
//   %y = concat(%a, %z) {dim=0} : f32[5]
//
//   %i = iota() {dim=0, dtype="i32", shape=[5]} : i32[5]
//   %p = compare(%i, 2) {direction="ge"} : bool[5]
//   %y = select(%p, 0, %x) : f32[5]
//
// If they are every s-th element, from each of the first s elements on, the
// result is a transpose. Swin Transformer merges patches like this:
//
//   %a = slice(%x) {limit=[5,8], start=[0,0], stride=[2,1]} : f32[3,8]
//   %b = slice(%x) {limit=[6,8], start=[1,0], stride=[2,1]} : f32[3,8]
//   %y = concat(%a, %b) {dim=1} : f32[3,16]
//
//   %r = reshape(%x) {shape=[3,2,8]} : f32[3,2,8]
//   %y = reshape(%r) {shape=[3,16]} : f32[3,16]

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/passes.h"
#include "passes/simplify/constant_folding.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Shape;
using ir::Value;
using Ints = std::vector<int64_t>;

// Part of a concatenation: result indices [begin, end) along its dimension.
struct Range {
  int64_t begin;
  int64_t end;
};

class ConcatRewriter {
 public:
  ConcatRewriter(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    std::vector<Node*> concats;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kConcat) concats.push_back(node.get());
    }
    bool changed = false;
    for (Node* concat : concats) changed |= Rewrite(*concat);
    if (changed) EraseDeadNodes(graph_);
    return changed;
  }

 private:
  // The concatenation itself remains, without readers.
  bool Rewrite(Node& concat) {
    const auto constants = ConstantsBetweenParts(concat);
    const auto digits = constants ? std::nullopt : InterleavedDims(concat);
    if (!constants && !digits) return false;
    if (!context_.ConsumeFuel("rewrite_concats", *concat.output())) {
      return false;
    }
    ++context_.counters()["rewritten_concats"];
    ir::Builder builder(graph_, &concat);
    builder.Inherit(concat.location());
    const Value* whole = SlicedBy(concat);
    Value* value = constants ? Select(builder, concat, *constants)
                             : Interleave(builder, concat, *digits);
    graph_.ReplaceAllUses(concat.output(), value);
    if (value == whole) return true;
    std::string name = concat.output()->name();
    graph_.Rename(concat.output(), name + ".old");
    graph_.Rename(value, std::move(name));
    return true;
  }

  static const Node* SliceOf(const Value* value) {
    const Node* producer = value->producer();
    return IsOp(producer, OpKind::kSlice) ? producer : nullptr;
  }

  // Returns the operand of the first slice; null if there is none.
  static Value* SlicedBy(const Node& concat) {
    for (const Value* part : concat.inputs()) {
      if (const Node* slice = SliceOf(part)) return slice->input(0);
    }
    return nullptr;
  }

  // --- Parts at their own places ---------------------------------------------

  // Returns the ranges of constants, all of one value, if all other operands
  // are slices of one tensor at their own places.
  static std::optional<std::vector<Range>> ConstantsBetweenParts(
      const Node& concat) {
    const Value* whole = SlicedBy(concat);
    if (whole == nullptr ||
        whole->type().shape != concat.output()->type().shape) {
      return std::nullopt;
    }
    const int64_t dim = concat.attrs().Int("dim");
    std::vector<Range> constants;
    std::optional<double> constant;
    int64_t begin = 0;
    for (const Value* part : concat.inputs()) {
      const int64_t end = begin + part->type().shape[dim];
      if (const Node* slice = SliceOf(part)) {
        if (slice->input(0) != whole || !IsPlace(*slice, dim, begin)) {
          return std::nullopt;
        }
      } else {
        const auto value = SplatOf(*part);
        if (!value || (constant && !SameSplat(*constant, *value))) {
          return std::nullopt;
        }
        constant = value;
        if (constants.empty() || constants.back().end != begin) {
          constants.push_back({begin, end});
        }
        constants.back().end = end;
      }
      begin = end;
    }
    return constants;
  }

  // Returns whether the two are equal and of equal sign.
  static bool SameSplat(double a, double b) {
    return a == b && std::signbit(a) == std::signbit(b);
  }

  // Returns whether the slice takes its elements from `begin` on along `dim`,
  // and all along other dimensions.
  static bool IsPlace(const Node& slice, int64_t dim, int64_t begin) {
    for (size_t d = 0; d < slice.output()->type().rank(); ++d) {
      const bool cut = static_cast<int64_t>(d) == dim;
      if (slice.attrs().Ints("start")[d] != (cut ? begin : 0) ||
          (slice.attrs().Ints("stride")[d] != 1 &&
           slice.output()->type().shape[d] != 1)) {
        return false;
      }
    }
    return true;
  }

  static Value* Select(ir::Builder& builder, const Node& concat,
                       const std::vector<Range>& constants) {
    const ir::TensorType& type = concat.output()->type();
    Value* whole = SlicedBy(concat);
    if (constants.empty()) return whole;
    const int64_t dim = concat.attrs().Int("dim");
    Value* index = builder.Iota(ir::DType::kI32, type.shape, dim);
    Value* is_constant = nullptr;
    for (const Range& range : constants) {
      Value* inside = nullptr;
      if (range.begin > 0) {
        inside = builder.Compare("ge", index, static_cast<double>(range.begin));
      }
      if (range.end < type.shape[dim]) {
        Value* below =
            builder.Compare("lt", index, static_cast<double>(range.end));
        inside = inside == nullptr ? below : builder.And(inside, below);
      }
      is_constant =
          is_constant == nullptr ? inside : builder.Or(is_constant, inside);
    }
    double constant = 0;
    for (const Value* part : concat.inputs()) {
      if (SliceOf(part) == nullptr) constant = *SplatOf(*part);
    }
    return builder.Select(is_constant,
                          builder.Constant(type.dtype, type.shape, {constant}),
                          whole);
  }

  // --- Interleaved parts -----------------------------------------------------

  // A dimension of the sliced tensor that slices read with stride `stride`.
  // Their starts along it change with every `weight` operands.
  struct Digit {
    size_t dim;
    int64_t stride;
    int64_t weight;
  };

  // Returns the strided dimensions, the slowest first, if the operands are
  // slices of one tensor that read each element once: the starts are the digits
  // of the operand's position.
  static std::optional<std::vector<Digit>> InterleavedDims(const Node& concat) {
    const Value* whole = SlicedBy(concat);
    if (whole == nullptr) return std::nullopt;
    const Shape& shape = whole->type().shape;
    const auto parts = static_cast<int64_t>(concat.num_inputs());
    const Node* first = SliceOf(concat.input(0));
    std::vector<Digit> digits;
    int64_t combinations = 1;
    for (size_t d = 0; first != nullptr && d < shape.size(); ++d) {
      const int64_t stride = first->attrs().Ints("stride")[d];
      if (first->output()->type().shape[d] == shape[d]) continue;
      if (shape[d] % stride != 0 || combinations > parts) return std::nullopt;
      digits.push_back({d, stride, 0});
      combinations *= stride;
    }
    if (digits.empty() || combinations != parts) return std::nullopt;
    const auto start = [&](int64_t part, size_t dim) {
      return SliceOf(concat.input(part))->attrs().Ints("start")[dim];
    };
    for (const Value* part : concat.inputs()) {
      const Node* slice = SliceOf(part);
      if (slice == nullptr || slice->input(0) != whole ||
          part->type().shape != first->output()->type().shape ||
          slice->attrs().Ints("stride") != first->attrs().Ints("stride")) {
        return std::nullopt;
      }
    }
    for (Digit& digit : digits) {
      if (first->output()->type().shape[digit.dim] * digit.stride !=
              shape[digit.dim] ||
          static_cast<int64_t>(digit.dim) == concat.attrs().Int("dim")) {
        return std::nullopt;
      }
      digit.weight = 1;
      while (digit.weight < parts && start(digit.weight, digit.dim) == 0) {
        ++digit.weight;
      }
      for (int64_t i = 0; i < parts; ++i) {
        if (start(i, digit.dim) != i / digit.weight % digit.stride) {
          return std::nullopt;
        }
      }
    }
    std::ranges::sort(digits, std::greater(), &Digit::weight);
    int64_t weight = parts;
    for (const Digit& digit : digits) {
      weight /= digit.stride;
      if (digit.weight != weight) return std::nullopt;
    }
    return digits;
  }

  static Value* Interleave(ir::Builder& builder, const Node& concat,
                           const std::vector<Digit>& digits) {
    Value* whole = SlicedBy(concat);
    Shape split;
    std::vector<int64_t> outer(whole->type().rank());  // split positions
    std::vector<int64_t> inner(whole->type().rank());
    for (size_t d = 0; d < whole->type().rank(); ++d) {
      const auto digit = std::ranges::find(digits, d, &Digit::dim);
      outer[d] = static_cast<int64_t>(split.size());
      const int64_t stride = digit == digits.end() ? 1 : digit->stride;
      split.push_back(whole->type().shape[d] / stride);
      if (digit == digits.end()) continue;
      inner[d] = static_cast<int64_t>(split.size());
      split.push_back(stride);
    }
    Ints permutation;
    for (size_t d = 0; d < whole->type().rank(); ++d) {
      if (static_cast<int64_t>(d) == concat.attrs().Int("dim")) {
        for (const Digit& digit : digits) {
          permutation.push_back(inner[digit.dim]);
        }
      }
      permutation.push_back(outer[d]);
    }
    Value* value = builder.Reshape(whole, split);
    if (!std::ranges::is_sorted(permutation)) {
      value = builder.Transpose(value, permutation);
    }
    return builder.Reshape(value, concat.output()->type().shape);
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool RewriteConcats(Graph& graph, PassContext& context) {
  return ConcatRewriter(graph, context).Run();
}

}  // namespace fusor::passes
