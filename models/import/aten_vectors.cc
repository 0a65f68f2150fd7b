// Norms, distances and products of vectors and matrices, order statistics.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "models/functions.h"
#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;
using Dims = std::vector<int64_t>;

Values VectorNorm(AtenCall& call) {
  Value* x = call.Tensor("self");
  x = call.b().Cast(x, call.DType(x->type().dtype));
  const char* name = call.Has("ord") ? "ord" : "p";
  return {NormOf(call.b(), x, call.Number(name, 2), ReducedDims(call, x),
                 call.Bool("keepdim", false))};
}

// The greatest or least sum of the magnitudes of a column (1, -1) or a row (the
// infinities). Other norms of matrices would take singular values.
Values SumNorm(AtenCall& call, Value* x, Dims dims, double order) {
  Builder& b = call.b();
  for (int64_t& dim : dims) dim = DimOf(call, dim, RankOf(x));
  if (dims.size() != 2 || dims[0] == dims[1]) {
    call.Throw("expected two dimensions of a matrix");
  }
  const bool columns = std::abs(order) == 1;
  if (!columns && !std::isinf(order)) {
    call.Throw(
        fmt::format("a matrix norm of order {}: expected fro, 1, -1, "
                    "inf or -inf",
                    order));
  }
  const Dims summed{dims[columns ? 0 : 1]};
  const Dims reduced{dims[columns ? 1 : 0]};
  Value* sums = b.ReduceSum(b.Abs(x), summed, /*keepdim=*/true);
  Value* norm = order > 0 ? b.ReduceMax(sums, reduced, true)
                          : b.ReduceMin(sums, reduced, true);
  if (call.Bool("keepdim", false)) return {norm};
  Shape shape = ShapeOf(x);
  shape.erase(shape.begin() + std::max(dims[0], dims[1]));
  shape.erase(shape.begin() + std::min(dims[0], dims[1]));
  return {b.Reshape(norm, shape)};
}

Values MatrixNorm(AtenCall& call) {
  Value* x = call.Tensor(call.Has("A") ? "A" : "self");
  x = call.b().Cast(x, call.DType(x->type().dtype));
  Dims dims = call.Ints("dim");
  if (dims.empty()) dims = {-2, -1};
  if (RankOf(x) < 2)
    call.Throw("expected a matrix, got " + ToString(x->type()));
  return SumNorm(call, x, dims, call.Number("ord"));
}

// Frobenius's norm of a matrix is that of the vector of its elements.
Values FrobeniusNorm(AtenCall& call) {
  Value* x = call.Tensor(call.Has("A") ? "A" : "self");
  x = call.b().Cast(x, call.DType(x->type().dtype));
  if (const std::string order = call.Text("ord", "fro"); order != "fro") {
    call.Throw("ord " + order + ": expected fro, 1, -1, inf or -inf");
  }
  Dims dims = call.Ints("dim");
  if (dims.empty()) dims = {-2, -1};
  if (RankOf(x) < 2)
    call.Throw("expected a matrix, got " + ToString(x->type()));
  return {NormOf(call.b(), x, 2, dims, call.Bool("keepdim", false))};
}

// A norm of vectors, if one or no dimension, or no order is given.
Values LinalgNorm(AtenCall& call) {
  const Value* x = call.Tensor("self");
  const bool vectors = !call.Has("ord") || RankOf(x) == 1 ||
                       (call.Has("dim") && call.Ints("dim").size() == 1);
  return vectors ? VectorNorm(call) : MatrixNorm(call);
}

// Scales the slices of a dimension whose norm is greater than maxnorm down to
// it.
Values Renormalized(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t kept = DimArgument(call, x, "dim");
  const double most = call.Number("maxnorm");
  Dims dims;
  for (int64_t d = 0; d < RankOf(x); ++d) {
    if (d != kept) dims.push_back(d);
  }
  Value* norm = NormOf(b, x, call.Number("p"), dims, /*keep=*/true);
  Value* one = b.ScalarLike(norm, 1);
  // PyTorch's constant.
  Value* scale = b.Divide(b.ScalarLike(norm, most), b.Plus(norm, 1e-7));
  return {b.Times(x, b.Select(b.Compare("gt", norm, most), scale, one))};
}

