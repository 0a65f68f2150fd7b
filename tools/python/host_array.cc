#include "tools/python/host_array.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "ir/support/error.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;
using ir::DType;

std::string_view NumpyName(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "float64";
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
  }
  FUSOR_ASSERT(false, "no such dtype");
}

std::optional<DType> FromDlpack(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(type.code);
  if (type.lanes != 1) return std::nullopt;
  switch (code) {
    case Code::Float:
      return type.bits == 64   ? std::optional(DType::kF64)
             : type.bits == 32 ? std::optional(DType::kF32)
             : type.bits == 16 ? std::optional(DType::kF16)
                               : std::nullopt;
    case Code::Bfloat:
      return DType::kBF16;
    case Code::Int:
      return type.bits == 64   ? std::optional(DType::kI64)
             : type.bits == 32 ? std::optional(DType::kI32)
                               : std::nullopt;
    case Code::UInt:
      return type.bits == 8 ? std::optional(DType::kU8) : std::nullopt;
    case Code::Bool:
      return DType::kBool;
    default:
      return std::nullopt;
  }
}

// Returns why an object exports no array: the text of the exception that its
// __dlpack__ raises, or its type.
std::string Reason(nb::handle object) {
  if (nb::hasattr(object, "__dlpack__")) {
    try {
      object.attr("__dlpack__")();
    } catch (nb::python_error& error) {
      return nb::str(error.value()).c_str();
    }
  }
  return nb::type_name(object.type()).c_str();
}

bool IsInteger(DType dtype) {
  return dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kU8;
}

int64_t ReadInteger(const uint8_t* element, DType dtype) {
  if (dtype == DType::kU8) return *element;
  if (dtype == DType::kI32) {
    int32_t value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  int64_t value = 0;
  std::memcpy(&value, element, sizeof value);
  return value;
}

}  // namespace

std::string Describe(DType dtype, const ir::Shape& shape) {
  return fmt::format("{} ({}{})", NumpyName(dtype), fmt::join(shape, ", "),
                     shape.size() == 1 ? "," : "");
}

HostArray::HostArray(nb::handle object, std::string name)
    : name_(std::move(name)) {
  FUSOR_CHECK(nb::ndarray_check(object) && nb::try_cast(object, array_, false),
              kUsage,
              "{}: expected an array (numpy, PyTorch or other with "
              "__dlpack__), got {}",
              name_, Reason(object));
  const int device = array_.device_type();
  FUSOR_CHECK(device == nb::device::cpu::value ||
                  device == nb::device::cuda_host::value,
              kUsage,
              "{}: expected an array in CPU memory, got one on a device of "
              "DLPack type {}: copy it to the CPU first",
              name_, device);
  for (size_t i = 0; i < array_.ndim(); ++i) {
    shape_.push_back(static_cast<int64_t>(array_.shape(i)));
  }
  const nb::dlpack::dtype type = array_.dtype();
  const std::optional<DType> dtype = FromDlpack(type);
  FUSOR_CHECK(dtype.has_value(), kUsage,
              "{}: expected floats, int32, int64, uint8 or bool, got elements "
              "of {} bits with DLPack type code {}",
              name_, type.bits, type.code);
  dtype_ = *dtype;
  if (!IsContiguous()) CopyStrided();
}

const void* HostArray::data() const {
  return copied_ ? static_cast<const void*>(copy_.data()) : array_.data();
}

size_t HostArray::bytes() const {
  size_t count = static_cast<size_t>(ir::DTypeSize(dtype_));
  for (const int64_t extent : shape_) count *= static_cast<size_t>(extent);
  return count;
}

bool HostArray::IsContiguous() const {
  int64_t stride = 1;
  for (size_t i = shape_.size(); i-- > 0;) {
    if (shape_[i] != 1 && array_.stride(i) != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

void HostArray::CopyStrided() {
  copy_.resize(bytes());
  copied_ = true;
  if (copy_.empty()) return;
  const auto size = static_cast<int64_t>(ir::DTypeSize(dtype_));
  const auto* from = static_cast<const uint8_t*>(array_.data());
  uint8_t* to = copy_.data();
  const size_t inner = shape_.size() - 1;
  std::vector<int64_t> index(shape_.size(), 0);
  while (true) {
    int64_t offset = 0;
    for (size_t i = 0; i < inner; ++i) offset += index[i] * array_.stride(i);
    for (int64_t j = 0; j < shape_[inner]; ++j) {
      std::memcpy(to, from + (offset + j * array_.stride(inner)) * size,
                  static_cast<size_t>(size));
      to += size;
    }
    size_t dim = inner;
    while (dim > 0 && ++index[dim - 1] == shape_[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

void HostArray::ConvertIntegers(DType to) {
  const auto from_size = static_cast<size_t>(ir::DTypeSize(dtype_));
  const auto to_size = static_cast<size_t>(ir::DTypeSize(to));
  const size_t count = bytes() / from_size;
  std::vector<uint8_t> converted(count * to_size);
  const auto* from = static_cast<const uint8_t*>(data());
  const int64_t low =
      to == DType::kU8 ? 0 : std::numeric_limits<int32_t>::min();
  const int64_t high =
      to == DType::kU8 ? 255 : std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < count; ++i) {
    const int64_t value = ReadInteger(from + i * from_size, dtype_);
    FUSOR_CHECK(to == DType::kI64 || (low <= value && value <= high), kUsage,
                "{}: expected integers that fit into {}, got {} at element {}",
                name_, NumpyName(to), value, i);
    // The first bytes of a little-endian integer are its low ones.
    std::memcpy(converted.data() + i * to_size, &value, to_size);
  }
  copy_ = std::move(converted);
  copied_ = true;
  dtype_ = to;
}

void HostArray::ConvertTo(const ir::TensorType& type, bool part) {
  ir::Shape rows = type.shape;
  if (part && !shape_.empty() && !rows.empty() && shape_[0] > 0) {
    rows[0] = std::min(rows[0], shape_[0]);
  }
  const bool converts =
      dtype_ != type.dtype && IsInteger(dtype_) && IsInteger(type.dtype);
  FUSOR_CHECK((dtype_ == type.dtype || converts) && shape_ == rows, kUsage,
              "{}: expected {}{}, got {}", name_, part ? "at most " : "",
              Describe(type.dtype, type.shape), Describe(dtype_, shape_));
  if (converts) ConvertIntegers(type.dtype);
  if (rows == type.shape) return;
  std::vector<uint8_t> padded(static_cast<size_t>(type.num_bytes()));
  std::memcpy(padded.data(), data(), bytes());
  copy_ = std::move(padded);
  copied_ = true;
  shape_ = type.shape;
}

void HostArray::Replace(const void* elements) {
  const auto* from = static_cast<const uint8_t*>(elements);
  copy_ = {from, from + bytes()};
  copied_ = true;
}

ir::NamedTensor HostArray::ToTensor() const {
  const auto* from = static_cast<const uint8_t*>(data());
  return {name_, {dtype_, shape_, {}}, {from, from + bytes()}};
}

nb::ndarray<nb::numpy, float> NumpyArray(std::vector<float> values,
                                         const ir::Shape& shape) {
  auto owned = std::make_unique<std::vector<float>>(std::move(values));
  const std::vector<size_t> extents(shape.begin(), shape.end());
  float* data = owned->data();
  const nb::capsule owner(owned.release(), [](void* memory) noexcept {
    delete static_cast<std::vector<float>*>(memory);
  });
  return nb::ndarray<nb::numpy, float>(data, extents.size(), extents.data(),
                                       owner);
}

}  // namespace fusor::python
