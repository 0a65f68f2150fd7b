// Measures the ops of augmentation on one thread: prints nanoseconds per pixel,
// the least of several rounds.
//
//   augment_rate [SIDE [ROUNDS]]   (default: 224 and 15)

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/data/augment/affine.h"
#include "runtime/data/augment/pixel_ops.h"
#include "runtime/data/augment/random_ops.h"

namespace {

using fusor::runtime::AugmentScratch;
using fusor::runtime::Interpolation;
using fusor::runtime::Pixels;
using Clock = std::chrono::steady_clock;

struct Op {
  const char* name;
  std::function<void(Pixels)> apply;
};

std::vector<Op> Ops(AugmentScratch& scratch) {
  using namespace fusor::runtime;
  constexpr auto kBilinear = Interpolation::kBilinear;
  return {
      {"brightness", [](Pixels p) { AdjustBrightness(p, 1.3); }},
      {"contrast", [](Pixels p) { AdjustContrast(p, 1.3); }},
      {"saturation", [](Pixels p) { AdjustSaturation(p, 1.3); }},
      {"hue", [](Pixels p) { AdjustHue(p, 0.1); }},
      {"sharpness", [&](Pixels p) { AdjustSharpness(p, 1.3, scratch); }},
      {"posterize", [](Pixels p) { Posterize(p, 4); }},
      {"autocontrast", [](Pixels p) { AutoContrast(p); }},
      {"equalize", [](Pixels p) { Equalize(p); }},
      {"grey", [](Pixels p) { MakeGrey(p); }},
      {"lighting",
       [](Pixels p) {
         AddLevels(p, {1, 2, 3});
       }},
      {"blur, sigma 1",
       [&](Pixels p) { GaussianBlur(p, kBlurKernel, 1, scratch); }},
      {"blur, sigma 2",
       [&](Pixels p) { GaussianBlur(p, kBlurKernel, 2, scratch); }},
      {"shear", [&](Pixels p) { ShearX(p, 0.2, kBilinear, scratch); }},
      {"rotate", [&](Pixels p) { Rotate(p, 20, kBilinear, scratch); }},
      {"translate", [&](Pixels p) { Translate(p, 20, 0, scratch); }},
  };
}

}  // namespace

int main(int argc, char** argv) {
  const int side = argc > 1 ? std::atoi(argv[1]) : 224;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (side < 8 || rounds < 1) {
    fmt::print(stderr, "usage: augment_rate [SIDE [ROUNDS]]\n");
    return 2;
  }
  std::vector<uint8_t> noise(size_t{3} * side * side);
  for (size_t i = 0; i < noise.size(); ++i) {
    noise[i] = static_cast<uint8_t>(i * 2654435761U >> 13);
  }
  AugmentScratch scratch;
  for (const Op& op : Ops(scratch)) {
    double least = std::numeric_limits<double>::max();
    for (int round = 0; round < rounds; ++round) {
      std::vector<uint8_t> pixels = noise;
      const Clock::time_point begin = Clock::now();
      op.apply({pixels.data(), side, side});
      const std::chrono::duration<double, std::nano> time =
          Clock::now() - begin;
      least = std::min(least, time.count() / side / side);
    }
    fmt::print("{:<14} {:6.2f} ns/pixel\n", op.name, least);
  }
}
