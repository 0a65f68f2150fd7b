#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/io/named_tensor.h"
#include "ir/tensor_type.h"

namespace fusor::python {

// Returns a type as Python users write it: "float32 (8, 3, 64, 64)".
std::string Describe(ir::DType dtype, const ir::Shape& shape);

// A view of a Python array in host memory: numpy, PyTorch, or anything with
// __dlpack__ or the buffer protocol. Holds a reference to the array. Elements
// of an array that is not contiguous are copied.
class HostArray {
 public:
  // `name` is for messages. Throws kUsage if `object` is no array, is in the
  // memory of another device, or has a dtype that fusor lacks. The GIL must be
  // held here and on destruction.
  HostArray(nanobind::handle object, std::string name);

  const std::string& name() const { return name_; }
  ir::DType dtype() const { return dtype_; }
  const ir::Shape& shape() const { return shape_; }
  // Row-major elements in dtype().
  const void* data() const;
  size_t bytes() const;

  // Prepares the elements for an input of that type. Integers are converted to
  // the input's integer dtype. Throws kUsage for another shape or dtype, and
  // for an integer out of range. With `part`, the array may have fewer rows
  // (first extent) than the input; zeros replace the missing ones.
  void ConvertTo(const ir::TensorType& type, bool part = false);

  // Replaces the elements by others, of bytes() bytes.
  void Replace(const void* elements);

  ir::NamedTensor ToTensor() const;

 private:
  bool IsContiguous() const;
  void CopyStrided();
  void ConvertIntegers(ir::DType to);

  std::string name_;
  nanobind::ndarray<nanobind::ro> array_;
  ir::DType dtype_ = ir::DType::kF32;
  ir::Shape shape_;
  bool copied_ = false;
  std::vector<uint8_t> copy_;
};

// Returns a numpy array that owns the values.
nanobind::ndarray<nanobind::numpy, float> NumpyArray(std::vector<float> values,
                                                     const ir::Shape& shape);

}  // namespace fusor::python
