#pragma once

#include <string_view>
#include <vector>

#include "runtime/data/augment/affine.h"
#include "runtime/data/augment/pixel_ops.h"
#include "runtime/data/augment/sample_random.h"

namespace fusor::runtime {

// torchvision's transforms of that name, with their defaults.
enum class AutoAugmentPolicy {
  kNone,
  kRandAugment,         // two random ops of a given magnitude
  kTrivialAugmentWide,  // one random op of a random magnitude
  kImageNet,            // AutoAugment: one of 25 pairs of ops
};

enum class AugmentOp {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColour,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kInvert,
};

// Bins of the magnitudes of RandAugment and TrivialAugmentWide.
constexpr int kMagnitudeBins = 31;

// An op of a policy with its magnitudes, which are empty if it has none.
struct AugmentSpace {
  AugmentOp op = AugmentOp::kIdentity;
  std::vector<float> magnitudes;
  bool is_signed = false;  // half of the magnitudes are negated
};

// Returns the ops among which a policy chooses, for images of this size.
std::vector<AugmentSpace> AugmentSpaces(AutoAugmentPolicy policy,
                                        ImageSize size);

// An op of one of AutoAugment's pairs.
struct PolicyStep {
  AugmentOp op;
  double probability;
  int bin;  // of its magnitude; -1: none
};
using PolicyPair = std::array<PolicyStep, 2>;

// Returns AutoAugment's pairs for ImageNet.
const std::vector<PolicyPair>& ImageNetPairs();

// An op to apply.
struct ChosenOp {
  AugmentOp op;
  double magnitude;
};

// Applies the random ops of a policy to images of one size.
class AutoAugment {
 public:
  // `bin`: RandAugment's magnitude, in [0, kMagnitudeBins).
  AutoAugment(AutoAugmentPolicy policy, int bin, ImageSize size);

  std::vector<ChosenOp> Draw(RandomSequence& random) const;

 private:
  const AugmentSpace& Find(AugmentOp op) const;

  AutoAugmentPolicy policy_;
  int bin_;
  std::vector<AugmentSpace> spaces_;
};

// Applies an op.
void ApplyOp(const ChosenOp& chosen, Interpolation interpolation, Pixels image,
             AugmentScratch& scratch);

}  // namespace fusor::runtime
