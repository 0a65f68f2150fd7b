#pragma once

// Converts between the interpreter's tensors and tensors in memory: elements in
// their dtype, little-endian, in the layout's physical order.

#include <cstdint>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::ir {

// Loads a tensor. REQUIRES: bytes.size() == type.num_bytes().
Tensor LoadTensor(TensorType type, std::span<const uint8_t> bytes);
// Loads type.num_bytes() bytes from `memory`.
Tensor LoadTensor(const TensorType& type, const void* memory);

// Stores a tensor and rounds each element to its dtype. REQUIRES: bytes.size()
// == tensor.type.num_bytes().
void StoreTensor(const Tensor& tensor, std::span<uint8_t> bytes);
// Stores tensor.type.num_bytes() bytes to `memory`.
void StoreTensor(const Tensor& tensor, void* memory);
std::vector<uint8_t> TensorBytes(const Tensor& tensor);

// Converts elements of one dtype to another, rounding each. REQUIRES: both
// spans have the same number of elements.
void ConvertElements(DType from, std::span<const uint8_t> bytes, DType to,
                     std::span<uint8_t> converted);

// Convert between the layout's physical order and row-major, bit for bit.
// `row_major` has the elements from `first` on, in row-major order. REQUIRES:
// `physical` has type.num_bytes().
void ToRowMajor(const TensorType& type, std::span<const uint8_t> physical,
                std::span<uint8_t> row_major, int64_t first = 0);
void FromRowMajor(const TensorType& type, std::span<const uint8_t> row_major,
                  std::span<uint8_t> physical, int64_t first = 0);

}  // namespace fusor::ir
