#include "ir/interpreter/host_tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename T>
double Widen(T x) {
  return static_cast<double>(x);
}
template <typename T>
T Narrow(double x) {
  return static_cast<T>(x);
}

// Returns each element's physical offset; empty if row-major.
std::vector<int64_t> OffsetsOf(const TensorType& type) {
  if (type.layout.is_row_major()) return {};
  return PhysicalOffsets(type);
}

template <typename T, typename ToDouble>
void LoadElements(std::span<const uint8_t> bytes,
                  const std::vector<int64_t>& offsets,
                  std::vector<double>& data, ToDouble to_double) {
  for (size_t i = 0; i < data.size(); ++i) {
    const size_t at = offsets.empty() ? i : offsets[i];
    T element;
    std::memcpy(&element, bytes.data() + at * sizeof(T), sizeof(T));
    data[i] = to_double(element);
  }
}

template <typename T, typename FromDouble>
void StoreElements(const Tensor& tensor, const std::vector<int64_t>& offsets,
                   std::span<uint8_t> bytes, FromDouble from_double) {
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    const size_t at = offsets.empty() ? i : offsets[i];
    const T element = from_double(RoundTo(tensor.type.dtype, tensor.data[i]));
    std::memcpy(bytes.data() + at * sizeof(T), &element, sizeof(T));
  }
}

uint16_t HalfBits(double x) { return FloatToHalf(static_cast<float>(x)); }
uint16_t BFloat16Bits(double x) {
  return FloatToBFloat16(static_cast<float>(x));
}

}  // namespace

Tensor LoadTensor(TensorType type, std::span<const uint8_t> bytes) {
  FUSOR_ASSERT(static_cast<int64_t>(bytes.size()) == type.num_bytes(),
               "{} of {} bytes", ToString(type), bytes.size());
  Tensor t{std::move(type), {}};
  t.data.resize(t.type.num_elements());
  const std::vector<int64_t> at = OffsetsOf(t.type);
  switch (t.type.dtype) {
    case DType::kF64:
      LoadElements<double>(bytes, at, t.data, Widen<double>);
      break;
    case DType::kF32:
      LoadElements<float>(bytes, at, t.data, Widen<float>);
      break;
    case DType::kF16:
      LoadElements<uint16_t>(bytes, at, t.data, HalfToFloat);
      break;
    case DType::kBF16:
      LoadElements<uint16_t>(bytes, at, t.data, BFloat16ToFloat);
      break;
    case DType::kI32:
      LoadElements<int32_t>(bytes, at, t.data, Widen<int32_t>);
      break;
    case DType::kI64:
      LoadElements<int64_t>(bytes, at, t.data, Widen<int64_t>);
      break;
    case DType::kU8:
    case DType::kBool:
      LoadElements<uint8_t>(bytes, at, t.data, Widen<uint8_t>);
      break;
  }
  return t;
}

Tensor LoadTensor(const TensorType& type, const void* memory) {
  return LoadTensor(type, {static_cast<const uint8_t*>(memory),
                           static_cast<size_t>(type.num_bytes())});
}

void StoreTensor(const Tensor& t, std::span<uint8_t> bytes) {
  FUSOR_ASSERT(static_cast<int64_t>(bytes.size()) == t.type.num_bytes(),
               "{} into {} bytes", ToString(t.type), bytes.size());
  const std::vector<int64_t> at = OffsetsOf(t.type);
  switch (t.type.dtype) {
    case DType::kF64:
      return StoreElements<double>(t, at, bytes, Narrow<double>);
    case DType::kF32:
      return StoreElements<float>(t, at, bytes, Narrow<float>);
    case DType::kF16:
      return StoreElements<uint16_t>(t, at, bytes, HalfBits);
    case DType::kBF16:
      return StoreElements<uint16_t>(t, at, bytes, BFloat16Bits);
    case DType::kI32:
      return StoreElements<int32_t>(t, at, bytes, Narrow<int32_t>);
    case DType::kI64:
      return StoreElements<int64_t>(t, at, bytes, Narrow<int64_t>);
    case DType::kU8:
    case DType::kBool:
      return StoreElements<uint8_t>(t, at, bytes, Narrow<uint8_t>);
  }
}

