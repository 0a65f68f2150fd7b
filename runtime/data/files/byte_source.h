#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/support/file.h"

namespace fusor::runtime {

// Part of a ByteSource.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t size = 0;
};

// Bytes that are read a few at a time, so that the label of a record can be
// found without reading its image.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // Returns `count` bytes from `offset` on, within size(). Valid until the next
  // call.
  virtual std::span<const uint8_t> Read(uint64_t offset, uint64_t count) = 0;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  std::span<const uint8_t> Read(uint64_t offset, uint64_t count) override {
    return bytes_.subspan(offset, count);
  }

 private:
  std::span<const uint8_t> bytes_;
};

// Part of a file, read in pieces.
class FileSource : public ByteSource {
 public:
  // `file` must outlive this object.
  FileSource(const InputFile& file, ByteRange range, uint64_t piece_bytes)
      : file_(file), range_(range), piece_bytes_(piece_bytes) {}
  uint64_t size() const override { return range_.size; }
  std::span<const uint8_t> Read(uint64_t offset, uint64_t count) override;

 private:
  const InputFile& file_;
  ByteRange range_;
  uint64_t piece_bytes_;
  uint64_t start_ = 0;  // of the piece
  std::vector<uint8_t> piece_;
};

// Returns `hash` combined with size and some contents of the file.
uint64_t HashParts(const InputFile& file, uint64_t hash);

}  // namespace fusor::runtime
