#include "runtime/data/augment/augment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "ir/support/error.h"
#include "tests/runtime/data/image/pillow_golden.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::Bytes;
using ::fusor::testing::EncodeJpeg;
using ::fusor::testing::EncodePng;
using ::fusor::testing::LargestDifference;
using ::fusor::testing::MakePicture;
using ::fusor::testing::PillowCase;
using ::fusor::testing::PillowSource;
using ::fusor::testing::ReadPillowCases;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Bytes Apply(const Bytes& file, const Transform& transform, uint64_t seed = 1,
            int64_t epoch = 0, int64_t sample = 0) {
  Augmenter augmenter(transform, seed);
  Bytes out(size_t{3} * transform.image_size * transform.image_size);
  augmenter.Apply(*OpenImage(file, "x"), "x", epoch, sample, /*copy=*/0,
                  out.data());
  return out;
}

bool Contains(ImageSize size, const Region& region) {
  return region.x >= 0 && region.y >= 0 && region.width > 0 &&
         region.height > 0 && region.x + region.width <= size.width &&
         region.y + region.height <= size.height;
}

TEST(Augment, CentreCropEqualsTorchvision) {
  for (const PillowCase& c : ReadPillowCases("centre_crop")) {
    const Transform transform = {.kind = TransformKind::kCentreCrop,
                                 .image_size = c.result.width};
    const Bytes out = Apply(EncodePng(PillowSource(c)), transform);
    EXPECT_LE(LargestDifference(out, c.pixels), 1) << "key " << c.key;
  }
}

TEST(Augment, ResizedCropEqualsTorchvision) {
  for (const PillowCase& c : ReadPillowCases("resized_crop")) {
    const Region crop = {
        static_cast<int>(c.numbers[0]), static_cast<int>(c.numbers[1]),
        static_cast<int>(c.numbers[2]), static_cast<int>(c.numbers[3])};
    Resizer resizer;
    resizer.Plan(ResizeWhole({crop.width, crop.height}, c.result));
    Image part;
    OpenImage(EncodePng(PillowSource(c)), "x")->Read(crop, part);
    Bytes out(c.pixels.size());
    resizer.Run(part, out.data());
    EXPECT_LE(LargestDifference(out, c.pixels), 1) << "key " << c.key;
  }
}

TEST(Augment, RandomResizedCropDrawsAreaAspectAndPlace) {
  const ImageSize size = {400, 300};
  const Transform transform;
  double area_sum = 0;
  double log_aspect_sum = 0;
  double x_sum = 0;
  int flips = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const Placement placement =
        RandomResizedCrop(size, transform, SampleRandom(1, 0, i));
    const Region& crop = placement.crop;
    ASSERT_TRUE(Contains(size, crop));
    const double area = crop.width * crop.height / (400.0 * 300.0);
    const double aspect = static_cast<double>(crop.width) / crop.height;
    // Sides are rounded, so the ranges are slightly wider.
    EXPECT_GT(area, 0.08 * 0.97);
    EXPECT_GT(aspect, 0.75 * 0.97);
    EXPECT_LT(aspect, 4.0 / 3.0 * 1.03);
    area_sum += area;
    log_aspect_sum += std::log(aspect);
    if (crop.width < 400) x_sum += crop.x / (400.0 - crop.width);
    flips += placement.resize.flip ? 1 : 0;
  }
  // Means of 60,000 draws of torchvision 0.29.2. They are below 0.54 and above
  // 0 because crops that do not fit are drawn again.
  EXPECT_NEAR(area_sum / kDraws, 0.433, 0.015);
  EXPECT_NEAR(log_aspect_sum / kDraws, 0.031, 0.01);
  EXPECT_NEAR(x_sum / kDraws, 0.5, 0.03);
  EXPECT_NEAR(flips / static_cast<double>(kDraws), 0.5, 0.03);
}

TEST(Augment, RandomResizedCropFallsBackToTheCentre) {
  // In a 1:20 image, no crop of a permitted aspect ratio has 95 % of the area.
  const Transform transform = {.min_area = 0.95};
  const SampleRandom random(1, 0, 0);
  EXPECT_EQ(RandomResizedCrop({20, 400}, transform, random).crop,
            (Region{0, 186, 20, 27}));
  EXPECT_EQ(RandomResizedCrop({400, 20}, transform, random).crop,
            (Region{186, 0, 27, 20}));
}

