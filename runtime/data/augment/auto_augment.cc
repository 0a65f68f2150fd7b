#include "runtime/data/augment/auto_augment.h"

#include <algorithm>
#include <cmath>

namespace fusor::runtime {
namespace {

// torch.linspace in single precision. PyTorch's CPU kernels round once per
// value, which determines whether a move is 15 or 16 pixels.
std::vector<float> Linear(float first, float last, int count) {
  const float step = (last - first) / static_cast<float>(count - 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    values[i] = i < count / 2
                    ? std::fma(step, static_cast<float>(i), first)
                    : std::fma(-step, static_cast<float>(count - 1 - i), last);
  }
  return values;
}

// Numbers of bits that Posterize keeps: from 8 down to 8 - range.
std::vector<float> Bits(int range, int count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const float step =
        static_cast<float>(count - 1) / static_cast<float>(range);
    values[i] = 8 - std::nearbyint(static_cast<float>(i) / step);
  }
  return values;
}

}  // namespace

std::vector<AugmentSpace> AugmentSpaces(AutoAugmentPolicy policy,
                                        ImageSize size) {
  if (policy == AutoAugmentPolicy::kNone) return {};
  const bool wide = policy == AutoAugmentPolicy::kTrivialAugmentWide;
  const bool pairs = policy == AutoAugmentPolicy::kImageNet;
  const int count = pairs ? 10 : kMagnitudeBins;
  const auto linear = [&](double last, double wide_last) {
    return Linear(0, static_cast<float>(wide ? wide_last : last), count);
  };
  const auto shear = linear(0.3, 0.99);
  const auto colour = linear(0.9, 0.99);
  constexpr double kShift = 150.0 / 331.0;
  std::vector<AugmentSpace> spaces = {
      {AugmentOp::kShearX, shear, true},
      {AugmentOp::kShearY, shear, true},
      {AugmentOp::kTranslateX, linear(kShift * size.width, 32), true},
      {AugmentOp::kTranslateY, linear(kShift * size.height, 32), true},
      {AugmentOp::kRotate, linear(30, 135), true},
      {AugmentOp::kBrightness, colour, true},
      {AugmentOp::kColour, colour, true},
      {AugmentOp::kContrast, colour, true},
      {AugmentOp::kSharpness, colour, true},
      {AugmentOp::kPosterize, Bits(wide ? 6 : 4, count)},
      {AugmentOp::kSolarize, Linear(255, 0, count)},
      {AugmentOp::kAutoContrast},
      {AugmentOp::kEqualize},
  };
  if (pairs) {
    spaces.push_back({AugmentOp::kInvert});
  } else {
    spaces.insert(spaces.begin(), {AugmentOp::kIdentity});
  }
  return spaces;
}

const std::vector<PolicyPair>& ImageNetPairs() {
  using enum AugmentOp;
  static const std::vector<PolicyPair> pairs = {
      {{{kPosterize, 0.4, 8}, {kRotate, 0.6, 9}}},
      {{{kSolarize, 0.6, 5}, {kAutoContrast, 0.6, -1}}},
      {{{kEqualize, 0.8, -1}, {kEqualize, 0.6, -1}}},
      {{{kPosterize, 0.6, 7}, {kPosterize, 0.6, 6}}},
      {{{kEqualize, 0.4, -1}, {kSolarize, 0.2, 4}}},
      {{{kEqualize, 0.4, -1}, {kRotate, 0.8, 8}}},
      {{{kSolarize, 0.6, 3}, {kEqualize, 0.6, -1}}},
      {{{kPosterize, 0.8, 5}, {kEqualize, 1.0, -1}}},
      {{{kRotate, 0.2, 3}, {kSolarize, 0.6, 8}}},
      {{{kEqualize, 0.6, -1}, {kPosterize, 0.4, 6}}},
      {{{kRotate, 0.8, 8}, {kColour, 0.4, 0}}},
      {{{kRotate, 0.4, 9}, {kEqualize, 0.6, -1}}},
      {{{kEqualize, 0.0, -1}, {kEqualize, 0.8, -1}}},
      {{{kInvert, 0.6, -1}, {kEqualize, 1.0, -1}}},
      {{{kColour, 0.6, 4}, {kContrast, 1.0, 8}}},
      {{{kRotate, 0.8, 8}, {kColour, 1.0, 2}}},
      {{{kColour, 0.8, 8}, {kSolarize, 0.8, 7}}},
      {{{kSharpness, 0.4, 7}, {kInvert, 0.6, -1}}},
      {{{kShearX, 0.6, 5}, {kEqualize, 1.0, -1}}},
      {{{kColour, 0.4, 0}, {kEqualize, 0.6, -1}}},
      {{{kEqualize, 0.4, -1}, {kSolarize, 0.2, 4}}},
      {{{kSolarize, 0.6, 5}, {kAutoContrast, 0.6, -1}}},
      {{{kInvert, 0.6, -1}, {kEqualize, 1.0, -1}}},
      {{{kColour, 0.6, 4}, {kContrast, 1.0, 8}}},
      {{{kEqualize, 0.8, -1}, {kEqualize, 0.6, -1}}},
  };
  return pairs;
}

