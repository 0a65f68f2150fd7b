#include "runtime/data/sample_form.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "ir/dtype.h"
#include "ir/ignored_label.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using ir::DType;

// torchvision's masks have this label where no class is annotated.
constexpr int64_t kNoClass = 255;

// Returns element `i` of integers, which may be unaligned.
template <typename T>
int64_t Element(std::span<const uint8_t> bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return static_cast<int64_t>(value);
}

// Calls `use` with the index and value of each integer.
template <typename T, typename Use>
void ForEachOf(std::span<const uint8_t> bytes, const Use& use) {
  for (size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    use(i, Element<T>(bytes, i));
  }
}

template <typename Use>
void ForEach(DType dtype, std::span<const uint8_t> bytes, const Use& use) {
  switch (dtype) {
    case DType::kU8:
    case DType::kBool:
      return ForEachOf<uint8_t>(bytes, use);
    case DType::kI32:
      return ForEachOf<int32_t>(bytes, use);
    case DType::kI64:
      return ForEachOf<int64_t>(bytes, use);
    default:
      FUSOR_ASSERT(false, "integers of dtype {}", ir::DTypeName(dtype));
  }
}

// Returns the index of element `i` of a row-major tensor, as " at [y,x]"; "" of
// a scalar.
std::string At(const ir::Shape& shape, size_t i) {
  if (shape.empty()) return "";
  ir::Shape index(shape.size());
  auto rest = static_cast<int64_t>(i);
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = rest % shape[d];
    rest /= shape[d];
  }
  return fmt::format(" at [{}]", fmt::join(index, ","));
}

std::string Ignored(const SampleForm& form) {
  if (!form.ignores) return "";
  return form.classes <= kNoClass
             ? fmt::format(", or {} or {} to ignore it", ir::kIgnoredLabel,
                           kNoClass)
             : fmt::format(", or {} to ignore it", ir::kIgnoredLabel);
}

}  // namespace

int64_t SampleBytes(const SampleForm& form) {
  int64_t bytes = static_cast<int64_t>(sizeof(int32_t)) * form.labels +
                  static_cast<int64_t>(sizeof(float)) * form.values;
  for (const InputForm& input : form.inputs) bytes += input.type.num_bytes();
  return bytes;
}

void CheckTokens(const InputForm& form, std::span<const uint8_t> input,
                 const std::string& name) {
  if (form.tokens == 0) return;
  ForEach(form.type.dtype, input, [&](size_t i, int64_t token) {
    FUSOR_CHECK(token >= 0 && token < form.tokens, kData,
                "{}: {} {}{}: expected 0 to {}", name, form.name, token,
                At(form.type.shape, i), form.tokens - 1);
  });
}

void ConvertTarget(const SampleForm& form, const ir::TensorType& type,
                   std::span<const uint8_t> target, const std::string& name,
                   std::span<int32_t> labels, std::span<float> values) {
  if (form.values > 0) {
    if (type.dtype == DType::kF32) {
      std::memcpy(values.data(), target.data(), values.size_bytes());
      return;
    }
    const ir::Tensor loaded = ir::LoadTensor(type, target.data());
    std::transform(loaded.data.begin(), loaded.data.end(), values.begin(),
                   [](double x) { return static_cast<float>(x); });
    return;
  }
  ForEach(type.dtype, target, [&](size_t i, int64_t label) {
    if (form.ignores && label == kNoClass && form.classes <= kNoClass) {
      label = ir::kIgnoredLabel;
    }
    const bool ignored = form.ignores && label == ir::kIgnoredLabel;
    FUSOR_CHECK(ignored || (label >= 0 && label < form.classes), kData,
                "{}: label {}{}: expected 0 to {}{}", name, label,
                At(type.shape, i), form.classes - 1, Ignored(form));
    labels[i] = static_cast<int32_t>(label);
  });
}

}  // namespace fusor::runtime
