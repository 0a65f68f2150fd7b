#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/image_writer.h"

namespace fusor::runtime {

std::vector<uint8_t> EncodePpm(const Image& image) {
  const std::string header =
      fmt::format("P6\n{} {}\n255\n", image.width, image.height);
  std::vector<uint8_t> bytes(header.begin(), header.end());
  bytes.insert(bytes.end(), image.pixels.begin(), image.pixels.end());
  return bytes;
}

void WritePpm(const std::string& path, const Image& image) {
  const std::vector<uint8_t> bytes = EncodePpm(image);
  WriteFileAtomically(
      path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
      ErrorCode::kData);
}

}  // namespace fusor::runtime
