#include "runtime/data/augment/random_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

bool Jitters(const RandomOpsOptions& o) {
  return o.brightness > 0 || o.contrast > 0 || o.saturation > 0 || o.hue > 0;
}

}  // namespace

bool RandomOpsOptions::Any() const {
  return policy != AutoAugmentPolicy::kNone || Jitters(*this) || lighting > 0 ||
         grey > 0 || blur > 0 || erasing > 0;
}

void CheckRandomOps(const RandomOpsOptions& options) {
  FUSOR_CHECK(
      options.magnitude >= 0 && options.magnitude < kMagnitudeBins, kUsage,
      "transform: expected a magnitude of RandAugment from 0 to {}, got "
      "{}",
      kMagnitudeBins - 1, options.magnitude);
  for (const double x :
       {options.brightness, options.contrast, options.saturation}) {
    FUSOR_CHECK(x >= 0, kUsage,
                "transform: expected a colour jitter of 0 or more, got {}", x);
  }
  FUSOR_CHECK(options.hue >= 0 && options.hue <= 0.5, kUsage,
              "transform: expected a jitter of the hue from 0 to 0.5, got {}",
              options.hue);
  FUSOR_CHECK(options.lighting >= 0, kUsage,
              "transform: expected a lighting of 0 or more, got {}",
              options.lighting);
  for (const double p : {options.grey, options.blur, options.erasing}) {
    FUSOR_CHECK(p >= 0 && p <= 1, kUsage,
                "transform: expected a probability from 0 to 1, got {}", p);
  }
}

Jitter DrawJitter(const RandomOpsOptions& options, RandomSequence& random) {
  Jitter jitter;
  for (int i = 3; i > 0; --i) {
    std::swap(jitter.order[i], jitter.order[random.Integer(i + 1)]);
  }
  const auto factor = [&random](double x) {
    return random.Uniform(std::max(0.0, 1 - x), 1 + x);
  };
  jitter.values = {factor(options.brightness), factor(options.contrast),
                   factor(options.saturation),
                   random.Uniform(-options.hue, options.hue)};
  return jitter;
}

std::array<double, 3> DrawLighting(double deviation, RandomSequence& random) {
  // Eigenvalues and eigenvectors of the covariance of ImageNet's levels, as in
  // AlexNet and GluonCV.
  constexpr std::array<double, 3> kValues = {55.46, 4.794, 1.148};
  constexpr std::array<std::array<double, 3>, 3> kVectors = {{
      {-0.5675, 0.7192, 0.4009},
      {-0.5808, -0.0045, -0.8140},
      {-0.5836, -0.6948, 0.4203},
  }};
  std::array<double, 3> levels = {};
  for (size_t i = 0; i < 3; ++i) {
    const double weight = deviation * random.Normal() * kValues[i];
    for (size_t c = 0; c < 3; ++c) levels[c] += kVectors[c][i] * weight;
  }
  return levels;
}

std::optional<Region> DrawErasing(ImageSize size, RandomSequence& random) {
  const double area = static_cast<double>(size.width) * size.height;
  const auto side = [](double length) {
    return static_cast<int>(std::nearbyint(length));
  };
  for (int i = 0; i < 10; ++i) {
    const double target = area * random.Uniform(0.02, 0.33);
    const double aspect =
        std::exp(random.Uniform(std::log(0.3), std::log(3.3)));
    const int height = side(std::sqrt(target * aspect));
    const int width = side(std::sqrt(target / aspect));
    if (height >= size.height || width >= size.width) continue;
    const int y = random.Integer(size.height - height + 1);
    const int x = random.Integer(size.width - width + 1);
    return Region{x, y, width, height};
  }
  return std::nullopt;
}

RandomOps::RandomOps(const RandomOpsOptions& options, ImageSize size)
    : options_(options),
      size_(size),
      policy_(options.policy, options.magnitude, size) {}

void RandomOps::ApplyJitter(const SampleRandom& random, Pixels image) {
  RandomSequence sequence(random, RandomStream::kColourJitter);
  const Jitter jitter = DrawJitter(options_, sequence);
  for (const JitterOp op : jitter.order) {
    const double value = jitter.values[static_cast<size_t>(op)];
    switch (op) {
      case JitterOp::kBrightness:
        if (options_.brightness > 0) AdjustBrightness(image, value);
        break;
      case JitterOp::kContrast:
        if (options_.contrast > 0) AdjustContrast(image, value);
        break;
      case JitterOp::kSaturation:
        if (options_.saturation > 0) AdjustSaturation(image, value);
        break;
      case JitterOp::kHue:
        if (options_.hue > 0) AdjustHue(image, value);
        break;
    }
  }
}

void RandomOps::Apply(const SampleRandom& random, uint8_t* pixels) {
  const Pixels image = {pixels, size_.width, size_.height};
  RandomSequence policy(random, RandomStream::kPolicy);
  // torchvision's reference script interpolates bilinearly.
  for (const ChosenOp& op : policy_.Draw(policy)) {
    ApplyOp(op, Interpolation::kBilinear, image, scratch_);
  }
  if (Jitters(options_)) ApplyJitter(random, image);
  if (options_.lighting > 0) {
    RandomSequence lighting(random, RandomStream::kLighting);
    AddLevels(image, DrawLighting(options_.lighting, lighting));
  }
  if (RandomSequence(random, RandomStream::kGrey).Chance(options_.grey)) {
    MakeGrey(image);
  }
  RandomSequence blur(random, RandomStream::kBlur);
  if (blur.Chance(options_.blur)) {
    GaussianBlur(image, kBlurKernel, blur.Uniform(0.1, 2), scratch_);
  }
  RandomSequence erasing(random, RandomStream::kErasing);
  if (erasing.Chance(options_.erasing)) {
    if (const auto region = DrawErasing(size_, erasing)) {
      FillRegion(image, *region, options_.erased_colour);
    }
  }
}

}  // namespace fusor::runtime