// g v / |v|, with norms over all dimensions but one, or over all for -1.
Values WeightNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* v = call.Tensor("v");
  const int64_t kept = call.Int("dim", 0);
  Dims dims;
  for (int64_t d = 0; d < RankOf(v); ++d) {
    if (d != kept) dims.push_back(d);
  }
  Value* norm = NormOf(b, v, 2, dims, /*keep=*/true);
  return {b.Times(v, b.Divide(call.Tensor("g"), norm)), norm};
}
Values WeightNormAlone(AtenCall& call) { return {WeightNorm(call)[0]}; }

Values PairwiseDistance(AtenCall& call) {
  Builder& b = call.b();
  Value* difference = b.Minus(call.Tensor("x1"), call.Tensor("x2"));
  difference = b.Plus(difference, call.Number("eps", 1e-6));
  return {NormOf(b, difference, call.Number("p", 2), {RankOf(difference) - 1},
                 call.Bool("keepdim", false))};
}

Values Distance(AtenCall& call) {
  Builder& b = call.b();
  Value* difference = b.Minus(call.Tensor("self"), call.Tensor("other"));
  Dims dims(static_cast<size_t>(RankOf(difference)));
  std::iota(dims.begin(), dims.end(), 0);
  return {NormOf(b, difference, call.Number("p", 2), dims, /*keep=*/false)};
}

// The distance of each row of x1 [.., M, D] from each row of x2 [.., N, D].
Values Distances(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("x1");
  Value* y = call.Tensor("x2");
  if (call.Has("compute_mode")) call.Int("compute_mode");  // how, not what
  if (RankOf(x) < 2 || RankOf(y) < 2) call.Throw("expected matrices");
  const auto widened = [&](Value* of, int64_t before) {
    Shape shape = ShapeOf(of);
    shape.insert(shape.end() - before, 1);
    return b.Reshape(of, shape);
  };
  Value* difference = b.Minus(widened(x, 1), widened(y, 2));
  return {NormOf(b, difference, call.Number("p", 2), {RankOf(difference) - 1},
                 /*keep=*/false)};
}

// The distances of each row of a matrix from the following ones.
Values PairDistances(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  if (RankOf(x) != 2 || ShapeOf(x)[0] < 2) {
    call.Throw("expected two rows or more, got " + ToString(x->type()));
  }
  const int64_t rows = ShapeOf(x)[0];
  constexpr int64_t kMostRows = 2048;
  if (rows > kMostRows) {
    call.Throw(fmt::format("{} rows: expected at most {}", rows, kMostRows));
  }
  std::vector<double> first, second;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i + 1; j < rows; ++j) {
      first.push_back(static_cast<double>(i));
      second.push_back(static_cast<double>(j));
    }
  }
  const auto take = [&](std::vector<double> index) {
    const int64_t count = std::ssize(index);
    return b.Take(x, b.Constant(DType::kI32, {count}, std::move(index)), 0);
  };
  Value* difference = b.Minus(take(std::move(first)), take(std::move(second)));
  return {NormOf(b, difference, call.Number("p", 2), {1}, /*keep=*/false)};
}

// --- Products ----------------------------------------------------------------

// Sums over the last dimension of both.
Values Inner(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("other");
  if (RankOf(x) == 0 || RankOf(y) == 0) return {b.Times(x, y)};
  const int64_t k = ShapeOf(x).back();
  Value* product = b.Matmul(b.Reshape(x, {x->type().num_elements() / k, k}),
                            b.Reshape(y, {y->type().num_elements() / k, k}),
                            false, /*transpose_b=*/true);
  Shape shape(ShapeOf(x).begin(), ShapeOf(x).end() - 1);
  shape.insert(shape.end(), ShapeOf(y).begin(), ShapeOf(y).end() - 1);
  return {b.Reshape(product, shape)};
}

// Sums the products along a dimension. Both operands broadcast.
Values VectorDot(AtenCall& call) {
  Builder& b = call.b();
  Value* products = b.Times(call.Tensor("x"), call.Tensor("y"));
  return {b.ReduceSum(products, {DimArgument(call, products, "dim", -1)})};
}

// The product of two or more matrices, from the left.
Values ChainOfProducts(AtenCall& call) {
  const Values factors =
      call.Tensors(call.Has("matrices") ? "matrices" : "tensors");
  Value* product = factors[0];
  for (size_t i = 1; i < factors.size(); ++i) {
    product = call.b().Matmul(product, factors[i]);
  }
  return {product};
}

