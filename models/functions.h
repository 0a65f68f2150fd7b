#pragma once

// Functions of Builder's ops that several importers use. Tensors are floats of
// 32 or 64 bits, if nothing else is said.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "ir/builder.h"

namespace fusor::models {

// Computes a function of a 16-bit float in f32, of others in their dtype.
ir::Value* InWideFloats(ir::Builder& b,
                        ir::Value* (*function)(ir::Builder&, ir::Value*),
                        ir::Value* x);

// Rounds to the nearest integer, halves to the even one. Any float.
ir::Value* HalfToEven(ir::Builder& b, ir::Value* x);

// Evaluates a polynomial, whose first term has the highest power.
ir::Value* Polynomial(ir::Builder& b, ir::Value* x,
                      std::initializer_list<double> terms);

ir::Value* ArcSine(ir::Builder& b, ir::Value* x);
ir::Value* ArcCosine(ir::Builder& b, ir::Value* x);
ir::Value* ArcTangent(ir::Builder& b, ir::Value* x);
// The angle of the point (x, y). Shapes broadcast.
ir::Value* ArcTangent2(ir::Builder& b, ir::Value* y, ir::Value* x);
ir::Value* Tangent(ir::Builder& b, ir::Value* x);
ir::Value* HyperbolicSine(ir::Builder& b, ir::Value* x);
ir::Value* HyperbolicCosine(ir::Builder& b, ir::Value* x);
ir::Value* AreaSine(ir::Builder& b, ir::Value* x);
ir::Value* AreaCosine(ir::Builder& b, ir::Value* x);
ir::Value* AreaTangent(ir::Builder& b, ir::Value* x);
ir::Value* LogOnePlus(ir::Builder& b, ir::Value* x);   // log(1 + x)
ir::Value* ExpMinusOne(ir::Builder& b, ir::Value* x);  // exp(x) - 1

// Returns (sum |x|^p)^(1/p) over the dimensions, in order; for infinities the
// extremum, for 0 the number of elements that are not 0. The gradient of a norm
// that is 0 is 0, as in PyTorch, and not 0 / 0.
ir::Value* NormOf(ir::Builder& b, ir::Value* x, double p,
                  const std::vector<int64_t>& dims, bool keep);

// Returns x moved along a dimension, to the end or, reversed, to the start;
// `filler` moves in. Any number.
ir::Value* MovedBy(ir::Builder& b, ir::Value* x, int64_t dim, int64_t distance,
                   bool reverse, double filler = 1);
// The products of all elements up to each one, or, reversed, from it on. Any
// number.
ir::Value* CumulativeProduct(ir::Builder& b, ir::Value* x, int64_t dim,
                             bool reverse);

// The greatest or least elements of a dimension, in order, and their indices,
// i64. The first one of equal elements is first. Quadratic in the extent,
// because the IR has no sort: callers allow at most kMostRanked elements. Any
// number.
struct Ranked {
  ir::Value* values;
  ir::Value* indices;
};
inline constexpr int64_t kMostRanked = 1 << 14;
Ranked Leading(ir::Builder& b, ir::Value* x, int64_t dim, int64_t count,
               bool largest);

// Truncates a dimension of x or pads it with zeros. Any number.
ir::Value* Resized(ir::Builder& b, ir::Value* x, int64_t dim, int64_t extent);

// The parts of complex numbers, of the same type. `im` may be null: zero.
struct Complex {
  ir::Value* re;
  ir::Value* im;
};
// Fourier transforms of one dimension, as products with matrices of cosines and
// sines. Each run computes the matrices, whose size is the square of the
// extent: callers limit it. Nothing is divided by the extent.
inline constexpr int64_t kMostFourierPoints = 4096;
// Sums x[i] exp(-2 pi i k / n) over a dimension of n elements, for the first
// `count` k; if `inverse`, with a positive sign. The result has both parts.
Complex FourierTransform(ir::Builder& b, const Complex& x, int64_t dim,
                         int64_t count, bool inverse);
// The inverse transform to n real numbers. x, with both parts, has the first
// n/2 + 1 terms: the others are their conjugates.
ir::Value* RealFourierInverse(ir::Builder& b, const Complex& x, int64_t dim,
                              int64_t n);

}  // namespace fusor::models