TEST(Augment, RandomResizedCropTakesAnySize) {
  for (const ImageSize size : {ImageSize{1, 1}, {1, 500}, {500, 1}, {2, 3}}) {
    for (int i = 0; i < 50; ++i) {
      const Placement placement =
          RandomResizedCrop(size, {}, SampleRandom(2, 0, i));
      EXPECT_TRUE(Contains(size, placement.crop));
    }
  }
}

TEST(Augment, DrawsDependOnSeedEpochAndSample) {
  std::set<std::vector<int>> crops;
  const auto draw = [&](uint64_t seed, int64_t epoch, int64_t sample) {
    const Region crop =
        RandomResizedCrop({5000, 4000}, {}, SampleRandom(seed, epoch, sample))
            .crop;
    crops.insert({crop.x, crop.y, crop.width, crop.height});
  };
  draw(1, 0, 0);
  draw(1, 0, 0);
  EXPECT_EQ(crops.size(), 1);
  draw(2, 0, 0);
  draw(1, 1, 0);
  draw(1, 0, 1);
  draw(1, 0, int64_t{1} << 32);
  EXPECT_EQ(crops.size(), 5);
}

TEST(Augment, RegionDecodeChangesNoPixel) {
  // The PNG reader decodes the whole image, the JPEG reader only the region.
  const Bytes jpeg = EncodeJpeg(MakePicture(300, 200, 3));
  const Bytes png = EncodePng(DecodeImage(jpeg, "x"));
  for (const TransformKind kind :
       {TransformKind::kRandomResizedCrop, TransformKind::kCentreCrop}) {
    for (int sample = 0; sample < 20; ++sample) {
      const Transform transform = {.kind = kind, .image_size = 64};
      EXPECT_EQ(Apply(jpeg, transform, 1, 0, sample),
                Apply(png, transform, 1, 0, sample));
    }
  }
}

TEST(Augment, PadCropShiftsAndMirrors) {
  const Image image = MakePicture(8, 8, 4);
  const Bytes file = EncodePng(image);
  const Transform transform = {
      .kind = TransformKind::kPadCrop, .image_size = 8, .padding = 2};
  // Every result is one of 5 * 5 shifts, with or without a flip.
  std::set<Bytes> expected;
  for (int flip = 0; flip < 2; ++flip) {
    for (int top = -2; top <= 2; ++top) {
      for (int left = -2; left <= 2; ++left) {
        Bytes shifted;
        for (int i = 0; i < 64; ++i) {
          const int x = (flip == 1 ? 7 - i % 8 : i % 8) - left;
          const int y = i / 8 - top;
          const bool inside = x >= 0 && x < 8 && y >= 0 && y < 8;
          for (int c = 0; c < 3; ++c) {
            shifted.push_back(inside ? image.Row(y)[3 * x + c] : 0);
          }
        }
        expected.insert(shifted);
      }
    }
  }
  std::set<Bytes> seen;
  for (int sample = 0; sample < 600; ++sample) {
    seen.insert(Apply(file, transform, 1, 0, sample));
  }
  EXPECT_EQ(seen, expected);
}

TEST(Augment, ExactCopiesTheImage) {
  const Image image = MakePicture(8, 8, 5);
  const Transform transform = {.kind = TransformKind::kExact, .image_size = 8};
  EXPECT_EQ(Apply(EncodePng(image), transform), image.pixels);
}

TEST(Augment, FlipCanBeTurnedOff) {
  const Transform transform = {.flip = false};
  for (int i = 0; i < 50; ++i) {
    EXPECT_FALSE(RandomResizedCrop({50, 50}, transform, SampleRandom(1, 0, i))
                     .resize.flip);
  }
}

TEST(Augment, AnotherSizeThanTheModelsIsNamed) {
  const Bytes file = EncodePng(MakePicture(9, 8, 6));
  for (const TransformKind kind :
       {TransformKind::kExact, TransformKind::kPadCrop}) {
    EXPECT_THAT([&] { Apply(file, {.kind = kind, .image_size = 8}); },
                ThrowsMessage<Error>(
                    HasSubstr("image x: expected 8x8 pixels, got 9x8")));
  }
}

TEST(Augment, SenselessTransformsAreRejected) {
  const auto make = [](const Transform& t) { Augmenter augmenter(t, 0); };
  EXPECT_THROW(make({.image_size = 0}), Error);
  EXPECT_THROW(make({.min_area = 0}), Error);
  EXPECT_THROW(make({.max_area = 1.5}), Error);
  EXPECT_THROW(make({.min_aspect = 2}), Error);
  EXPECT_THROW(make({.shorter_side = 223}), Error);
  EXPECT_THROW(make({.padding = -1}), Error);
}

}  // namespace
}  // namespace fusor::runtime
