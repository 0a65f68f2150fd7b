#include "runtime/data/image/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "ir/support/error.h"
#include "runtime/data/image/resize_passes.h"
#include "tests/runtime/data/image/pillow_golden.h"
#include "tests/testing/image_files.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::Cut;
using ::fusor::testing::LargestDifference;
using ::fusor::testing::MakePicture;
using ::fusor::testing::PillowCase;
using ::fusor::testing::PillowSource;
using ::fusor::testing::ReadPillowCases;

std::vector<uint8_t> Resize(const Image& source, const ResizeSpec& spec) {
  Resizer resizer;
  resizer.Plan(spec);
  std::vector<uint8_t> out(size_t{3} * spec.window.width * spec.window.height);
  resizer.Run(Cut(source, resizer.source_region()), out.data());
  return out;
}

// Returns whether Pillow resizes rows first, the only difference that resize.h
// documents.
bool PillowTakesRowsFirst(ImageSize source, ImageSize result) {
  const int shrink = source.height - result.height;
  return shrink > 0 && shrink > 2 * (source.width - result.width);
}

TEST(Resize, EqualsPillow) {
  for (const PillowCase& c : ReadPillowCases("resize")) {
    ResizeSpec spec = ResizeWhole(c.source, c.result);
    spec.left = c.numbers[0];
    spec.top = c.numbers[1];
    spec.right = c.numbers[2];
    spec.bottom = c.numbers[3];
    const int allowed = PillowTakesRowsFirst(c.source, c.result) ? 1 : 0;
    EXPECT_LE(LargestDifference(Resize(PillowSource(c), spec), c.pixels),
              allowed)
        << "key " << c.key;
  }
}

// Weights of an axis that sum to 2^22, at ascending positions.
ResizeAxis RandomAxis(int source, int count, int taps, std::mt19937& random) {
  ResizeAxis axis{.begin = 0, .end = source, .taps = taps};
  for (int i = 0; i < count; ++i) {
    axis.first.push_back(i * (source - 1) / std::max(count - 1, 1));
    int32_t left = 1 << kResizeBits;
    for (int t = 0; t < taps; ++t) {
      const bool outside = axis.first[i] + t >= source;
      const bool last = t + 1 == taps || axis.first[i] + t + 1 == source;
      const auto weight = outside ? 0
                          : last  ? left
                                  : static_cast<int32_t>(random() % (left + 1));
      axis.weights.push_back(weight);
      left -= weight;
    }
  }
  return axis;
}

TEST(Resize, AllInstructionSetsComputeTheSameBytes) {
  std::mt19937 random(1);
  for (const int taps : {1, 2, 3, 4, 7, 64}) {
    for (const int width : {1, 2, 3, 4, 5, 31, 64, 75, 224}) {
      const ImageSize size = {1 + static_cast<int>(random() % 300),
                              1 + static_cast<int>(random() % 40)};
      const Image image = MakePicture(size.width, size.height, taps);
      const int height = 1 + static_cast<int>(random() % 30);
      const ResizeAxis columns = RandomAxis(size.width, width, taps, random);
      const ResizeAxis rows = RandomAxis(size.height, height, taps, random);
      const auto resize = [&](ResizeFunction passes) {
        // A byte more than the result, to be left alone.
        std::vector<uint8_t> out(size_t{3} * width * height + 1, 0xA5);
        ResizeScratch scratch;
        passes({image, columns, rows, out.data()}, scratch);
        return out;
      };
      const std::vector<ResizeFunction> functions = ResizeFunctions();
      const std::vector<uint8_t> expected = resize(functions.back());
      EXPECT_EQ(expected.back(), 0xA5);
      for (size_t i = 0; i + 1 < functions.size(); ++i) {
        EXPECT_EQ(resize(functions[i]), expected)
            << "implementation " << i << ", " << taps << " taps, width "
            << width;
      }
    }
  }
}