// Multiplies squares of squares.
Values MatrixPower(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  int64_t n = call.Int("n");
  constexpr int64_t kMost = 1 << 20;
  if (RankOf(x) < 2 || ShapeOf(x).back() != ShapeOf(x).end()[-2] || n < 0 ||
      n > kMost) {
    call.Throw(
        fmt::format("power {} of {}: expected square matrices and 0 to "
                    "{}",
                    n, ToString(x->type()), kMost));
  }
  if (n == 0) {
    const int64_t rank = RankOf(x);
    Value* one = b.Compare("eq", b.Iota(DType::kI64, ShapeOf(x), rank - 2),
                           b.Iota(DType::kI64, ShapeOf(x), rank - 1));
    return {b.Cast(one, x->type().dtype)};
  }
  Value* product = nullptr;
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) product = product == nullptr ? x : b.Matmul(product, x);
    if (n > 1) x = b.Matmul(x, x);
  }
  return {product};
}

// Sums over the named dimensions of both.
Values TensorDot(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("other");
  Dims of_x = call.Ints("dims_self");
  Dims of_y = call.Ints("dims_other");
  if (of_x.size() != of_y.size()) call.Throw("expected as many dims_other");
  Shape shape;
  int64_t k = 1;
  const auto order = [&](const Value* of, Dims& summed, bool last) {
    for (int64_t& dim : summed) dim = DimOf(call, dim, RankOf(of));
    Dims kept;
    for (int64_t d = 0; d < RankOf(of); ++d) {
      if (std::find(summed.begin(), summed.end(), d) != summed.end()) continue;
      kept.push_back(d);
      shape.push_back(ShapeOf(of)[static_cast<size_t>(d)]);
    }
    kept.insert(last ? kept.end() : kept.begin(), summed.begin(), summed.end());
    return kept;
  };
  x = b.Transpose(x, order(x, of_x, /*last=*/true));
  for (const int64_t dim : of_x) {
    k *= ShapeOf(call.Tensor("self"))[static_cast<size_t>(dim)];
  }
  y = b.Transpose(y, order(y, of_y, /*last=*/false));
  Value* product = b.Matmul(b.Reshape(x, {x->type().num_elements() / k, k}),
                            b.Reshape(y, {k, y->type().num_elements() / k}));
  return {b.Reshape(product, shape)};
}

// Blocks of y, multiplied by the elements of x.
Values Kronecker(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("other");
  const size_t rank = std::max(ShapeOf(x).size(), ShapeOf(y).size());
  const auto padded = [&](Value* of) {
    Shape shape(rank - ShapeOf(of).size(), 1);
    shape.insert(shape.end(), ShapeOf(of).begin(), ShapeOf(of).end());
    return shape;
  };
  Shape left, right, merged;
  for (size_t d = 0; d < rank; ++d) {
    left.insert(left.end(), {padded(x)[d], 1});
    right.insert(right.end(), {1, padded(y)[d]});
    merged.push_back(padded(x)[d] * padded(y)[d]);
  }
  return {b.Reshape(b.Times(b.Reshape(x, left), b.Reshape(y, right)), merged)};
}

// beta self + alpha vec1 vec2^T
Values AddOuter(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("vec1");
  Value* y = call.Tensor("vec2");
  if (RankOf(x) != 1 || RankOf(y) != 1) call.Throw("expected vectors");
  Value* product = b.Times(b.Reshape(x, {ShapeOf(x)[0], 1}), y);
  product = b.Times(product, call.Number("alpha", 1));
  Value* self = call.Tensor("self");
  const double beta = call.Number("beta", 1);
  if (beta == 0) return {product};  // self may be NaN
  return {b.Plus(b.Times(self, beta), product)};
}

