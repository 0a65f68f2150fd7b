#include "runtime/data/augment/random_ops.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using Kind = DrawnOp::Kind;

bool Jitters(const RandomOpsOptions& o) {
  return o.brightness > 0 || o.contrast > 0 || o.saturation > 0 || o.hue > 0;
}

bool CanDefer(Kind kind) {
  return kind != Kind::kPolicy && kind != Kind::kHue && kind != Kind::kBlur;
}

// `image`: as it is before the deferred ops.
void Defer(const DrawnOp& op, Pixels image, DeferredOps& ops) {
  switch (op.kind) {
    case Kind::kBrightness:
      return AdjustBrightness(ops.colour, op.value);
    case Kind::kContrast:
      return AdjustContrast(ops.colour, MeanColour(image), op.value);
    case Kind::kSaturation:
      return AdjustSaturation(ops.colour, op.value);
    case Kind::kLighting:
      return AddLevels(ops.colour, op.levels);
    case Kind::kGrey:
      return MakeGrey(ops.colour);
    case Kind::kErasing:
      ops.box = {op.region.x, op.region.y, op.region.x + op.region.width,
                 op.region.y + op.region.height};
      return;
    case Kind::kPolicy:
    case Kind::kHue:
    case Kind::kBlur:
      break;
  }
  FUSOR_ASSERT(false, "op {} cannot be deferred", static_cast<int>(op.kind));
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

void RandomOps::DrawJitterOps(const SampleRandom& random) {
  RandomSequence sequence(random, RandomStream::kColourJitter);
  const Jitter jitter = DrawJitter(options_, sequence);
  for (const JitterOp op : jitter.order) {
    const double value = jitter.values[static_cast<size_t>(op)];
    switch (op) {
      case JitterOp::kBrightness:
        if (options_.brightness > 0)
          drawn_.push_back({Kind::kBrightness, value});
        break;
      case JitterOp::kContrast:
        if (options_.contrast > 0) drawn_.push_back({Kind::kContrast, value});
        break;
      case JitterOp::kSaturation:
        if (options_.saturation > 0)
          drawn_.push_back({Kind::kSaturation, value});
        break;
      case JitterOp::kHue:
        if (options_.hue > 0) drawn_.push_back({Kind::kHue, value});
        break;
    }
  }
}

void RandomOps::Draw(const SampleRandom& random) {
  drawn_.clear();
  RandomSequence policy(random, RandomStream::kPolicy);
  for (const ChosenOp& op : policy_.Draw(policy)) {
    drawn_.push_back({.kind = Kind::kPolicy, .chosen = op});
  }
  if (Jitters(options_)) DrawJitterOps(random);
  if (options_.lighting > 0) {
    RandomSequence lighting(random, RandomStream::kLighting);
    drawn_.push_back({.kind = Kind::kLighting,
                      .levels = DrawLighting(options_.lighting, lighting)});
  }
  if (RandomSequence(random, RandomStream::kGrey).Chance(options_.grey)) {
    drawn_.push_back({.kind = Kind::kGrey});
  }
  RandomSequence blur(random, RandomStream::kBlur);
  if (blur.Chance(options_.blur)) {
    drawn_.push_back({.kind = Kind::kBlur, .value = blur.Uniform(0.1, 2)});
  }
  RandomSequence erasing(random, RandomStream::kErasing);
  if (erasing.Chance(options_.erasing)) {
    if (const auto region = DrawErasing(size_, erasing)) {
      drawn_.push_back({.kind = Kind::kErasing, .region = *region});
    }
  }
}

void RandomOps::Run(const DrawnOp& op, Pixels image) {
  switch (op.kind) {
    case Kind::kPolicy:
      // torchvision's reference script interpolates bilinearly.
      return ApplyOp(op.chosen, Interpolation::kBilinear, image, scratch_);
    case Kind::kBrightness:
      return AdjustBrightness(image, op.value);
    case Kind::kContrast:
      return AdjustContrast(image, op.value);
    case Kind::kSaturation:
      return AdjustSaturation(image, op.value);
    case Kind::kHue:
      return AdjustHue(image, op.value);
    case Kind::kLighting:
      return AddLevels(image, op.levels);
    case Kind::kGrey:
      return MakeGrey(image);
    case Kind::kBlur:
      return GaussianBlur(image, kBlurKernel, op.value, scratch_);
    case Kind::kErasing:
      return FillRegion(image, op.region, options_.erased_colour);
  }
}

DeferredOps RandomOps::Apply(const SampleRandom& random, uint8_t* pixels) {
  const Pixels image = {pixels, size_.width, size_.height};
  Draw(random);
  auto deferred = drawn_.end();
  while (options_.defer && deferred != drawn_.begin() &&
         CanDefer(std::prev(deferred)->kind)) {
    --deferred;
  }
  std::for_each(drawn_.begin(), deferred,
                [&](const DrawnOp& op) { Run(op, image); });
  DeferredOps ops;
  std::for_each(deferred, drawn_.end(),
                [&](const DrawnOp& op) { Defer(op, image, ops); });
  return ops;
}

}  // namespace fusor::runtime
