#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/index_map.h"
#include "ir/scalar_op.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

class Builder;
class Graph;
class Node;
class Value;
struct Tensor;
enum class EvalMode;

// What fusion may do with an op.
enum class FusionKind : uint8_t {
  kElementwise,  // one scalar function per element, operands of equal shape
  kInjective,    // each result element is one operand element: broadcast, ...
  kReduce,       // folds dimensions away
  kSource,       // no operands: constant, iota, random
  kLibrary,      // a vendor call may do it: convolution, matmul, pooling
  kSeparate,     // a generated kernel that shares its loops with no other op
  kOpaque,       // anything else
};

// What mixed precision does with an op (compiler practice: four lists).
enum class PrecisionRule : uint8_t {
  kAllow,   // runs in 16 bit with wide accumulation
  kInfer,   // 16 bit between allowed ops
  kFollow,  // no arithmetic: takes the neighbours' precision
  kDeny,    // stays in fp32
};

// What the layout pass does with an op.
enum class LayoutRule : uint8_t {
  kSame,      // operands and results of equal rank share a layout
  kChosen,    // the target's candidates decide
  kMapped,    // dims are renamed or dropped: broadcast, reduce, transpose
  kRowMajor,  // row-major operands and results
};

// One attribute of an op.
struct AttrSpec {
  std::string_view name;
  AttrValue default_value;
  bool required = false;
};

// One row of the registry: everything the system knows about an op.
struct OpDef {
  std::string_view name;
  std::string_view summary;  // one line of documentation with shapes
  int min_inputs = 1;
  int max_inputs = 1;  // -1: any number
  FusionKind fusion = FusionKind::kOpaque;
  PrecisionRule precision = PrecisionRule::kDeny;
  LayoutRule layout = LayoutRule::kRowMajor;
  // Rank-1 operands - bias, scale, shift, statistics - keep their precision
  // where mixed precision narrows the others.
  bool wide_vectors = false;
  // False when equal nodes may not be merged or unused ones dropped.
  bool pure = true;
  bool has_body = false;  // a fusion: the results are the body's outputs
  std::vector<AttrSpec> attrs;

  // Result types; throws kGraph with a reason on operands that do not fit. Null
  // with `has_body`. Row-major results unless the op keeps its operand's
  // layout.
  std::vector<TensorType> (*infer)(std::span<const TensorType> inputs,
                                   const Attrs& attrs) = nullptr;

  // The element function of a kElementwise op.
  ScalarOp (*scalar)(const Attrs& attrs) = nullptr;

  // How a kInjective op's operand is indexed where its result is indexed by
  // `result`; nullopt when it is not by one affine term a dimension. Null: a
  // loop nest cannot absorb the op.
  std::optional<IndexMap> (*operand_map)(const Node& node,
                                         const IndexMap& result) = nullptr;

  // Multiply-accumulates; padding counts, as is customary. Null: none.
  int64_t (*macs)(const Node& node) = nullptr;

  // Builds the gradient of `node` with respect to its operands. d_outputs[i]
  // is the gradient of result i, or null where none arrives; the result holds
  // one value an operand, null where the operand has no gradient. Null rule:
  // an elementwise op is a constant to differentiation, any other op cannot be
  // differentiated.
  std::vector<Value*> (*gradient)(Builder& builder, const Node& node,
                                  std::span<Value* const> d_outputs) = nullptr;

  // The interpreter's rule; null for kElementwise, which uses `scalar`.
  void (*eval)(const Node& node, std::span<const Tensor* const> inputs,
               std::span<Tensor* const> outputs, EvalMode mode) = nullptr;
};

// All ops, grouped by family; about 45.
std::span<const OpDef* const> AllOps();
// Null when there is none of that name.
const OpDef* FindOp(std::string_view name);
// Throws kGraph with the nearest name.
const OpDef& GetOp(std::string_view name);

// Sets the optional attributes that are missing to their defaults.
void FillDefaults(const OpDef& op, Attrs& attrs);
// Throws kGraph unless `attrs` has exactly the op's attributes, each of its
// type.
void CheckAttrs(const OpDef& op, const Attrs& attrs);
// The result types for these operands, valid ones; throws kGraph with a reason
// when the op refuses. `body` for a fusion, null for every other op.
std::vector<TensorType> InferResults(const OpDef& op,
                                     std::span<const TensorType> operands,
                                     const Attrs& attrs, const Graph* body);

// Scalar op that a node applies: of an elementwise op, or the combiner of a
// reduce. REQUIRES: the node is one of these.
ScalarOp NodeScalar(const Node& node);

}  // namespace fusor::ir
