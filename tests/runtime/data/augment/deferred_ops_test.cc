#include "runtime/data/augment/deferred_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "runtime/data/augment/random_ops.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using Colour = std::array<double, 3>;

constexpr int kSide = 16;

// Returns a picture without levels that ops of the tests would clip.
Image MakeMildPicture() {
  Image image = fusor::testing::MakePicture(kSide, kSide, 1);
  for (uint8_t& level : image.pixels) level = 90 + level / 4;
  return image;
}

Pixels PixelsOf(Image& image) {
  return {image.pixels.data(), image.width, image.height};
}

Colour Mapped(const ColourMap& map, const Colour& colour) {
  Colour mapped;
  for (size_t c = 0; c < 3; ++c) {
    mapped[c] = map.rows[c][3];
    for (size_t k = 0; k < 3; ++k) mapped[c] += map.rows[c][k] * colour[k];
  }
  return mapped;
}

// Returns the levels after the deferred ops, as the graph computes them.
std::vector<double> LevelsAfter(const DeferredOps& ops, const Image& image,
                                const std::array<uint8_t, 3>& erased) {
  std::vector<double> levels;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const uint8_t* p = image.Row(y) + 3 * x;
      const Colour mapped =
          Mapped(ops.colour, {double(p[0]), double(p[1]), double(p[2])});
      const auto& [left, top, right, bottom] = ops.box;
      const bool inside = x >= left && x < right && y >= top && y < bottom;
      for (size_t c = 0; c < 3; ++c) {
        levels.push_back(inside ? erased[c]
                                : std::clamp(mapped[c], 0.0, 255.0));
      }
    }
  }
  return levels;
}

double LargestDifference(const std::vector<double>& a,
                         const std::vector<uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

TEST(DeferredOps, EachOpIsThatOfPixelsUpToRounding) {
  const Image image = MakeMildPicture();
  struct Case {
    const char* name;
    std::function<void(Pixels)> pixels;
    std::function<void(ColourMap&, const Colour&)> map;
    double tolerance = 1;
  };
  std::vector<Case> cases = {
      {"grey", [](Pixels p) { MakeGrey(p); },
       [](ColourMap& map, const Colour&) { MakeGrey(map); }},
      {"lighting",
       [](Pixels p) {
         AddLevels(p, {3.4, -20.3, 0.7});
       },
       [](ColourMap& map, const Colour&) {
         AddLevels(map, {3.4, -20.3, 0.7});
       }}};
  for (const double factor : {0.0, 0.4, 1.0, 1.3}) {
    cases.push_back({"brightness",
                     [=](Pixels p) { AdjustBrightness(p, factor); },
                     [=](ColourMap& map, const Colour&) {
                       AdjustBrightness(map, factor);
                     }});
    cases.push_back({"contrast", [=](Pixels p) { AdjustContrast(p, factor); },
                     [=](ColourMap& map, const Colour& mean) {
                       AdjustContrast(map, mean, factor);
                     }});
    cases.push_back(
        {"saturation", [=](Pixels p) { AdjustSaturation(p, factor); },
         [=](ColourMap& map, const Colour&) { AdjustSaturation(map, factor); },
         // Grey is rounded, too.
         1 + std::abs(1 - factor) / 2});
  }
  for (const Case& c : cases) {
    Image changed = image;
    c.pixels(PixelsOf(changed));
    Image source = image;
    DeferredOps ops;
    c.map(ops.colour, MeanColour(PixelsOf(source)));
    EXPECT_LE(LargestDifference(LevelsAfter(ops, image, {}), changed.pixels),
              c.tolerance)
        << c.name;
  }
}

TEST(DeferredOps, AMapOfSeveralOpsIsTheirComposition) {
  const Colour image_mean = {100, 120, 140};
  const std::vector<std::function<void(ColourMap&, const Colour&)>> ops = {
      [](ColourMap& map, const Colour&) { AdjustBrightness(map, 1.2); },
      [](ColourMap& map, const Colour& mean) {
        AdjustContrast(map, mean, 0.7);
      },
      [](ColourMap& map, const Colour&) { AdjustSaturation(map, 1.5); },
      [](ColourMap& map, const Colour&) {
        AddLevels(map, {5, -6, 7});
      },
      [](ColourMap& map, const Colour&) { MakeGrey(map); }};
  ColourMap composed;
  Colour colour = {200, 30, 90};
  const Colour first = colour;
  Colour mean_now = image_mean;
  for (const auto& op : ops) {
    op(composed, image_mean);
    ColourMap alone;
    op(alone, mean_now);
    colour = Mapped(alone, colour);
    mean_now = Mapped(alone, mean_now);
    const Colour at_once = Mapped(composed, first);
    for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(at_once[c], colour[c], 1e-3);
  }
}

// The same draws give the same image, up to the rounding of each op to whole
// levels: three blends round down, and contrast may double what came before.
TEST(DeferredOps, RandomOpsGiveTheSameImageUpToRounding) {
  RandomOpsOptions options = {.brightness = 0.2,
                              .contrast = 0.2,
                              .saturation = 0.2,
                              .lighting = 0.05,
                              .grey = 0.3,
                              .erasing = 0.5};
  RandomOps host(options, {kSide, kSide});
  options.defer = true;
  RandomOps device(options, {kSide, kSide});
  int erased = 0;
  double sum = 0;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const Image image = MakeMildPicture();
    Image changed = image;
    Image unchanged = image;
    const SampleRandom random(3, 0, sample);
    const DeferredOps none = host.Apply(random, changed.pixels.data());
    EXPECT_EQ(none.colour.rows, ColourMap().rows);
    EXPECT_EQ(none.box, DeferredOps().box);
    const DeferredOps ops = device.Apply(random, unchanged.pixels.data());
    EXPECT_EQ(unchanged.pixels, image.pixels);
    erased += ops.box == DeferredOps().box ? 0 : 1;
    const double largest = LargestDifference(
        LevelsAfter(ops, image, options.erased_colour), changed.pixels);
    EXPECT_LE(largest, 4) << "sample " << sample;
    sum += largest;
  }
  EXPECT_NEAR(erased, 100, 25);
  EXPECT_LE(sum / 200, 3);
}

