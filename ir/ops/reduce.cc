#include <algorithm>
#include <cmath>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;
using Ints = std::vector<int64_t>;

ScalarOp Combiner(const Attrs& attrs) {
  const std::string& kind = attrs.String("kind");
  if (kind == "sum") return ScalarOp::kAdd;
  if (kind == "prod") return ScalarOp::kMul;
  if (kind == "max") return ScalarOp::kMaximum;
  if (kind == "min") return ScalarOp::kMinimum;
  if (kind == "all") return ScalarOp::kAnd;
  if (kind == "any") return ScalarOp::kOr;
  FUSOR_CHECK(false, kGraph,
              "kind {}: expected sum, prod, max, min, all or any", kind);
}

std::vector<TensorType> InferReduce(Types in, const Attrs& attrs) {
  const ScalarOp op = Combiner(attrs);
  const bool logical = op == ScalarOp::kAnd || op == ScalarOp::kOr;
  FUSOR_CHECK(logical == (in[0].dtype == DType::kBool), kGraph, "kind {} of {}",
              attrs.String("kind"), DTypeName(in[0].dtype));
  const Ints& dims = attrs.Ints("dims");
  TensorType type{in[0].dtype, {}, {}};
  for (size_t i = 0; i < dims.size(); ++i) {
    FUSOR_CHECK(dims[i] >= 0 && dims[i] < static_cast<int64_t>(in[0].rank()) &&
                    (i == 0 || dims[i] > dims[i - 1]),
                kGraph, "dims must increase within the operand's rank");
  }
  for (size_t i = 0; i < in[0].rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) {
      type.shape.push_back(in[0].shape[i]);
    }
  }
  return {type};
}

Ints KeptDims(const Node& node) {
  const Ints& dims = node.attrs().Ints("dims");
  Ints kept;
  for (size_t i = 0; i < node.input(0)->type().rank(); ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) {
      kept.push_back(static_cast<int64_t>(i));
    }
  }
  return kept;
}

// An element's gradient is dy times the product of all other elements. If no
// element is 0, that product is y / x. If one element is 0, only its gradient
// is nonzero; if several are, all gradients are 0.
Value* GradProduct(Builder& b, const Node& n, Value* dy) {
  Value* x = n.input(0);
  const Shape& shape = x->type().shape;
  const Ints kept = KeptDims(n);
  const Ints& dims = n.attrs().Ints("dims");
  Value* is_zero = b.Compare("eq", x, 0.0);
  Value* zeros = b.ReduceSum(b.Cast(is_zero, DType::kF32), dims);
  Value* nonzero = b.Select(is_zero, b.ScalarLike(x, 1), x);
  Node* others = b.Add(OpKind::kReduce, {nonzero},
                       {{"kind", std::string("prod")}, {"dims", dims}});
  Value* product = b.Times(dy, others->output());
  const auto spread = [&](Value* value) {
    return b.Broadcast(value, shape, kept);
  };
  Value* none = b.Zeros(product->type());
  Value* at_zero = b.Select(b.Compare("eq", zeros, 1.0), product, none);
  Value* elsewhere = b.Select(b.Compare("eq", zeros, 0.0), product, none);
  return b.Select(is_zero, spread(at_zero),
                  b.Divide(spread(elsewhere), nonzero));
}

// sum: the same gradient everywhere. max, min: shared equally among the
// elements that attain it.
Grads GradReduce(Builder& b, const Node& n, DOutputs d) {
  Value* x = n.input(0);
  const Shape& shape = x->type().shape;
  const Ints kept = KeptDims(n);
  const ScalarOp op = Combiner(n.attrs());
  if (op == ScalarOp::kAdd) return {b.Broadcast(d[0], shape, kept)};
  if (op == ScalarOp::kMul) return {GradProduct(b, n, d[0])};
  if (op != ScalarOp::kMaximum && op != ScalarOp::kMinimum) return {nullptr};
  Value* hit = b.Compare("eq", x, b.Broadcast(n.output(), shape, kept));
  Value* count =
      b.ReduceSum(b.Cast(hit, x->type().dtype), n.attrs().Ints("dims"));
  Value* share = b.Broadcast(b.Divide(d[0], count), shape, kept);
  return {b.Select(hit, share, b.Zeros(share->type()))};
}

// Visits the operand in row-major order and accumulates in that order.
void EvalReduce(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const ScalarOp op = NodeScalar(node);
  const ScalarFunction combine = ScalarEvaluator(op);
  const Shape& shape = in[0]->type.shape;
  const Ints kept = KeptDims(node);
  const Ints out_strides = RowMajorStrides(out[0]->type.shape);
  Ints strides(shape.size(), 0);
  for (size_t i = 0; i < kept.size(); ++i) strides[kept[i]] = out_strides[i];
  std::vector<double>& sums = out[0]->data;
  std::fill(sums.begin(), sums.end(), ReductionIdentity(op));
  const double* from = in[0]->data.data();
  ForEachRow(shape, strides, [&](int64_t offset, int64_t length, int64_t step) {
    double* to = sums.data() + offset;
    for (int64_t i = 0; i < length; ++i, to += step, ++from) {
      const double operands[] = {*to, *from};
      *to = op == ScalarOp::kAdd ? *to + *from : combine(operands);
    }
  });
}

// --- Cumulative sums ---------------------------------------------------------

std::vector<TensorType> InferCumulativeSum(Types in, const Attrs& attrs) {
  const int64_t dim = attrs.Int("dim");
  FUSOR_CHECK(dim >= 0 && dim < static_cast<int64_t>(in[0].rank()), kGraph,
              "dim {} of rank {}", dim, in[0].rank());
  FUSOR_CHECK(in[0].dtype != DType::kBool, kGraph, "expected numbers");
  return {{in[0].dtype, in[0].shape, {}}};
}