// The rows of x [S, D] times matrices of w [E, D, F]: matrix e for the rows
// from ends[e - 1] to ends[e] - 1, and 0 for rows behind the last end. This is
// one product of [S, E * D] and [E * D, F], where each row of x has zeros in
// the places of the other matrices: E times the operations of separate
// products, whose shapes only the data determine.
Values GroupedMatmul(AtenCall& call) {
  Builder& b = call.b();
  // PyTorch's operator, or the one that transformers defines.
  const bool own = call.Has("self");
  Value* x = call.Tensor(own ? "self" : "input");
  Value* w = call.Tensor(own ? "mat2" : "weight");
  Value* ends = call.OptionalTensor("offs");
  if (RankOf(x) != 2 || RankOf(w) != 3 || ends == nullptr) {
    call.Throw("expected groups of rows of a matrix, got " +
               ToString(x->type()) + " and " + ToString(w->type()));
  }
  const int64_t groups = ShapeOf(w)[0], depth = ShapeOf(w)[1];
  const Shape shape{ShapeOf(x)[0], groups, depth};
  ends = b.Cast(ends, DType::kI64);
  Value* first = b.Constant(DType::kI64, {1}, {0});
  Value* starts = groups == 1
                      ? first
                      : b.Concat({first, b.Slice(ends, {0}, {groups - 1})}, 0);
  Value* row = b.Iota(DType::kI64, shape, 0);
  const auto before = [&](Value* limit) {
    return b.Compare("lt", row, b.Broadcast(limit, shape, {1}));
  };
  Value* rows = b.Broadcast(x, shape, {0, 2});
  Value* none = b.ScalarLike(rows, 0);
  rows = b.Select(before(starts), none, b.Select(before(ends), rows, none));
  return {b.Matmul(b.Reshape(rows, {shape[0], groups * depth}),
                   b.Reshape(w, {groups * depth, ShapeOf(w)[2]}))};
}

// The cross product of vectors along a dimension of three elements.
Values Cross(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* y = call.Tensor("other");
  const Value* shape = b.Plus(x, y);  // for its shape only
  int64_t dim = -1;
  if (call.Has("dim")) {
    dim = DimArgument(call, shape, "dim");
  } else {  // the first one of three elements
    const Shape& extents = ShapeOf(shape);
    dim = std::find(extents.begin(), extents.end(), 3) - extents.begin();
  }
  if (dim >= RankOf(shape) || ShapeOf(shape)[static_cast<size_t>(dim)] != 3) {
    call.Throw("expected a dimension of three elements, got " +
               ToString(shape->type()));
  }
  x = b.BroadcastTo(x, ShapeOf(shape));
  y = b.BroadcastTo(y, ShapeOf(shape));
  const auto turned = [&](Value* of, std::vector<double> order) {
    return b.Take(of, b.Constant(DType::kI32, {3}, std::move(order)), dim);
  };
  return {b.Minus(b.Times(turned(x, {1, 2, 0}), turned(y, {2, 0, 1})),
                  b.Times(turned(x, {2, 0, 1}), turned(y, {1, 2, 0})))};
}

// --- Order statistics, counts and cumulative products ------------------------

// The element of rank k, from 0 for the least one, along a dimension.
Values OfRank(AtenCall& call, Value* x, int64_t dim, int64_t k) {
  Builder& b = call.b();
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  if (k < 0 || k >= extent || extent > kMostRanked) {
    call.Throw(fmt::format("rank {} of {}: expected at most {} elements", k + 1,
                           ToString(x->type()), kMostRanked));
  }
  const Ranked ranked = Leading(b, x, dim, k + 1, /*largest=*/false);
  Shape shape = ShapeOf(x);
  Dims start(shape.size(), 0);
  start[static_cast<size_t>(dim)] = k;
  shape[static_cast<size_t>(dim)] = k + 1;
  Shape kept = ShapeOf(x);
  kept[static_cast<size_t>(dim)] = 1;
  if (!call.Bool("keepdim", false)) kept.erase(kept.begin() + dim);
  const auto last = [&](Value* of) {
    return b.Reshape(b.Slice(of, start, shape), kept);
  };
  return {last(ranked.values), last(ranked.indices)};
}

Values KthValue(AtenCall& call) {
  Value* x = call.Tensor("self");
  return OfRank(call, x, DimArgument(call, x, "dim", -1), call.Int("k") - 1);
}

// The lower one of two middle elements.
Values Median(AtenCall& call) {
  Value* x = call.Tensor("self");
  const int64_t dim = DimArgument(call, x, "dim");
  return OfRank(call, x, dim, (ShapeOf(x)[static_cast<size_t>(dim)] - 1) / 2);
}
Values MedianOfAll(AtenCall& call) {
  Value* x = call.Tensor("self");
  const int64_t count = x->type().num_elements();
  return {OfRank(call, call.b().Reshape(x, {count}), 0, (count - 1) / 2)[0]};
}