// Returns the number of samples whose pixels the ops change on the host, and
// checks that all others are those that the host would give.
int ChangedOnHost(RandomOpsOptions options) {
  RandomOps host(options, {kSide, kSide});
  options.defer = true;
  RandomOps device(options, {kSide, kSide});
  int changed_on_host = 0;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const Image image = MakeMildPicture();
    Image expected = image;
    Image got = image;
    const SampleRandom random(5, 0, sample);
    host.Apply(random, expected.pixels.data());
    const DeferredOps ops = device.Apply(random, got.pixels.data());
    changed_on_host += got.pixels == image.pixels ? 0 : 1;
    const double largest = LargestDifference(
        LevelsAfter(ops, got, options.erased_colour), expected.pixels);
    EXPECT_LE(largest, 4) << "sample " << sample;
  }
  return changed_on_host;
}

TEST(DeferredOps, OpsBeforeAnotherOpStayOnTheHost) {
  // A blurred image keeps its jitter on the host; erasing is deferred.
  EXPECT_NEAR(ChangedOnHost({.brightness = 0.2, .blur = 0.5, .erasing = 1}),
              100, 25);
  EXPECT_EQ(ChangedOnHost({.brightness = 0.2, .blur = 1}), 200);
  // Jitter has a random order: half of the samples have the brightness after
  // the hue. The hue of some does not change any level.
  EXPECT_GT(ChangedOnHost({.brightness = 0.2, .hue = 0.5}), 150);
  EXPECT_EQ(ChangedOnHost({.policy = AutoAugmentPolicy::kNone,
                           .brightness = 0.2,
                           .contrast = 0.2,
                           .saturation = 0.2,
                           .lighting = 0.05,
                           .grey = 0.5,
                           .erasing = 0.5}),
            0);
}

TEST(DeferredOps, APolicyRunsBeforeTheDeferredOps) {
  RandomOpsOptions options = {.policy = AutoAugmentPolicy::kRandAugment};
  RandomOps policy(options, {kSide, kSide});
  options.lighting = 0.1;
  options.defer = true;
  RandomOps both(options, {kSide, kSide});
  for (int64_t sample = 0; sample < 20; ++sample) {
    Image expected = MakeMildPicture();
    Image got = MakeMildPicture();
    const SampleRandom random(5, 0, sample);
    policy.Apply(random, expected.pixels.data());
    const DeferredOps ops = both.Apply(random, got.pixels.data());
    EXPECT_EQ(got.pixels, expected.pixels);
    RandomSequence lighting(random, RandomStream::kLighting);
    const auto levels = DrawLighting(0.1, lighting);
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_FLOAT_EQ(ops.colour.rows[c][3], static_cast<float>(levels[c]));
    }
  }
}

}  // namespace
}  // namespace fusor::runtime
