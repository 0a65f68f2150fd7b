#include "models/functions.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "models/layers.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

Value* InWideFloats(Builder& b, Value* (*function)(Builder&, Value*),
                    Value* x) {
  const DType dtype = x->type().dtype;
  const DType wide = ir::DTypeSize(dtype) < 4 ? DType::kF32 : dtype;
  return b.Cast(function(b, b.Cast(x, wide)), dtype);
}

Value* HalfToEven(Builder& b, Value* x) {
  Value* low = b.Floor(x);
  Value* rest = b.Minus(x, low);
  Value* odd = b.Compare("eq", b.Remainder(low, 2.0), 1.0);
  Value* up =
      b.Or(b.Compare("gt", rest, 0.5), b.And(b.Compare("eq", rest, 0.5), odd));
  return b.Select(up, b.Plus(low, 1.0), low);
}

Value* Polynomial(Builder& b, Value* x, std::initializer_list<double> terms) {
  Value* sum = nullptr;
  for (const double term : terms) {
    sum =
        sum == nullptr ? b.ScalarLike(x, term) : b.Plus(b.Times(sum, x), term);
  }
  return sum;
}

// The rational approximation of Cephes (atan.c), to the precision of f64.
Value* ArcTangent(Builder& b, Value* x) {
  Value* size = b.Abs(x);
  Value* large = b.Compare("gt", size, 1 + M_SQRT2);
  Value* middle = b.Compare("gt", size, 0.66);
  // Denominators that are not selected are 1, so that gradients stay finite.
  Value* inverse = b.Neg(b.Divide(
      b.ScalarLike(size, 1), b.Select(large, size, b.ScalarLike(size, 1))));
  Value* ratio = b.Divide(b.Minus(size, 1.0), b.Plus(size, 1.0));
  Value* t = b.Select(large, inverse, b.Select(middle, ratio, size));
  Value* offset =
      b.Select(large, b.ScalarLike(x, M_PI_2),
               b.Select(middle, b.ScalarLike(x, M_PI_4), b.ScalarLike(x, 0)));
  Value* z = b.Times(t, t);
  Value* p =
      Polynomial(b, z,
                 {-8.750608600031904122785e-1, -1.615753718733365076637e1,
                  -7.500855792314704667340e1, -1.228866684490136173410e2,
                  -6.485021904942025371773e1});
  Value* q = Polynomial(b, z,
                        {1, 2.485846490142306297962e1,
                         1.650270098316988542046e2, 4.328810604912902668951e2,
                         4.853903996359136964868e2, 1.945506571482613964425e2});
  Value* angle =
      b.Plus(offset, b.Plus(t, b.Times(t, b.Times(z, b.Divide(p, q)))));
  return b.Select(b.Compare("lt", x, 0.0), b.Neg(angle), angle);
}

Value* ArcSine(Builder& b, Value* x) {
  Value* root = b.Sqrt(b.Minus(b.ScalarLike(x, 1), b.Times(x, x)));
  return b.Times(ArcTangent(b, b.Divide(x, b.Plus(root, 1.0))), 2.0);
}

Value* ArcCosine(Builder& b, Value* x) {
  Value* ratio = b.Divide(b.Minus(b.ScalarLike(x, 1), x), b.Plus(x, 1.0));
  return b.Times(ArcTangent(b, b.Sqrt(ratio)), 2.0);
}

Value* Tangent(Builder& b, Value* x) { return b.Divide(b.Sin(x), b.Cos(x)); }
Value* HyperbolicSine(Builder& b, Value* x) {
  return b.Times(b.Minus(b.Exp(x), b.Exp(b.Neg(x))), 0.5);
}

Value* HyperbolicCosine(Builder& b, Value* x) {
  return b.Times(b.Plus(b.Exp(x), b.Exp(b.Neg(x))), 0.5);
}

// log(|x| + sqrt(x^2 + 1)) with the sign of x.
Value* AreaSine(Builder& b, Value* x) {
  Value* size = b.Abs(x);
  Value* area = b.Log(b.Plus(size, b.Sqrt(b.Plus(b.Times(x, x), 1.0))));
  return b.Select(b.Compare("lt", x, 0.0), b.Neg(area), area);
}

Value* AreaCosine(Builder& b, Value* x) {
  return b.Log(b.Plus(x, b.Sqrt(b.Minus(b.Times(x, x), 1.0))));
}

Value* AreaTangent(Builder& b, Value* x) {
  Value* ratio = b.Divide(b.Plus(x, 1.0), b.Minus(b.ScalarLike(x, 1), x));
  return b.Times(b.Log(ratio), 0.5);
}

