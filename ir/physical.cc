#include "ir/physical.h"

#include <bit>
#include <cstring>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

// Calls use(T{}, to_double, from_double) for the storage type of `dtype`.
template <typename Use>
void WithStorage(DType dtype, Use use) {
  const auto plain = [&](auto zero) {
    using T = decltype(zero);
    use(
        zero, [](T x) { return static_cast<double>(x); },
        [](double x) { return static_cast<T>(x); });
  };
  switch (dtype) {
    case DType::kF64:
      return plain(double{});
    case DType::kF32:
      return plain(float{});
    case DType::kF16:
      return use(
          uint16_t{}, [](uint16_t x) { return double{HalfToFloat(x)}; },
          [](double x) {
            return FloatToHalf(static_cast<float>(RoundTo(DType::kF16, x)));
          });
    case DType::kBF16:
      return use(
          uint16_t{}, [](uint16_t x) { return double{BFloat16ToFloat(x)}; },
          [](double x) {
            return FloatToBFloat16(
                static_cast<float>(RoundTo(DType::kBF16, x)));
          });
    case DType::kI32:
      return plain(int32_t{});
    case DType::kI64:
      return plain(int64_t{});
    case DType::kU8:
    case DType::kBool:
      return plain(uint8_t{});
  }
}

}  // namespace

Tensor FromMemory(const TensorType& type, const void* memory) {
  Tensor tensor{type, std::vector<double>(type.num_elements())};
  const std::vector<int64_t> offsets = PhysicalOffsets(type);
  WithStorage(type.dtype, [&](auto zero, auto to_double, auto) {
    using T = decltype(zero);
    const T* source = static_cast<const T*>(memory);
    for (size_t i = 0; i < offsets.size(); ++i) {
      tensor.data[i] = to_double(source[offsets[i]]);
    }
  });
  return tensor;
}

void ToMemory(const Tensor& tensor, void* memory) {
  const std::vector<int64_t> offsets = PhysicalOffsets(tensor.type);
  WithStorage(tensor.type.dtype, [&](auto zero, auto, auto from_double) {
    using T = decltype(zero);
    T* target = static_cast<T*>(memory);
    for (size_t i = 0; i < offsets.size(); ++i) {
      target[offsets[i]] = from_double(tensor.data[i]);
    }
  });
}

}  // namespace fusor::ir