void StoreTensor(const Tensor& tensor, void* memory) {
  StoreTensor(tensor, {static_cast<uint8_t*>(memory),
                       static_cast<size_t>(tensor.type.num_bytes())});
}

std::vector<uint8_t> TensorBytes(const Tensor& tensor) {
  std::vector<uint8_t> bytes(tensor.type.num_bytes());
  StoreTensor(tensor, bytes);
  return bytes;
}

void ConvertElements(DType from, std::span<const uint8_t> bytes, DType to,
                     std::span<uint8_t> converted) {
  if (from == to) {
    FUSOR_ASSERT(bytes.size() == converted.size(), "{} bytes into {}",
                 bytes.size(), converted.size());
    std::memcpy(converted.data(), bytes.data(), bytes.size());
    return;
  }
  const auto count = static_cast<int64_t>(bytes.size()) / DTypeSize(from);
  Tensor elements = LoadTensor({from, {count}, {}}, bytes);
  elements.type.dtype = to;
  StoreTensor(elements, converted);
}

namespace {

// Calls `move(physical, i)` with the physical offset, in elements, of each of
// `count` elements from `first` on in row-major order. A table of all offsets
// would be twice the size of the tensor.
template <typename Move>
void ForEachElement(const TensorType& type, int64_t first, int64_t count,
                    Move move) {
  const size_t rank = type.rank();
  std::vector<std::vector<int64_t>> offsets;  // of each dimension's indices
  std::vector<int64_t> index(rank);
  int64_t physical = 0;
  int64_t rest = first;
  for (size_t d = 0; d < rank; ++d) {
    offsets.push_back(PhysicalOffsets(type, d, d + 1));
  }
  for (size_t d = rank; d-- > 0;) {
    index[d] = rest % type.shape[d];
    rest /= type.shape[d];
    physical += offsets[d][index[d]];
  }
  for (int64_t i = 0; i < count; ++i) {
    move(physical, i);
    for (size_t d = rank; d-- > 0;) {
      physical -= offsets[d][index[d]];
      if (++index[d] == type.shape[d]) index[d] = 0;
      physical += offsets[d][index[d]];
      if (index[d] != 0) break;
    }
  }
}

void CheckSizes(const TensorType& type, size_t physical, size_t row_major,
                int64_t first) {
  const int64_t bytes = type.num_bytes();
  const int64_t end =
      first * DTypeSize(type.dtype) + static_cast<int64_t>(row_major);
  FUSOR_ASSERT(static_cast<int64_t>(physical) == bytes && end <= bytes,
               "{} of {} and {} bytes, from element {} on", ToString(type),
               physical, row_major, first);
}

}  // namespace

void ToRowMajor(const TensorType& type, std::span<const uint8_t> physical,
                std::span<uint8_t> row_major, int64_t first) {
  CheckSizes(type, physical.size(), row_major.size(), first);
  const int64_t size = DTypeSize(type.dtype);
  if (type.layout.is_row_major()) {
    std::memcpy(row_major.data(), &physical[first * size], row_major.size());
    return;
  }
  ForEachElement(type, first, static_cast<int64_t>(row_major.size()) / size,
                 [&](int64_t from, int64_t to) {
                   std::memcpy(&row_major[to * size], &physical[from * size],
                               size);
                 });
}

void FromRowMajor(const TensorType& type, std::span<const uint8_t> row_major,
                  std::span<uint8_t> physical, int64_t first) {
  CheckSizes(type, physical.size(), row_major.size(), first);
  const int64_t size = DTypeSize(type.dtype);
  if (type.layout.is_row_major()) {
    std::memcpy(&physical[first * size], row_major.data(), row_major.size());
    return;
  }
  ForEachElement(type, first, static_cast<int64_t>(row_major.size()) / size,
                 [&](int64_t to, int64_t from) {
                   std::memcpy(&physical[to * size], &row_major[from * size],
                               size);
                 });
}

}  // namespace fusor::ir