// W. Kahan's formulas: the rounding error of 1 + x, or of exp(x), is the same
// in numerator and denominator. Denominators that are not selected are 1.
Value* LogOnePlus(Builder& b, Value* x) {
  Value* sum = b.Plus(x, 1.0);
  Value* small = b.Compare("eq", sum, 1.0);
  Value* rest = b.Select(small, b.ScalarLike(x, 1), b.Minus(sum, 1.0));
  Value* infinite = b.Compare("eq", sum, b.Plus(sum, sum));
  Value* log = b.Log(sum);
  Value* exact = b.Times(log, b.Divide(x, rest));
  return b.Select(small, x, b.Select(infinite, log, exact));
}

Value* ExpMinusOne(Builder& b, Value* x) {
  Value* power = b.Exp(x);
  Value* difference = b.Minus(power, 1.0);
  Value* small = b.Compare("eq", power, 1.0);
  Value* near = b.And(b.Compare("lt", b.Abs(x), 1.0), b.Not(small));
  Value* log = b.Log(b.Select(near, power, b.ScalarLike(x, M_E)));
  Value* exact = b.Times(difference, b.Divide(x, log));
  return b.Select(small, x, b.Select(near, exact, difference));
}

// The smaller one of |y| and |x| is divided by the greater one.
Value* ArcTangent2(Builder& b, Value* y, Value* x) {
  Value* height = b.Abs(y);
  Value* width = b.Abs(x);
  Value* steep = b.Compare("gt", height, width);
  Value* greater = b.Select(steep, height, width);
  Value* divisor = b.Select(b.Compare("eq", greater, 0.0),
                            b.ScalarLike(greater, 1), greater);
  Value* angle =
      ArcTangent(b, b.Divide(b.Select(steep, width, height), divisor));
  angle = b.Select(steep, b.Minus(b.ScalarLike(angle, M_PI_2), angle), angle);
  angle = b.Select(b.Compare("lt", x, 0.0),
                   b.Minus(b.ScalarLike(angle, M_PI), angle), angle);
  return b.Select(b.Compare("lt", y, 0.0), b.Neg(angle), angle);
}

namespace {

// Returns the square root of x >= 0. The gradient at 0 is 0, as in PyTorch's
// norms, and not 0 / 0.
Value* RootOf(Builder& b, Value* x) {
  Value* none = b.Compare("eq", x, 0.0);
  Value* root = b.Sqrt(b.Select(none, b.ScalarLike(x, 1), x));
  return b.Select(none, b.Zeros(x->type()), root);
}

}  // namespace

Value* NormOf(Builder& b, Value* x, double p, const std::vector<int64_t>& dims,
              bool keep) {
  const double infinity = std::numeric_limits<double>::infinity();
  Value* size = b.Abs(x);
  if (p == infinity) return b.ReduceMax(size, dims, keep);
  if (p == -infinity) return b.ReduceMin(size, dims, keep);
  if (p == 0) {
    return b.ReduceSum(b.Cast(b.Compare("ne", x, 0.0), x->type().dtype), dims,
                       keep);
  }
  if (p == 1) return b.ReduceSum(size, dims, keep);
  if (p == 2) return RootOf(b, b.ReduceSum(b.Times(x, x), dims, keep));
  // Powers of 0 have no gradient.
  Value* none = b.Compare("eq", size, 0.0);
  Value* base = b.Select(none, b.ScalarLike(size, 1), size);
  Value* power = b.Pow(base, b.ScalarLike(base, p));
  const double of_zero = p > 0 ? 0 : infinity;
  power = b.Select(none, b.ScalarLike(power, of_zero), power);
  Value* sum = b.ReduceSum(power, dims, keep);
  none = b.Compare("eq", sum, 0.0);
  base = b.Select(none, b.ScalarLike(sum, 1), sum);
  Value* root = b.Pow(base, b.ScalarLike(base, 1 / p));
  return b.Select(none, b.Zeros(root->type()), root);
}

Value* MovedBy(Builder& b, Value* x, int64_t dim, int64_t distance,
               bool reverse, double filler) {
  const auto at = static_cast<size_t>(dim);
  const std::vector<int64_t> zeros(ShapeOf(x).size(), 0);
  std::vector<int64_t> low = zeros, high = zeros;
  (reverse ? high : low)[at] = distance;
  std::vector<int64_t> start = zeros;
  std::vector<int64_t> limit = ShapeOf(x);
  if (reverse) {
    start[at] = distance;
    limit[at] += distance;
  }
  return b.Slice(b.Pad(x, low, high, zeros, filler), start, limit);
}

// Multiplies each element by the one 1, 2, 4, ... positions before it. Each
// round doubles the number of factors.
Value* CumulativeProduct(Builder& b, Value* x, int64_t dim, bool reverse) {
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  for (int64_t distance = 1; distance < extent; distance *= 2) {
    x = b.Times(x, MovedBy(b, x, dim, distance, reverse));
  }
  return x;
}

