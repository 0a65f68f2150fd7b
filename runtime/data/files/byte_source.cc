#include "runtime/data/files/byte_source.h"

#include <algorithm>
#include <iterator>

#include "ir/support/hash.h"

namespace fusor::runtime {

std::span<const uint8_t> FileSource::Read(uint64_t offset, uint64_t count) {
  if (offset < start_ || offset + count > start_ + piece_.size()) {
    start_ = offset;
    piece_.resize(std::min(std::max(count, piece_bytes_), size() - offset));
    file_.Read(static_cast<int64_t>(range_.begin + offset), piece_);
  }
  return std::span<const uint8_t>(piece_).subspan(offset - start_, count);
}

uint64_t HashParts(const InputFile& file, uint64_t hash) {
  // A few reads per file, since a set may have thousands of files.
  constexpr int64_t kParts = 4;
  constexpr int64_t kPartBytes = 512;
  constexpr int64_t kSmallBytes = 1 << 16;  // hashed as one part
  const int64_t size = file.size();
  hash = HashCombine(hash, static_cast<uint64_t>(size));
  std::vector<uint8_t> part(
      static_cast<size_t>(size <= kSmallBytes ? size : kPartBytes));
  const int64_t parts = size <= kSmallBytes ? 1 : kParts;
  for (int64_t i = 0; i < parts; ++i) {
    file.Read((size - std::ssize(part)) * i / (kParts - 1), part);
    hash = HashBytes({reinterpret_cast<const char*>(part.data()), part.size()},
                     hash);
  }
  return hash;
}

}  // namespace fusor::runtime