TEST(Resize, SameSizeIsACopy) {
  const Image image = MakePicture(31, 17, 1);
  EXPECT_EQ(Resize(image, ResizeWhole({31, 17}, {31, 17})), image.pixels);
}

TEST(Resize, WindowIsAPartOfTheWhole) {
  const Image image = MakePicture(90, 70, 2);
  ResizeSpec spec = ResizeWhole({90, 70}, {40, 33});
  Image whole;
  whole.SetSize(40, 33);
  whole.pixels = Resize(image, spec);
  for (const Region& window :
       {Region{0, 0, 1, 1}, {39, 32, 1, 1}, {7, 5, 20, 21}, {0, 30, 40, 3}}) {
    spec.window = window;
    EXPECT_EQ(Resize(image, spec), Cut(whole, window).pixels);
  }
}

TEST(Resize, WindowReadsOnlyWhatItNeeds) {
  ResizeSpec spec = ResizeWhole({1000, 500}, {100, 50});
  spec.window = {50, 20, 10, 5};
  Resizer resizer;
  resizer.Plan(spec);
  const Region region = resizer.source_region();
  // The window has 100x50 pixels, plus at most one filter width on each side.
  EXPECT_GE(region.x, 490);
  EXPECT_LE(region.x + region.width, 610);
  EXPECT_GE(region.y, 190);
  EXPECT_LE(region.y + region.height, 260);
}

TEST(Resize, FlipMirrorsTheWindow) {
  const Image image = MakePicture(45, 30, 3);
  ResizeSpec spec = ResizeWhole({45, 30}, {21, 20});
  spec.window = {2, 3, 15, 16};
  Image plain;
  plain.SetSize(15, 16);
  plain.pixels = Resize(image, spec);
  spec.flip = true;
  Image flipped;
  flipped.SetSize(15, 16);
  flipped.pixels = Resize(image, spec);
  for (int y = 0; y < 16; ++y) {
    for (int x = 0; x < 15; ++x) {
      ASSERT_TRUE(std::equal(plain.Row(y) + 3 * x, plain.Row(y) + 3 * x + 3,
                             flipped.Row(y) + 3 * (14 - x)));
    }
  }
}

TEST(Resize, ExtremeShapesStayInBounds) {
  for (const ImageSize source : {ImageSize{1, 1}, {1, 300}, {2000, 2}}) {
    for (const ImageSize result : {ImageSize{1, 1}, {1, 40}, {50, 3}}) {
      const Image white = [&] {
        Image image;
        image.SetSize(source.width, source.height);
        std::fill(image.pixels.begin(), image.pixels.end(), uint8_t{255});
        return image;
      }();
      for (const uint8_t value : Resize(white, ResizeWhole(source, result))) {
        ASSERT_EQ(value, 255);
      }
    }
  }
}

TEST(Resize, ResizerCanBeReused) {
  const Image big = MakePicture(120, 90, 4);
  const Image small = MakePicture(11, 13, 5);
  Resizer resizer;
  std::vector<uint8_t> out(size_t{3} * 16 * 16);
  for (int i = 0; i < 2; ++i) {
    for (const Image* image : {&big, &small}) {
      const ResizeSpec spec =
          ResizeWhole({image->width, image->height}, {16, 16});
      resizer.Plan(spec);
      resizer.Run(Cut(*image, resizer.source_region()), out.data());
      EXPECT_EQ(out, Resize(*image, spec));
    }
  }
}

TEST(Resize, AWrongBoxIsOurFault) {
  ResizeSpec spec = ResizeWhole({10, 10}, {5, 5});
  spec.right = 10.5f;
  EXPECT_THROW(Resizer().Plan(spec), Error);
  spec = ResizeWhole({10, 10}, {5, 5});
  spec.window = {1, 0, 5, 5};
  EXPECT_THROW(Resizer().Plan(spec), Error);
}

}  // namespace
}  // namespace fusor::runtime
