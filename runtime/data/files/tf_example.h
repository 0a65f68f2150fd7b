#pragma once

#include <cstdint>
#include <optional>

#include "runtime/data/files/byte_source.h"

namespace fusor::runtime {

// Fields of a tf.Example that describe a classified image, by the keys of
// TensorFlow's ImageNet scripts (image/encoded, image/class/label,
// image/class/synset, image/class/text) or of TensorFlow Datasets (image,
// label).
struct ImageExample {
  std::optional<ByteRange> image;
  std::optional<int64_t> label;
  std::optional<ByteRange> synset;
  std::optional<ByteRange> text;
};

// Finds the fields of a serialized tf.Example. Returns nothing if it is
// malformed. Protobuf's own parser would copy the image.
std::optional<ImageExample> ParseExample(ByteSource& bytes);

}  // namespace fusor::runtime
