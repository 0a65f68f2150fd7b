#pragma once

// Between the interpreter's tensors and tensors in memory: elements in their
// dtype, little-endian, in the physical order of the type's layout.

#include <cstdint>
#include <span>
#include <vector>

#include "ir/interpreter/interpreter.h"

namespace fusor::ir {

// REQUIRES: bytes.size() == type.num_bytes().
Tensor LoadTensor(TensorType type, std::span<const uint8_t> bytes);
// Of the type.num_bytes() bytes at `memory`.
Tensor LoadTensor(const TensorType& type, const void* memory);

// Rounds each element to the dtype. REQUIRES: bytes.size() ==
// tensor.type.num_bytes().
void StoreTensor(const Tensor& tensor, std::span<uint8_t> bytes);
// Into the tensor.type.num_bytes() bytes at `memory`.
void StoreTensor(const Tensor& tensor, void* memory);
std::vector<uint8_t> TensorBytes(const Tensor& tensor);

// Between the physical order of the type's layout and row-major, bit for bit.
// REQUIRES: both spans have type.num_bytes().
void ToRowMajor(const TensorType& type, std::span<const uint8_t> physical,
                std::span<uint8_t> row_major);
void FromRowMajor(const TensorType& type, std::span<const uint8_t> row_major,
                  std::span<uint8_t> physical);

// Between the physical order of the type's layout and row-major, bit for bit.
// REQUIRES: both spans have type.num_bytes().
void ToRowMajor(const TensorType& type, std::span<const uint8_t> physical,
                std::span<uint8_t> row_major);
void FromRowMajor(const TensorType& type, std::span<const uint8_t> row_major,
                  std::span<uint8_t> physical);

}  // namespace fusor::ir
