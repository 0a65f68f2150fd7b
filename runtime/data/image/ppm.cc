#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/data/image/image_writer.h"

namespace fusor::runtime {

void WritePpm(const std::string& path, const Image& image) {
  std::string text = fmt::format("P6\n{} {}\n255\n", image.width, image.height);
  text.append(image.pixels.begin(), image.pixels.end());
  WriteFileAtomically(path, text, ErrorCode::kData);
}

}  // namespace fusor::runtime
