// Compares augmentation with torchvision. make_augment_reference.py writes the
// results of torchvision.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"
#include "runtime/data/augment/auto_augment.h"
#include "tests/runtime/data/image/pillow_golden.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::LargestDifference;

constexpr char kFolder[] = FUSOR_GOLDEN_DIR "/augment/";
constexpr int kSide = 16;

// torchvision's names.
const std::map<std::string, AugmentOp>& OpNames() {
  using enum AugmentOp;
  static const std::map<std::string, AugmentOp> names = {
      {"Identity", kIdentity},
      {"ShearX", kShearX},
      {"ShearY", kShearY},
      {"TranslateX", kTranslateX},
      {"TranslateY", kTranslateY},
      {"Rotate", kRotate},
      {"Brightness", kBrightness},
      {"Color", kColour},
      {"Contrast", kContrast},
      {"Sharpness", kSharpness},
      {"Posterize", kPosterize},
      {"Solarize", kSolarize},
      {"AutoContrast", kAutoContrast},
      {"Equalize", kEqualize},
      {"Invert", kInvert},
  };
  return names;
}

std::vector<uint8_t> Source(const std::string& kind) {
  std::vector<uint8_t> pixels(kSide * kSide * 3);
  for (size_t i = 0; i < pixels.size(); ++i) {
    const auto words = Philox({static_cast<uint32_t>(i / 16), 0, 0, 0}, 7);
    const uint32_t noise = words[i / 4 % 4] >> (i % 4 * 8) & 255;
    const size_t c = i % 3;
    const size_t x = i / 3 % kSide;
    const size_t y = i / 3 / kSide;
    pixels[i] = static_cast<uint8_t>(
        kind == "smooth" ? 30 + 40 * c + 5 * x + 3 * y + noise % 16 : noise);
  }
  return pixels;
}

TEST(AugmentGolden, PixelsAreTorchvisions) {
  std::vector<uint8_t> golden;
  ReadFile(std::string(kFolder) + "pixels.bin", ErrorCode::kInternal, golden);
  std::ifstream table(std::string(kFolder) + "cases.txt");
  auto next = golden.begin();
  std::string op;
  std::string interpolation;
  double value = 0;
  std::string source;
  AugmentScratch scratch;
  while (table >> op >> interpolation >> value >> source) {
    std::vector<uint8_t> pixels = Source(source);
    const Pixels image = {pixels.data(), kSide, kSide};
    if (op == "Hue") {
      AdjustHue(image, value);
    } else if (op == "Grey") {
      MakeGrey(image);
    } else if (op == "Blur") {
      GaussianBlur(image, 23, value, scratch);
    } else {
      ApplyOp({OpNames().at(op), value},
              interpolation == "nearest" ? Interpolation::kNearest
                                         : Interpolation::kBilinear,
              image, scratch);
    }
    ASSERT_GE(golden.end() - next, std::ptrdiff_t(pixels.size()));
    const std::vector<uint8_t> expected(next, next + pixels.size());
    next += static_cast<std::ptrdiff_t>(pixels.size());
    // torchvision blurs in single precision with another order of sums.
    EXPECT_LE(LargestDifference(pixels, expected), op == "Blur" ? 1 : 0)
        << op << " " << interpolation << " " << value << " " << source;
  }
  EXPECT_TRUE(next == golden.end());
}

TEST(AugmentGolden, PoliciesAreTorchvisions) {
  const std::map<std::string, AutoAugmentPolicy> policies = {
      {"ra", AutoAugmentPolicy::kRandAugment},
      {"ta_wide", AutoAugmentPolicy::kTrivialAugmentWide},
      {"imagenet", AutoAugmentPolicy::kImageNet}};
  std::map<std::string, size_t> next_op;
  size_t steps = 0;
  std::ifstream table(std::string(kFolder) + "policies.txt");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string policy;
    words >> policy;
    if (policy == "pair") {
      size_t number = 0;
      std::string op;
      double probability = 0;
      int bin = 0;
      words >> number >> op >> probability >> bin;
      const PolicyStep& step = ImageNetPairs().at(number)[steps++ % 2];
      EXPECT_EQ(step.op, OpNames().at(op)) << line;
      EXPECT_EQ(step.probability, probability) << line;
      EXPECT_EQ(step.bin, bin) << line;
      continue;
    }
    std::string op;
    bool is_signed = false;
    words >> op >> is_signed;
    const auto spaces = AugmentSpaces(policies.at(policy), {224, 224});
    const AugmentSpace& space = spaces.at(next_op[policy]++);
    EXPECT_EQ(space.op, OpNames().at(op)) << line;
    EXPECT_EQ(space.is_signed, is_signed) << line;
    std::vector<double> magnitudes;
    for (double magnitude = 0; words >> magnitude;) {
      magnitudes.push_back(magnitude);
    }
    ASSERT_EQ(space.magnitudes.size(), magnitudes.size()) << line;
    for (size_t i = 0; i < magnitudes.size(); ++i) {
      EXPECT_EQ(space.magnitudes[i], static_cast<float>(magnitudes[i])) << line;
    }
  }
  EXPECT_EQ(next_op["ra"], 14);
  EXPECT_EQ(next_op["ta_wide"], 14);
  EXPECT_EQ(next_op["imagenet"], 14);
  EXPECT_EQ(steps, 50);
}

}  // namespace
}  // namespace fusor::runtime
