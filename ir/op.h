#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/index_map.h"
#include "ir/op_kind.h"
#include "ir/scalar_op.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

class Builder;
class Graph;
class Node;
class Value;
struct Tensor;
enum class EvalMode;

// How fusion treats an op.
enum class FusionKind : uint8_t {
  kElementwise,  // one scalar function per element, operands of equal shape
  kInjective,    // copies one operand element per result element
  kIndexed,      // reads operand 0 at indices that its other operands contain
  kReduce,       // reduces dimensions
  kSource,       // no operands: constant, iota, random
  kLibrary,      // may be a library call: convolution, matmul, pooling
  kSeparate,     // unfused generated kernel
  kOpaque,       // anything else
};

// How mixed precision treats an op: the usual four lists.
enum class PrecisionRule : uint8_t {
  kAllow,   // runs in 16 bit with wide accumulation
  kInfer,   // 16 bit between allowed ops
  kFollow,  // no arithmetic: precision of its neighbours
  kDeny,    // stays in fp32
};

// How the layout pass treats an op.
enum class LayoutRule : uint8_t {
  kSame,      // operands and results of equal rank share a layout
  kChosen,    // the target's candidates decide
  kMapped,    // dims are renamed or dropped: broadcast, reduce, transpose
  kRowMajor,  // row-major operands and results
  // Row-major, or in another order of the dimensions that the target supports:
  // then a transpose is a view (fold_transposes).
  kOrdered,
};

// One attribute of an op.
struct AttrSpec {
  std::string_view name;
  AttrValue default_value;
  bool required = false;
};

// One row of the op registry.
struct OpDef {
  OpKind kind = {};
  std::string_view name;
  std::string_view summary;  // one line of documentation with shapes
  int min_inputs = 1;
  int max_inputs = 1;  // -1: any number
  FusionKind fusion = FusionKind::kOpaque;
  PrecisionRule precision = PrecisionRule::kDeny;
  LayoutRule layout = LayoutRule::kRowMajor;
  // Rank-1 operands (bias, scale, shift, statistics) keep their precision when
  // mixed precision narrows the other operands.
  bool wide_vectors = false;
  OpTrait traits = OpTrait::kPure;
  bool has_body = false;  // a fusion: the results are the body's outputs
  std::vector<AttrSpec> attrs;

  bool Has(OpTrait trait) const {
    return (static_cast<uint32_t>(traits) & static_cast<uint32_t>(trait)) != 0;
  }

  // Infers the result types: row-major, unless the op keeps its operand's
  // layout. Throws kGraph on invalid operands. Null with `has_body`.
  std::vector<TensorType> (*infer)(std::span<const TensorType> inputs,
                                   const Attrs& attrs) = nullptr;

  // The element function of a kElementwise op.
  ScalarOp (*scalar)(const Attrs& attrs) = nullptr;

  // Maps the result index to the index in an operand (kIndexed: in operand 0,
  // with 0 for dimensions that another operand indexes). Where the result has
  // no element of the operand, as in a pad, the index is outside of it. Returns
  // nullopt if a dimension is not one affine term. Null: no loop nest can
  // absorb the op.
  std::optional<IndexMap> (*operand_map)(const Node& node, size_t operand,
                                         const IndexMap& result) = nullptr;

  // Counts multiply-accumulates, including those on padding, as is customary.
  // Null: none.
  int64_t (*macs)(const Node& node) = nullptr;

  // Builds the gradients of `node`'s operands. d_outputs[i] is the gradient of
  // result i, or null if it has none. Returns one value per operand, null for
  // an operand without gradient. Null rule: an elementwise op is a constant to
  // differentiation, any other op cannot be differentiated.
  std::vector<Value*> (*gradient)(Builder& builder, const Node& node,
                                  std::span<Value* const> d_outputs) = nullptr;

  // Interprets the op; null for kElementwise, which uses `scalar`.
  void (*eval)(const Node& node, std::span<const Tensor* const> inputs,
               std::span<Tensor* const> outputs, EvalMode mode) = nullptr;
};

// Returns all ops, indexed by kind.
std::span<const OpDef* const> AllOps();
const OpDef& GetOp(OpKind kind);
std::string_view OpName(OpKind kind);
// Returns null if the name is unknown.
const OpDef* FindOp(std::string_view name);
// Throws kGraph with the nearest name if the name is unknown.
const OpDef& GetOp(std::string_view name);

// Sets missing optional attributes to their defaults.
void FillDefaults(const OpDef& op, Attrs& attrs);
// Throws kGraph unless `attrs` has exactly the op's attributes, each of its
// type.
void CheckAttrs(const OpDef& op, const Attrs& attrs);
// Returns the result types, checked by CheckType. Throws kGraph with a reason
// if the op rejects the operands. `body` is for a fusion, null for other ops.
std::vector<TensorType> InferResults(const OpDef& op,
                                     std::span<const TensorType> operands,
                                     const Attrs& attrs, const Graph* body);

// Returns the scalar op of an elementwise node, or the combiner of a reduce.
// REQUIRES: the node is one of these.
ScalarOp NodeScalar(const Node& node);

// Returns whether the node only reinterprets its operand's bytes as another
// type, so that it needs neither a step nor a buffer. Examples are a reshape of
// a row-major tensor, and a copy or a transpose that keeps the physical order.
// A copy of the same type is a second tensor with the same contents.
bool IsView(const Node& node);

// Makes mixed precision leave the convolutions and matmuls of f32 from this
// position on as they are: their result_dtype is then "f32" too. Their
// gradients inherit that.
void KeepPrecision(const Graph& graph, size_t first);
bool KeepsPrecision(const Node& node);

}  // namespace fusor::ir