Ranked Leading(Builder& b, Value* x, int64_t dim, int64_t count, bool largest) {
  // Two views of x with a dimension added: [.., i, j, ..].
  ir::Shape pair = ShapeOf(x);
  pair.insert(pair.begin() + dim, pair[static_cast<size_t>(dim)]);
  std::vector<int64_t> without_i, without_j;
  for (int64_t d = 0; d < RankOf(x) + 1; ++d) {
    if (d != dim) without_i.push_back(d);
    if (d != dim + 1) without_j.push_back(d);
  }
  Value* own = b.Broadcast(x, pair, without_j);
  Value* other = b.Broadcast(x, pair, without_i);
  Value* first = b.Compare("lt", b.Iota(DType::kI64, pair, dim + 1),
                           b.Iota(DType::kI64, pair, dim));
  Value* before = b.Or(b.Compare(largest ? "gt" : "lt", other, own),
                       b.And(b.Compare("eq", other, own), first));
  Value* rank = b.ReduceSum(b.Cast(before, DType::kI64), {dim + 1});
  // [.., r, i, ..] with the index of the element of rank r.
  pair[static_cast<size_t>(dim)] = count;
  Value* hit = b.Compare("eq", b.Iota(DType::kI64, pair, dim),
                         b.Broadcast(rank, pair, without_i));
  Value* index = b.Iota(DType::kI64, pair, dim + 1);
  index = b.ReduceSum(b.Select(hit, index, b.ScalarLike(index, 0)), {dim + 1});
  return {b.TakeAlong(x, index, dim), index};
}

namespace {

// cos and sin of 2 pi i k / n, [rows, columns].
struct Waves {
  Value* cosine;
  Value* sine;
};
Waves WavesOf(Builder& b, DType dtype, int64_t rows, int64_t columns,
              int64_t n) {
  const Shape shape{rows, columns};
  // Multiples of n are whole turns. Without them the angle is exact.
  Value* step = b.Remainder(
      b.Times(b.Iota(DType::kI64, shape, 0), b.Iota(DType::kI64, shape, 1)),
      static_cast<double>(n));
  const DType wide = ir::DTypeSize(dtype) < 4 ? DType::kF32 : dtype;
  Value* angle = b.Times(b.Cast(step, wide),
                         2 * std::numbers::pi / static_cast<double>(n));
  return {b.Cast(b.Cos(angle), dtype), b.Cast(b.Sin(angle), dtype)};
}

// Multiplies a dimension of x [.., n, ..] by a matrix [n, k].
Value* Multiplied(Builder& b, Value* x, int64_t dim, Value* matrix) {
  std::vector<int64_t> order(static_cast<size_t>(RankOf(x)));
  for (int64_t d = 0; d < RankOf(x); ++d) order[static_cast<size_t>(d)] = d;
  std::swap(order[static_cast<size_t>(dim)], order.back());
  return b.Transpose(b.Matmul(b.Transpose(x, order), matrix), order);
}

}  // namespace

Value* Resized(Builder& b, Value* x, int64_t dim, int64_t extent) {
  const auto at = static_cast<size_t>(dim);
  const std::vector<int64_t> zeros(ShapeOf(x).size(), 0);
  if (ShapeOf(x)[at] > extent) {
    Shape limit = ShapeOf(x);
    limit[at] = extent;
    return b.Slice(x, zeros, limit);
  }
  std::vector<int64_t> high = zeros;
  high[at] = extent - ShapeOf(x)[at];
  return high[at] == 0 ? x : b.Pad(x, zeros, high, zeros, 0);
}

Complex FourierTransform(Builder& b, const Complex& x, int64_t dim,
                         int64_t count, bool inverse) {
  const int64_t n = ShapeOf(x.re)[static_cast<size_t>(dim)];
  const Waves waves = WavesOf(b, x.re->type().dtype, n, count, n);
  const auto times = [&](Value* part, Value* wave) {
    return Multiplied(b, part, dim, wave);
  };
  Value* re = times(x.re, waves.cosine);
  Value* im = times(x.re, waves.sine);
  if (!inverse) im = b.Neg(im);
  if (x.im != nullptr) {
    Value* crossed = times(x.im, waves.sine);
    re = inverse ? b.Minus(re, crossed) : b.Plus(re, crossed);
    im = b.Plus(im, times(x.im, waves.cosine));
  }
  return {re, im};
}

Value* RealFourierInverse(Builder& b, const Complex& x, int64_t dim,
                          int64_t n) {
  const int64_t count = n / 2 + 1;
  const DType dtype = x.re->type().dtype;
  const Waves waves = WavesOf(b, dtype, count, n, n);
  std::vector<double> twice(static_cast<size_t>(count), 2);
  twice[0] = 1;
  if (n % 2 == 0) twice.back() = 1;
  Value* weight = b.Constant(dtype, {count, 1}, std::move(twice));
  return b.Minus(Multiplied(b, x.re, dim, b.Times(waves.cosine, weight)),
                 Multiplied(b, x.im, dim, b.Times(waves.sine, weight)));
}

}  // namespace fusor::models
