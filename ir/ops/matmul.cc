#include <algorithm>

#include "ir/builder.h"
#include "ir/interpreter/matrix_product.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;

std::vector<TensorType> InferMatmul(Types in, const Attrs& attrs) {
  const TensorType& a = in[0];
  const TensorType& b = in[1];
  const size_t rank = a.rank();
  FUSOR_CHECK(rank >= 2 && b.rank() == rank, kGraph,
              "expected two operands of equal rank of at least 2");
  FUSOR_CHECK(a.dtype == b.dtype && IsFloat(a.dtype), kGraph,
              "expected operands of one floating dtype");
  const bool ta = attrs.Bool("transpose_a");
  const bool tb = attrs.Bool("transpose_b");
  const int64_t m = a.shape[rank - (ta ? 1 : 2)];
  const int64_t k = a.shape[rank - (ta ? 2 : 1)];
  const int64_t kb = b.shape[rank - (tb ? 1 : 2)];
  const int64_t n = b.shape[rank - (tb ? 2 : 1)];
  FUSOR_CHECK(k == kb, kGraph, "inner dimensions {} and {} differ", k, kb);
  const std::string& result = attrs.String("result_dtype");
  const auto dtype = result.empty() ? a.dtype : ParseDType(result);
  FUSOR_CHECK(dtype.has_value() && IsFloat(*dtype), kGraph,
              "result_dtype {}: expected a floating dtype", result);
  TensorType type{*dtype, {}, {}};
  for (size_t i = 0; i + 2 < rank; ++i) {
    FUSOR_CHECK(a.shape[i] == b.shape[i], kGraph,
                "batch dimension {}: {} and {} differ", i, a.shape[i],
                b.shape[i]);
    type.shape.push_back(a.shape[i]);
  }
  type.shape.push_back(m);
  type.shape.push_back(n);
  return {type};
}

Grads GradMatmul(Builder& b, const Node& n, DOutputs d) {
  const bool ta = n.attrs().Bool("transpose_a");
  const bool tb = n.attrs().Bool("transpose_b");
  Value* x = n.input(0);
  Value* w = n.input(1);
  Value* dy = b.Cast(d[0], x->type().dtype);
  Value* dx = ta ? b.Matmul(w, dy, tb, true) : b.Matmul(dy, w, false, !tb);
  Value* dw = tb ? b.Matmul(dy, x, true, ta) : b.Matmul(x, dy, !ta, false);
  return {dx, dw};
}

void EvalMatmul(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Shape& shape = out[0]->type.shape;
  const size_t rank = shape.size();
  const bool ta = node.attrs().Bool("transpose_a");
  const bool tb = node.attrs().Bool("transpose_b");
  const int64_t m = shape[rank - 2];
  const int64_t n = shape[rank - 1];
  const int64_t k = in[0]->type.shape[rank - (ta ? 2 : 1)];
  constexpr int64_t kStrip = 256;
  std::vector<double> transposed(ta ? m * k : 0);
  std::vector<const double*> from(m);
  std::vector<double*> to(m);
  for (int64_t batch = 0; batch < out[0]->type.num_elements() / (m * n);
       ++batch) {
    const double* a = in[0]->data.data() + batch * m * k;
    if (ta) {
      GatherStrided(a, {m, k}, {1, m}, transposed.data());
      a = transposed.data();
    }
    for (int64_t i = 0; i < m; ++i) {
      from[i] = a + i * k;
      to[i] = out[0]->data.data() + (batch * m + i) * n;
    }
    const double* b = in[1]->data.data() + batch * k * n;
    // Packs b in strips, so that large weights are not stored twice.
    for (int64_t j = 0; j < n; j += kStrip) {
      const int64_t width = std::min(kStrip, n - j);
      AddProduct(
          from,
          PackedMatrix(b + j * (tb ? k : 1), k, width, tb ? 1 : n, tb ? k : 1),
          to);
      for (double*& row : to) row += width;
    }
  }
}

int64_t MatmulMacs(const Node& node) {
  const Shape& a = node.input(0)->type().shape;
  const int64_t k = a[a.size() - (node.attrs().Bool("transpose_a") ? 2 : 1)];
  return node.output()->type().num_elements() * k;
}

std::vector<OpDef> MakeMatmulOps() {
  OpDef op;
  op.kind = OpKind::kMatmul;
  op.name = "matmul";
  op.summary = "[..,M,K] x [..,K,N] -> [..,M,N]; rounded to result_dtype";
  op.min_inputs = 2;
  op.max_inputs = 2;
  op.fusion = FusionKind::kLibrary;
  op.traits = OpTrait::kPure | OpTrait::kResultDType;
  op.precision = PrecisionRule::kAllow;
  op.layout = LayoutRule::kOrdered;
  op.attrs = {{"transpose_a", false},
              {"transpose_b", false},
              {"algorithm", std::string("")},
              {"result_dtype", std::string("")}};
  op.infer = InferMatmul;
  op.gradient = GradMatmul;
  op.macs = MatmulMacs;
  op.eval = EvalMatmul;
  return {op};
}

}  // namespace

std::span<const OpDef> MatmulOps() {
  static const std::vector<OpDef> ops = MakeMatmulOps();
  return ops;
}

}  // namespace fusor::ir
