#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/tensor_type.h"

namespace fusor::runtime {

// The type and range of an input that a batch holds for each sample.
struct InputForm {
  std::string name;
  ir::TensorType type;  // without the dimension of samples
  int64_t tokens = 0;   // integers are below this; 0: any
};

// The types and ranges of the inputs and the target that a batch holds for each
// sample of a data set of tensors.
struct SampleForm {
  std::vector<InputForm> inputs;
  // A sample has labels below `classes`, or values, f32.
  int64_t labels = 0;
  int64_t classes = 0;
  int64_t values = 0;
  // Whether labels may be ir::kIgnoredLabel. 255, as in torchvision, means the
  // same if there are at most 255 classes.
  bool ignores = false;
};

// Returns the bytes of a sample.
int64_t SampleBytes(const SampleForm& form);

// Throws kData if an integer input has values outside [0, form.tokens). `name`
// is that of the sample.
void CheckTokens(const InputForm& form, std::span<const uint8_t> input,
                 const std::string& name);

// Converts a target, row-major elements of `type`, to labels or values, of
// which the spans have form.labels and form.values. Throws kData for a label
// out of range.
void ConvertTarget(const SampleForm& form, const ir::TensorType& type,
                   std::span<const uint8_t> target, const std::string& name,
                   std::span<int32_t> labels, std::span<float> values);

}  // namespace fusor::runtime
