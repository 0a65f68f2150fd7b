#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::runtime {

// An indexed set of encoded images with labels. Const member functions are
// thread-safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual int num_classes() const = 0;

  // Returns a label in [0, num_classes()).
  virtual int32_t Label(int64_t index) const = 0;

  // Returns the sample's name in messages, usually its path.
  virtual std::string Name(int64_t index) const = 0;

  // Reads the encoded image into `bytes`, reusing its storage. Throws kData.
  virtual void Read(int64_t index, std::vector<uint8_t>& bytes) const = 0;
};

}  // namespace fusor::runtime
