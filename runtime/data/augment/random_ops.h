#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/data/augment/auto_augment.h"
#include "runtime/data/augment/deferred_ops.h"
#include "runtime/data/augment/pixel_ops.h"
#include "runtime/data/augment/sample_random.h"

namespace fusor::runtime {

// Random ops on the crops of training. The default has none.
struct RandomOpsOptions {
  AutoAugmentPolicy policy = AutoAugmentPolicy::kNone;
  int magnitude = 9;  // bin of RandAugment, in [0, kMagnitudeBins)
  // torchvision's ColorJitter: a factor is in [max(0, 1 - x), 1 + x], a turn of
  // the hue in [-hue, hue].
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;
  // AlexNet's lighting: the standard deviation of the weights of the principal
  // components of ImageNet's colours.
  double lighting = 0;
  double grey = 0;     // probability
  double blur = 0;     // probability
  double erasing = 0;  // probability
  // Levels of an erased region. torchvision fills it with 0 after
  // normalisation, that is with the mean colour.
  std::array<uint8_t, 3> erased_colour = {124, 116, 104};
  // Defer ops that are affine in a pixel's colour, and erasing, to the graph.
  // The ops of a sample before its last other one are not deferred.
  bool defer = false;

  bool Any() const;
};

// Throws kUsage for options out of range.
void CheckRandomOps(const RandomOpsOptions& options);

// The kernel of the blur, as in timm: 23 x 23 pixels, sigma from 0.1 to 2.
constexpr int kBlurKernel = 23;

enum class JitterOp { kBrightness, kContrast, kSaturation, kHue };
struct Jitter {
  std::array<JitterOp, 4> order = {JitterOp::kBrightness, JitterOp::kContrast,
                                   JitterOp::kSaturation, JitterOp::kHue};
  // By JitterOp: the factors of the first three, and the rotation of the hue.
  std::array<double, 4> values = {1, 1, 1, 0};
};

Jitter DrawJitter(const RandomOpsOptions& options, RandomSequence& random);

// Returns the levels to add to red, green and blue.
std::array<double, 3> DrawLighting(double deviation, RandomSequence& random);

// Draws torchvision's RandomErasing: tries ten regions with 2 to 33 % of the
// area and an aspect ratio from 0.3 to 3.3. Null if none fits.
std::optional<Region> DrawErasing(ImageSize size, RandomSequence& random);

// An op that was drawn for a sample.
struct DrawnOp {
  enum class Kind {
    kPolicy,
    kBrightness,
    kContrast,
    kSaturation,
    kHue,
    kLighting,
    kGrey,
    kBlur,
    kErasing
  };
  Kind kind = Kind::kPolicy;
  double value = 0;                   // factor, rotation of the hue, or sigma
  ChosenOp chosen = {};               // kPolicy
  std::array<double, 3> levels = {};  // kLighting
  Region region = {};                 // kErasing
};

// Applies the ops in this order: policy, colour jitter, lighting, grey, blur,
// erasing. Not thread-safe.
class RandomOps {
 public:
  RandomOps(const RandomOpsOptions& options, ImageSize size);

  // Returns the deferred ops, which come after those applied.
  DeferredOps Apply(const SampleRandom& random, uint8_t* pixels);

 private:
  void Draw(const SampleRandom& random);
  void DrawJitterOps(const SampleRandom& random);
  void Run(const DrawnOp& op, Pixels image);

  RandomOpsOptions options_;
  ImageSize size_;
  AutoAugment policy_;
  AugmentScratch scratch_;
  std::vector<DrawnOp> drawn_;  // of the current sample
};

}  // namespace fusor::runtime
