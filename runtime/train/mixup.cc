#include "runtime/train/mixup.h"

#include <cmath>

#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// A stream of uniform numbers in (0, 1).
class Uniforms {
 public:
  Uniforms(uint64_t seed, int64_t step)
      : key_(HashCombine(HashCombine(HashBytes("mixup"), seed),
                         static_cast<uint64_t>(step))) {}

  double Next() {
    const auto block = Philox({count_++, 0, 0, 0}, key_);
    const uint64_t bits = uint64_t{block[1]} << 32 | block[0];
    return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  }

 private:
  uint64_t key_;
  uint32_t count_ = 0;
};

// Draws a standard normal number by Box and Muller's method.
double Normal(Uniforms& uniforms) {
  const double radius = std::sqrt(-2 * std::log(uniforms.Next()));
  return radius * std::cos(2 * M_PI * uniforms.Next());
}

// Returns the logarithm of a sample of Gamma(shape, 1): Marsaglia and Tsang, "A
// simple method for generating gamma variables", 2000. For a small shape the
// sample itself would underflow.
double LogGamma(double shape, Uniforms& uniforms) {
  if (shape < 1) {
    const double boost = std::log(uniforms.Next()) / shape;
    return boost + LogGamma(shape + 1, uniforms);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = Normal(uniforms);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 &&
        std::log(uniforms.Next()) < x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v);
    }
  }
}

}  // namespace

double MixupCoefficient(double alpha, uint64_t seed, int64_t step) {
  if (alpha == 0) return 1;
  Uniforms uniforms(seed, step);
  const double a = LogGamma(alpha, uniforms);
  const double b = LogGamma(alpha, uniforms);
  return 1 / (1 + std::exp(b - a));
}

}  // namespace fusor::runtime
