#include "tests/runtime/data/image/pillow_golden.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"

namespace fusor::testing {

std::vector<PillowCase> ReadPillowCases(const std::string& kind) {
  const std::string folder = FUSOR_GOLDEN_DIR "/pillow/";
  std::vector<uint8_t> pixels;
  ReadFile(folder + "pixels.bin", ErrorCode::kInternal, pixels);
  std::ifstream table(folder + "cases.txt");
  std::vector<PillowCase> cases;
  size_t offset = 0;
  PillowCase c;
  while (table >> c.kind >> c.key >> c.source.width >> c.source.height >>
         c.numbers[0] >> c.numbers[1] >> c.numbers[2] >> c.numbers[3] >>
         c.result.width >> c.result.height) {
    const size_t size = size_t{3} * c.result.width * c.result.height;
    FUSOR_ASSERT(offset + size <= pixels.size(), "pixels.bin is short");
    c.pixels.assign(pixels.begin() + offset, pixels.begin() + offset + size);
    offset += size;
    if (c.kind == kind) cases.push_back(c);
  }
  FUSOR_ASSERT(offset == pixels.size() && !cases.empty(),
               "cases.txt does not fit pixels.bin");
  return cases;
}

runtime::Image PillowSource(const PillowCase& c) {
  runtime::Image image;
  image.SetSize(c.source.width, c.source.height);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    const auto words = Philox({static_cast<uint32_t>(i / 16), 0, 0, 0}, c.key);
    image.pixels[i] = static_cast<uint8_t>(words[i / 4 % 4] >> (i % 4 * 8));
  }
  return image;
}

int LargestDifference(const std::vector<uint8_t>& a,
                      const std::vector<uint8_t>& b) {
  FUSOR_ASSERT(a.size() == b.size(), "{} and {} bytes", a.size(), b.size());
  int largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

}  // namespace fusor::testing