AutoAugment::AutoAugment(AutoAugmentPolicy policy, int bin, ImageSize size)
    : policy_(policy), bin_(bin), spaces_(AugmentSpaces(policy, size)) {}

const AugmentSpace& AutoAugment::Find(AugmentOp op) const {
  return *std::find_if(spaces_.begin(), spaces_.end(),
                       [op](const AugmentSpace& s) { return s.op == op; });
}

std::vector<ChosenOp> AutoAugment::Draw(RandomSequence& random) const {
  std::vector<ChosenOp> chosen;
  const auto add = [&](const AugmentSpace& space, int bin) {
    double magnitude =
        space.magnitudes.empty() || bin < 0 ? 0 : space.magnitudes[bin];
    if (space.is_signed && random.Integer(2) == 1) magnitude = -magnitude;
    chosen.push_back({space.op, magnitude});
  };
  const auto any = [&]() -> const AugmentSpace& {
    return spaces_[random.Integer(static_cast<int>(spaces_.size()))];
  };
  switch (policy_) {
    case AutoAugmentPolicy::kNone:
      break;
    case AutoAugmentPolicy::kRandAugment:
      for (int i = 0; i < 2; ++i) add(any(), bin_);
      break;
    case AutoAugmentPolicy::kTrivialAugmentWide: {
      const AugmentSpace& space = any();
      add(space, random.Integer(kMagnitudeBins));
      break;
    }
    case AutoAugmentPolicy::kImageNet: {
      const auto& pairs = ImageNetPairs();
      const PolicyPair& pair =
          pairs[random.Integer(static_cast<int>(pairs.size()))];
      for (const PolicyStep& step : pair) {
        if (random.Chance(step.probability)) add(Find(step.op), step.bin);
      }
      break;
    }
  }
  return chosen;
}

void ApplyOp(const ChosenOp& chosen, Interpolation interpolation, Pixels image,
             AugmentScratch& scratch) {
  const double magnitude = chosen.magnitude;
  switch (chosen.op) {
    case AugmentOp::kIdentity:
      return;
    case AugmentOp::kShearX:
      return ShearX(image, magnitude, interpolation, scratch);
    case AugmentOp::kShearY:
      return ShearY(image, magnitude, interpolation, scratch);
    case AugmentOp::kTranslateX:
      return Translate(image, static_cast<int>(magnitude), 0, scratch);
    case AugmentOp::kTranslateY:
      return Translate(image, 0, static_cast<int>(magnitude), scratch);
    case AugmentOp::kRotate:
      return Rotate(image, magnitude, interpolation, scratch);
    case AugmentOp::kBrightness:
      return AdjustBrightness(image, 1 + magnitude);
    case AugmentOp::kColour:
      return AdjustSaturation(image, 1 + magnitude);
    case AugmentOp::kContrast:
      return AdjustContrast(image, 1 + magnitude);
    case AugmentOp::kSharpness:
      return AdjustSharpness(image, 1 + magnitude, scratch);
    case AugmentOp::kPosterize:
      return Posterize(image, static_cast<int>(magnitude));
    case AugmentOp::kSolarize:
      return Solarize(image, magnitude);
    case AugmentOp::kAutoContrast:
      return AutoContrast(image);
    case AugmentOp::kEqualize:
      return Equalize(image);
    case AugmentOp::kInvert:
      return Invert(image);
  }
}

}  // namespace fusor::runtime
