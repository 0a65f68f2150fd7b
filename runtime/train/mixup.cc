#include "runtime/train/mixup.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// A stream of uniform numbers in (0, 1).
class Uniforms {
 public:
  Uniforms(std::string_view name, uint64_t seed, int64_t step)
      : key_(HashCombine(HashCombine(HashBytes(name), seed),
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

// Draws from Beta(alpha, alpha).
double Beta(double alpha, Uniforms& uniforms) {
  const double a = LogGamma(alpha, uniforms);
  const double b = LogGamma(alpha, uniforms);
  return 1 / (1 + std::exp(b - a));
}

// Draws torchvision's RandomCutMix.
Mix DrawCutMix(double alpha, uint64_t seed, int64_t step, int image_size) {
  Uniforms uniforms("cutmix", seed, step);
  const double coefficient = Beta(alpha, uniforms);
  const auto centre = [&] {
    return static_cast<int>(uniforms.Next() * image_size);
  };
  const int x = centre();
  const int y = centre();
  const int half =
      static_cast<int>(0.5 * std::sqrt(1 - coefficient) * image_size);
  Mix mix;
  mix.left = std::max(x - half, 0);
  mix.top = std::max(y - half, 0);
  mix.right = std::min(x + half, image_size);
  mix.bottom = std::min(y + half, image_size);
  const double area =
      static_cast<double>(mix.right - mix.left) * (mix.bottom - mix.top);
  mix.share = 1 - area / (static_cast<double>(image_size) * image_size);
  return mix;
}

}  // namespace

double MixupCoefficient(double alpha, uint64_t seed, int64_t step) {
  if (alpha == 0) return 1;
  Uniforms uniforms("mixup", seed, step);
  return Beta(alpha, uniforms);
}

Mix DrawMix(const MixOptions& options, uint64_t seed, int64_t step,
            int image_size) {
  const bool cuts =
      options.cutmix > 0 &&
      (options.mixup == 0 || Uniforms("mixup-switch", seed, step).Next() <
                                 options.switch_probability);
  if (cuts) return DrawCutMix(options.cutmix, seed, step, image_size);
  return {.share = MixupCoefficient(options.mixup, seed, step)};
}

}  // namespace fusor::runtime
