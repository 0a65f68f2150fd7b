#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/tensor_type.h"

namespace fusor::runtime {

// Dataset::Label of a sample whose label is stored with its image.
constexpr int32_t kUnknownLabel = -1;

// An encoded image and its label.
struct Sample {
  // Part of the storage that Read was given, or memory of the data set. Valid
  // until that storage changes.
  std::span<const uint8_t> bytes;
  int32_t label = 0;  // in [0, num_classes())
};

// Types of a sample's tensors, without the dimension of samples.
struct SampleTensors {
  std::vector<ir::TensorType> inputs;
  ir::TensorType target;

  bool operator==(const SampleTensors&) const = default;
};

// An indexed set of samples: encoded images with labels, or tensors. Const
// member functions are thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual int num_classes() const = 0;

  // Returns a label in [0, num_classes()), or kUnknownLabel if only Read tells.
  virtual int32_t Label(int64_t index) const = 0;

  // Returns the sample's name in messages, usually its path.
  virtual std::string Name(int64_t index) const = 0;

  // Reads an image. Reuses `storage` if its bytes are not in memory already.
  // Throws kData.
  virtual Sample Read(int64_t index, std::vector<uint8_t>& storage) const = 0;

  // Returns null for a set of images.
  virtual const SampleTensors* tensors() const { return nullptr; }

  // Reads a sample's tensors, row-major, into memory of their sizes. Throws
  // kData. REQUIRES: tensors() != nullptr.
  virtual void ReadTensors(int64_t index,
                           const std::vector<std::span<uint8_t>>& /*inputs*/,
                           std::span<uint8_t> /*target*/) const {
    FUSOR_ASSERT(false, "{} has no tensors", Name(index));
  }
};

}  // namespace fusor::runtime
