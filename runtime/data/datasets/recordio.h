#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/datasets/record_set.h"

namespace fusor::runtime {

// MXNet's RecordIO files of packed images (im2rec, mx.recordio.pack_img). A
// file is a sequence of parts
//
//   u32 magic 0xced7230a, u32 kind << 29 | length, the bytes, zeros up to a
//   multiple of 4
//
// in little-endian order. A record is one part of kind 0, or parts of kinds 1,
// 2, ..., 2, 3 with a magic between each two: the writer leaves out a magic
// inside the data. A record holds
//
//   u32 count, f32 label, u64 id, u64 id2, f32 labels[count], the image
//
// The class is labels[0] if there are any, otherwise label. Class i is label i.
//
// Index files (lines "key position") are used if FindIndex finds one; without
// one the headers of all parts are read at the start.
class RecordIoSet : public RecordSet {
 public:
  // Throws kData if a file cannot be read, is damaged or does not match its
  // index.
  RecordIoSet(std::string path, const std::vector<std::string>& files,
              const RecordOptions& options);

  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
};

constexpr uint32_t kRecordIoMagic = 0xced7230a;

// Returns whether a file that starts with these bytes is a RecordIO file.
bool IsRecordIo(std::span<const uint8_t> start);

}  // namespace fusor::runtime
