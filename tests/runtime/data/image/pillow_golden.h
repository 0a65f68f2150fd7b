#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/image/image.h"

namespace fusor::testing {

// A case of tests/golden/pillow. make_pillow_reference.py describes it.
struct PillowCase {
  std::string kind;
  uint64_t key = 0;
  runtime::ImageSize source;
  float numbers[4] = {};
  runtime::ImageSize result;
  std::vector<uint8_t> pixels;  // [result height, result width, 3]
};

std::vector<PillowCase> ReadPillowCases(const std::string& kind);

// Returns the case's source image, which is noise.
runtime::Image PillowSource(const PillowCase& c);

// Returns the largest difference between pixels of two images.
int LargestDifference(const std::vector<uint8_t>& a,
                      const std::vector<uint8_t>& b);

}  // namespace fusor::testing
