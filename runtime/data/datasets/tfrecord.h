#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/datasets/record_set.h"

namespace fusor::runtime {

// TFRecord files of tf.Example (see ImageExample for the fields). A file is a
// sequence of
//
//   u64 length, u32 masked CRC-32C of it, the example, u32 masked CRC-32C of it
//
// in little-endian order. Both checksums are compared. Index files of
// NVIDIA's tfrecord2idx (lines "offset size") are used if FindIndex finds one;
// without one the lengths of all records are read at the start.
//
// Class i is label i + 1 if the first record has a name of its class: labels of
// TensorFlow's scripts, which write names, count from 1, and 0 is a background
// class without images. Otherwise, and if an image has label 0, class i is
// label i. Classes are named by synset, otherwise by text, otherwise by label.
class TfRecordSet : public RecordSet {
 public:
  // Throws kData if a file cannot be read, is damaged or does not match its
  // index.
  TfRecordSet(std::string path, const std::vector<std::string>& files,
              const RecordOptions& options);

  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
};

// Returns TFRecord's checksum: CRCs of data that contains CRCs are weak, so it
// is rotated and shifted.
uint32_t MaskedCrc32c(std::string_view bytes);

// Returns whether a file that starts with these bytes is a TFRecord file.
bool IsTfRecord(std::span<const uint8_t> start);

}  // namespace fusor::runtime
