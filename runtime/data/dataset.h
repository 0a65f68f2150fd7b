#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::runtime {

// A numbered set of encoded images with labels. Const calls may come from
// several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;
  virtual int num_classes() const = 0;

  // In [0, num_classes()).
  virtual int32_t Label(int64_t index) const = 0;

  // What messages call the sample, usually its path.
  virtual std::string Name(int64_t index) const = 0;

  // Reads the encoded image into `bytes`, whose storage is reused. Throws
  // kData.
  virtual void Read(int64_t index, std::vector<uint8_t>& bytes) const = 0;
};

}  // namespace fusor::runtime