// Element i receives the gradients of the sums that contain it.
Grads GradCumulativeSum(Builder& b, const Node& n, DOutputs d) {
  return {b.CumulativeSum(d[0], n.attrs().Int("dim"),
                          n.attrs().Bool("exclusive"),
                          !n.attrs().Bool("reverse"))};
}

void EvalCumulativeSum(const Node& node, EvalInputs in, EvalOutputs out,
                       EvalMode) {
  const Shape& shape = in[0]->type.shape;
  const auto dim = static_cast<size_t>(node.attrs().Int("dim"));
  const int64_t step = RowMajorStrides(shape)[dim];
  const bool reverse = node.attrs().Bool("reverse");
  const bool exclusive = node.attrs().Bool("exclusive");
  const auto count = static_cast<int64_t>(in[0]->data.size());
  for (int64_t row = 0; row < count; ++row) {
    if (row / step % shape[dim] != 0) continue;
    double sum = 0;
    for (int64_t j = 0; j < shape[dim]; ++j) {
      const int64_t at = row + step * (reverse ? shape[dim] - 1 - j : j);
      const double before = sum;
      sum += in[0]->data[at];
      out[0]->data[at] = exclusive ? before : sum;
    }
  }
}

OpDef CumulativeSum() {
  OpDef op;
  op.kind = OpKind::kCumulativeSum;
  op.name = "cumsum";
  op.summary =
      "sums of the elements along `dim` up to each one, itself excluded with "
      "`exclusive`, from the end with `reverse`";
  op.fusion = FusionKind::kSeparate;
  op.precision = PrecisionRule::kDeny;
  op.layout = LayoutRule::kRowMajor;
  op.attrs = {
      {"dim", int64_t{0}, true}, {"exclusive", false}, {"reverse", false}};
  op.infer = InferCumulativeSum;
  op.gradient = GradCumulativeSum;
  op.eval = EvalCumulativeSum;
  return op;
}

// --- Reductions of many tensors ----------------------------------------------

void CheckGroups(Types in, const Attrs& attrs) {
  for (const TensorType& type : in) {
    FUSOR_CHECK(IsFloat(type.dtype), kGraph, "expected floats, got {}",
                DTypeName(type.dtype));
  }
  const Ints& groups = attrs.Ints("groups");
  int64_t operands = 0;
  for (int64_t size : groups) {
    FUSOR_CHECK(size > 0, kGraph, "groups: expected positive sizes, got {}",
                size);
    operands += size;
  }
  FUSOR_CHECK(groups.empty() || operands == static_cast<int64_t>(in.size()),
              kGraph, "groups of {} operands for {}", operands, in.size());
}

std::vector<TensorType> InferAllFinite(Types in, const Attrs& attrs) {
  CheckGroups(in, attrs);
  return {{DType::kBool, {}, {}}};
}

std::vector<TensorType> InferSumOfSquares(Types in, const Attrs& attrs) {
  CheckGroups(in, attrs);
  return {{DType::kF32, {}, {}}};
}

void EvalAllFinite(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  const bool finite =
      std::all_of(in.begin(), in.end(), [](const Tensor* tensor) {
        return std::all_of(tensor->data.begin(), tensor->data.end(),
                           [](double x) { return std::isfinite(x); });
      });
  out[0]->data[0] = finite ? 1 : 0;
}

void EvalSumOfSquares(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  double sum = 0;
  for (const Tensor* tensor : in) {
    for (const double x : tensor->data) sum += x * x;
  }
  out[0]->data[0] = sum;
}

// Returns a reduction of all elements of any number of operands to a scalar.
OpDef OfMany() {
  OpDef op;
  op.max_inputs = -1;
  op.fusion = FusionKind::kSeparate;
  op.precision = PrecisionRule::kFollow;
  op.layout = LayoutRule::kMapped;
  op.wide_vectors = true;
  // Numbers of consecutive operands that are stored contiguously; empty: each
  // operand is separate.
  op.attrs = {{"groups", Ints{}}};
  return op;
}

OpDef AllFinite() {
  OpDef op = OfMany();
  op.kind = OpKind::kAllFinite;
  op.name = "all_finite";
  op.summary = "true when no element of any operand is NaN or infinite";
  op.infer = InferAllFinite;
  op.eval = EvalAllFinite;
  return op;
}

OpDef SumOfSquares() {
  OpDef op = OfMany();
  op.kind = OpKind::kSumOfSquares;
  op.name = "sum_of_squares";
  op.summary = "the sum of all elements of all operands, each squared, in f32";
  op.precision = PrecisionRule::kDeny;
  op.infer = InferSumOfSquares;
  op.eval = EvalSumOfSquares;
  return op;
}

std::vector<OpDef> MakeReduceOps() {
  OpDef op;
  op.kind = OpKind::kReduce;
  op.name = "reduce";
  op.summary = "folds `dims` away by sum, prod, max, min, all or any";
  op.fusion = FusionKind::kReduce;
  op.precision = PrecisionRule::kDeny;
  op.layout = LayoutRule::kMapped;
  op.attrs = {{"kind", std::string("sum"), true}, {"dims", Ints{}, true}};
  op.infer = InferReduce;
  op.scalar = Combiner;
  op.gradient = GradReduce;
  op.eval = EvalReduce;
  return {op, CumulativeSum(), AllFinite(), SumOfSquares()};
}

}  // namespace

std::span<const OpDef> ReduceOps() {
  static const std::vector<OpDef> ops = MakeReduceOps();
  return ops;
}

}  // namespace fusor::ir
