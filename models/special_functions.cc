#include "models/special_functions.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "models/functions.h"

namespace fusor::models {

using ir::Builder;
using ir::Value;

namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// x, and 1 - x for x < 1/2, where functions of gamma are reflected.
struct Reflection {
  Value* low;    // whether x < 1/2
  Value* x;      // 1/2 or more
  Value* angle;  // pi (x - floor(x)): the angle pi x without half turns
};
Reflection Reflected(Builder& b, Value* x) {
  Value* low = b.Compare("lt", x, 0.5);
  return {low, b.Select(low, b.Minus(b.ScalarLike(x, 1), x), x),
          b.Times(b.Minus(x, b.Floor(x)), kPi)};
}

// The asymptotic series hold from here on. Smaller operands are shifted.
constexpr int kShift = 10;

// Returns the derivative of the digamma function.
Value* Trigamma(Builder& b, Value* x) {
  const Reflection r = Reflected(b, x);
  Value* one = b.ScalarLike(x, 1);
  Value* sum = b.ScalarLike(x, 0);
  for (int i = 0; i < kShift; ++i) {
    Value* term = b.Plus(r.x, static_cast<double>(i));
    sum = b.Plus(sum, b.Divide(one, b.Times(term, term)));
  }
  Value* inverse = b.Divide(one, b.Plus(r.x, static_cast<double>(kShift)));
  Value* square = b.Times(inverse, inverse);
  // Bernoulli's numbers.
  Value* series = Polynomial(b, square,
                             {7.0 / 6, -691.0 / 2730, 5.0 / 66, -1.0 / 30,
                              1.0 / 42, -1.0 / 30, 1.0 / 6});
  series = b.Times(b.Times(series, square), inverse);
  Value* y = b.Plus(sum, b.Plus(b.Plus(inverse, b.Times(square, 0.5)), series));
  Value* ratio = b.Divide(b.ScalarLike(x, kPi), b.Sin(r.angle));
  return b.Select(r.low, b.Minus(b.Times(ratio, ratio), y), y);
}

}  // namespace

// Stirling's series for x >= 10; before, log gamma(x) = log gamma(x + 10) -
// log(x (x + 1) .. (x + 9)).
Value* LogGamma(Builder& b, Value* x) {
  const Reflection r = Reflected(b, x);
  Value* one = b.ScalarLike(x, 1);
  Value* large = b.Compare("ge", r.x, static_cast<double>(kShift));
  Value* small = b.Select(large, one, r.x);
  Value* product = small;
  for (int i = 1; i < kShift; ++i) {
    product = b.Times(product, b.Plus(small, static_cast<double>(i)));
  }
  Value* z = b.Select(large, r.x, b.Plus(r.x, static_cast<double>(kShift)));
  Value* inverse = b.Divide(one, z);
  Value* square = b.Times(inverse, inverse);
  Value* series = Polynomial(b, square,
                             {1.0 / 156, -691.0 / 360360, 1.0 / 1188,
                              -1.0 / 1680, 1.0 / 1260, -1.0 / 360, 1.0 / 12});
  Value* y = b.Times(b.Minus(z, 0.5), b.Minus(b.Log(z), 1.0));
  y = b.Plus(b.Plus(y, 0.5 * std::log(2 * kPi) - 0.5),
             b.Times(series, inverse));
  y = b.Minus(y, b.Select(large, b.ScalarLike(x, 0), b.Log(product)));
  Value* reflected = b.Minus(b.ScalarLike(x, std::log(kPi)),
                             b.Plus(b.Log(b.Abs(b.Sin(r.angle))), y));
  y = b.Select(r.low, reflected, y);
  y = b.Select(b.Compare("eq", b.Abs(x), kInfinity), b.ScalarLike(x, kInfinity),
               y);
  return b.CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    return {b.Times(dy, Digamma(b, x))};
  });
}

Value* Digamma(Builder& b, Value* x) {
  const Reflection r = Reflected(b, x);
  Value* one = b.ScalarLike(x, 1);
  Value* sum = b.ScalarLike(x, 0);
  for (int i = 0; i < kShift; ++i) {
    sum = b.Plus(sum, b.Divide(one, b.Plus(r.x, static_cast<double>(i))));
  }
  Value* z = b.Plus(r.x, static_cast<double>(kShift));
  Value* inverse = b.Divide(one, z);
  Value* square = b.Times(inverse, inverse);
  Value* series = Polynomial(b, square,
                             {1.0 / 12, -691.0 / 32760, 1.0 / 132, -1.0 / 240,
                              1.0 / 252, -1.0 / 120, 1.0 / 12});
  Value* y =
      b.Minus(b.Log(z), b.Plus(b.Times(inverse, 0.5), b.Times(series, square)));
  y = b.Minus(y, sum);
  Value* turn = b.Divide(b.Cos(r.angle), b.Sin(r.angle));
  Value* reflected = b.Minus(y, b.Times(turn, kPi));
  // Poles: NaN at negative integers; at 0 an infinity of the other sign.
  Value* pole = b.And(b.Compare("eq", x, b.Floor(x)), b.Compare("lt", x, 0.0));
  reflected = b.Select(pole, b.ScalarLike(x, std::nan("")), reflected);
  reflected =
      b.Select(b.Compare("eq", x, 0.0), b.Neg(b.Divide(one, x)), reflected);
  y = b.Select(r.low, reflected, y);
  return b.CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    return {b.Times(dy, Trigamma(b, x))};
  });
}

// Giles's polynomials of w = -log(1 - x^2) for single precision ("Approximating
// the erfinv function", 2010), then two steps of Newton's method.
Value* InverseErf(Builder& b, Value* x) {
  Value* one = b.ScalarLike(x, 1);
  Value* size = b.Abs(x);
  Value* inside = b.Compare("lt", size, 1.0);
  Value* safe = b.Select(inside, x, b.ScalarLike(x, 0));
  Value* w = b.Neg(b.Log(b.Times(b.Minus(one, safe), b.Plus(safe, 1.0))));
  Value* near = Polynomial(
      b, b.Minus(w, 2.5),
      {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06,
       0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941});
  Value* tail = b.Compare("ge", w, 5.0);
  Value* root = b.Sqrt(b.Select(tail, w, one));
  Value* far = Polynomial(
      b, b.Minus(root, 3.0),
      {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844,
       0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682});
  Value* y = b.Times(b.Select(tail, far, near), safe);
  const double factor = std::sqrt(kPi) / 2;
  for (int i = 0; i < 2; ++i) {
    Value* miss = b.Minus(b.Erf(y), safe);
    y = b.Minus(y, b.Times(b.Times(miss, b.Exp(b.Times(y, y))), factor));
  }
  Value* outside = b.Select(b.Compare("eq", size, 1.0), b.Times(x, kInfinity),
                            b.ScalarLike(x, std::nan("")));
  y = b.Select(inside, y, outside);
  return b.CustomGradient(y, {x}, [&](Value* dy) -> std::vector<Value*> {
    return {b.Times(dy, b.Times(b.Exp(b.Times(y, y)), factor))};
  });
}

}  // namespace fusor::models