Values LeastAndGreatest(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const Dims dims = ReducedDims(call, x);
  const bool keep = call.Bool("keepdim", false);
  return {b.ReduceMin(x, dims, keep), b.ReduceMax(x, dims, keep)};
}

Values CountNonzero(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  if (x->type().dtype != DType::kBool) x = b.Compare("ne", x, 0.0);
  return {b.ReduceSum(b.Cast(x, DType::kI64), ReducedDims(call, x))};
}

// The number of elements in each of `bins` equal ranges from `min` to `max`; if
// these are equal, from the least to the greatest element.
Values Histogram(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const DType dtype = x->type().dtype;
  const int64_t bins = call.Int("bins", 100);
  const double min = call.Number("min", 0), max = call.Number("max", 0);
  if (bins < 1 || min > max) {
    call.Throw(fmt::format("{} bins from {} to {}", bins, min, max));
  }
  x = b.StopGradient(b.Reshape(AsFloat(call, x), {x->type().num_elements()}));
  Value* low = b.ScalarLike(x, min);
  Value* high = b.ScalarLike(x, max);
  if (min == max) {
    low = b.ReduceMin(x, {0});
    high = b.ReduceMax(x, {0});
    Value* same = b.Compare("eq", low, high);
    low = b.Select(same, b.Plus(low, -1.0), low);
    high = b.Select(same, b.Plus(high, 1.0), high);
  }
  const auto count = static_cast<double>(bins);
  Value* bin =
      b.Floor(b.Divide(b.Times(b.Minus(x, low), count), b.Minus(high, low)));
  // The last range includes its end.
  bin = b.Select(b.Compare("eq", x, high), b.ScalarLike(x, count - 1), bin);
  const Shape shape{ShapeOf(x)[0], bins};
  Value* inside = b.Compare("eq", b.Broadcast(bin, shape, {0}),
                            b.Iota(x->type().dtype, shape, 1));
  return {b.ReduceSum(b.Cast(inside, dtype), {0})};
}

// The sum or mean over all elements but NaN.
template <bool kMean>
Values OfNumbersOnly(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  x = b.Cast(x, call.DType(x->type().dtype));
  Value* number = b.Compare("eq", x, x);
  const Dims dims = ReducedDims(call, x);
  const bool keep = call.Bool("keepdim", false);
  Value* sum = b.ReduceSum(b.Select(number, x, b.ScalarLike(x, 0)), dims, keep);
  if (!kMean) return {sum};
  return {
      b.Divide(sum, b.ReduceSum(b.Cast(number, x->type().dtype), dims, keep))};
}

Values CumulativeProducts(AtenCall& call) {
  Value* x = call.Tensor("self");
  const bool integers = !ir::IsFloat(x->type().dtype);
  x = call.b().Cast(x, call.DType(integers ? DType::kI64 : x->type().dtype));
  return {CumulativeProduct(call.b(), x, DimArgument(call, x, "dim"), false)};
}

// The integral along a dimension, or all integrals up to each element but the
// first, by the trapezoid rule. The points x are a tensor, or dx apart.
template <bool kCumulative>
Values Trapezoids(AtenCall& call) {
  Builder& b = call.b();
  Value* y = AsFloat(call, call.Tensor("y"));
  const int64_t dim = DimArgument(call, y, "dim", -1);
  const auto halves = [&](Value* of, int64_t at, bool sum) {
    const int64_t extent = ShapeOf(of)[static_cast<size_t>(at)];
    if (extent < 2) {
      call.Throw("expected two points or more, got " + ToString(of->type()));
    }
    Dims start(ShapeOf(of).size(), 0);
    Shape limit = ShapeOf(of);
    limit[static_cast<size_t>(at)] = extent - 1;
    Value* first = b.Slice(of, start, limit);
    start[static_cast<size_t>(at)] = 1;
    Value* second = b.Slice(of, start, ShapeOf(of));
    return sum ? b.Plus(first, second) : b.Minus(second, first);
  };
  Value* areas = b.Times(halves(y, dim, /*sum=*/true), 0.5);
  if (call.Has("x")) {
    Value* x = b.Cast(call.Tensor("x"), y->type().dtype);
    if (RankOf(x) == 1) {  // of this dimension
      Shape shape(ShapeOf(y).size(), 1);
      shape[static_cast<size_t>(dim)] = ShapeOf(x)[0];
      x = b.Reshape(x, shape);
    }
    const int64_t at = RankOf(x) - (RankOf(y) - dim);
    if (at < 0 || RankOf(x) > RankOf(y)) {
      call.Throw("x: expected the rank of y");
    }
    areas = b.Times(areas, halves(x, at, /*sum=*/false));
  } else {
    areas = b.Times(areas, call.Number("dx", 1));
  }
  if (kCumulative) return {b.CumulativeSum(areas, dim)};
  return {b.ReduceSum(areas, {dim})};
}

// The number of sorted boundaries below each value, or up to it.
Values Search(AtenCall& call) {
  Builder& b = call.b();
  const bool buckets = call.Has("boundaries");
  Value* sorted = call.Tensor(buckets ? "boundaries" : "sorted_sequence");
  Value* x = call.Tensor("self");
  bool right = call.Bool("right", false);
  if (call.Has("side")) right = call.Text("side", "left") == "right";
  const bool narrow = call.Bool("out_int32", false);
  if (RankOf(sorted) != 1 || call.Has("sorter")) {
    call.Throw("expected a sorted vector, got " + ToString(sorted->type()));
  }
  Shape shape = ShapeOf(x);
  shape.push_back(ShapeOf(sorted)[0]);
  Dims dims(ShapeOf(x).size());
  std::iota(dims.begin(), dims.end(), 0);
  const DType dtype = Promote(x, sorted);
  Value* below =
      b.Compare(right ? "le" : "lt",
                b.Broadcast(b.Cast(sorted, dtype), shape, {RankOf(x)}),
                b.Broadcast(b.Cast(x, dtype), shape, dims));
  Value* count = b.ReduceSum(b.Cast(below, DType::kI64), {RankOf(x)});
  return {b.Cast(count, narrow ? DType::kI32 : DType::kI64)};
}

constexpr AtenOp kVectorOps[] = {
    {"_grouped_mm.default", GroupedMatmul},
    {"_weight_norm.default", WeightNormAlone},
    {"_weight_norm_interface.default", WeightNorm},
    {"addr.default", AddOuter},
    {"aminmax.default", LeastAndGreatest},
    {"bucketize.Tensor", Search},
    {"cdist.default", Distances},
    {"chain_matmul.default", ChainOfProducts},
    {"count_nonzero.default", CountNonzero},
    {"count_nonzero.dim_IntList", CountNonzero},
    {"cross.default", Cross},
    {"cumprod.default", CumulativeProducts},
    {"cumulative_trapezoid.dx", Trapezoids<true>},
    {"cumulative_trapezoid.x", Trapezoids<true>},
    {"dist.default", Distance},
    {"histc.default", Histogram},
    {"inner.default", Inner},
    {"kron.default", Kronecker},
    {"kthvalue.default", KthValue},
    {"linalg_cross.default", Cross},
    {"linalg_matrix_norm.default", MatrixNorm},
    {"linalg_matrix_norm.str_ord", FrobeniusNorm},
    {"linalg_matrix_power.default", MatrixPower},
    {"linalg_multi_dot.default", ChainOfProducts},
    {"linalg_norm.default", LinalgNorm},
    {"linalg_norm.ord_str", FrobeniusNorm},
    {"linalg_vecdot.default", VectorDot},
    {"linalg_vector_norm.default", VectorNorm},
    {"matrix_power.default", MatrixPower},
    {"median.default", MedianOfAll},
    {"median.dim", Median},
    {"nanmean.default", OfNumbersOnly<true>},
    {"nansum.default", OfNumbersOnly<false>},
    {"pairwise_distance.default", PairwiseDistance},
    {"pdist.default", PairDistances},
    {"renorm.default", Renormalized},
    {"searchsorted.Tensor", Search},
    {"tensordot.default", TensorDot},
    {"torch.ops.transformers.grouped_mm_fallback.default", GroupedMatmul},
    {"trapezoid.dx", Trapezoids<false>},
    {"trapezoid.x", Trapezoids<false>},
};

}  // namespace

std::span<const AtenOp> AtenVectorOps() { return kVectorOps; }

}  // namespace fusor::models
