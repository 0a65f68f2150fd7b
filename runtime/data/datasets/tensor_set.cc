#include "runtime/data/datasets/tensor_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"
#include "runtime/data/files/byte_source.h"
#include "runtime/data/files/safetensors.h"

namespace fusor::runtime {
namespace {

// Calls `read`; its errors become errors of the data set.
template <typename Read>
auto AsData(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw Error(ErrorCode::kData, error.what());
  }
}

// Returns a sample's type: that of the tensor without its first dimension.
ir::TensorType SampleType(ir::TensorType type) {
  type.shape.erase(type.shape.begin());
  return type;
}

ir::TensorSource Take(const std::string& path, const Safetensors& file,
                      const std::vector<std::string>& inputs,
                      std::string_view name) {
  const ir::TensorSource* tensor = file.Find(name);
  FUSOR_CHECK(tensor != nullptr, kData,
              "{}: expected tensors {} and target, got {}", path,
              fmt::join(inputs, ", "),
              file.tensors.empty()
                  ? "none"
                  : fusor::Join(file.tensors, ", ",
                                [](const auto& other) { return other.name; }));
  FUSOR_CHECK(tensor->type.rank() > 0, kData,
              "{}: tensor {}: expected a dimension of samples, got a scalar",
              path, name);
  AsData([&] { return SampleType(tensor->type).num_bytes(); });
  return *tensor;
}

void ReadSample(const ir::TensorSource& tensor, int64_t index,
                std::span<uint8_t> sample) {
  AsData([&] {
    tensor.read(index * static_cast<int64_t>(sample.size()), sample);
  });
}

}  // namespace

TensorSet::TensorSet(std::string path, const std::vector<std::string>& files,
                     std::vector<std::string> inputs)
    : ImageSet("safetensors", std::move(path)), inputs_(std::move(inputs)) {
  AllowOpenFiles(files.size());
  for (const std::string& file : files) Open(file);
}

void TensorSet::Open(const std::string& path) {
  const Safetensors tensors = AsData([&] { return ReadSafetensors(path); });
  File file{path, {}, Take(path, tensors, inputs_, "target")};
  SampleTensors own{{}, SampleType(file.target.type)};
  for (const std::string& name : inputs_) {
    file.inputs.push_back(Take(path, tensors, inputs_, name));
    own.inputs.push_back(SampleType(file.inputs.back().type));
  }
  const int64_t samples = file.inputs[0].type.shape[0];
  if (files_.empty()) tensors_ = own;
  const auto check = [&](const ir::TensorSource& tensor,
                         const ir::TensorType& expected,
                         const ir::TensorType& got) {
    FUSOR_CHECK(tensor.type.shape[0] == samples, kData,
                "{}: tensor {}: expected {} samples, as in {}, got {}", path,
                tensor.name, samples, inputs_[0], tensor.type.shape[0]);
    FUSOR_CHECK(got == expected, kData,
                "{}: tensor {}: expected samples {}, as in {}, got {}", path,
                tensor.name, ToString(expected), files_.front().path,
                ToString(got));
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    check(file.inputs[i], tensors_.inputs[i], own.inputs[i]);
  }
  check(file.target, tensors_.target, own.target);
  first_.push_back(first_.back() + samples);
  files_.push_back(std::move(file));
}

size_t TensorSet::FileOf(int64_t index) const {
  FUSOR_ASSERT(index >= 0 && index < size(), "sample {} of {}", index, size());
  return static_cast<size_t>(
             std::upper_bound(first_.begin(), first_.end(), index) -
             first_.begin()) -
         1;
}

std::string TensorSet::Name(int64_t index) const {
  const size_t file = FileOf(index);
  return fmt::format("{}: sample {}", files_[file].path, index - first_[file]);
}

Sample TensorSet::Read(int64_t index, std::vector<uint8_t>&) const {
  ThrowError(ErrorCode::kData,
             fmt::format("{}: expected an image, got tensors", Name(index)));
}

void TensorSet::ReadTensors(int64_t index,
                            const std::vector<std::span<uint8_t>>& inputs,
                            std::span<uint8_t> target) const {
  const size_t file = FileOf(index);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ReadSample(files_[file].inputs[i], index - first_[file], inputs[i]);
  }
  ReadSample(files_[file].target, index - first_[file], target);
}

uint64_t TensorSet::Fingerprint() const {
  uint64_t hash = HashBytes(ToString(tensors_.target));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    hash = HashBytes(inputs_[i] + ToString(tensors_.inputs[i]), hash);
  }
  for (const File& file : files_) {
    const std::string name =
        std::filesystem::path(file.path).filename().string();
    hash = HashParts(InputFile(file.path, ErrorCode::kData),
                     HashBytes(name, hash));
  }
  return hash;
}

std::string TensorSet::Description() const {
  return fmt::format("{} samples {:016x}", size(), Fingerprint());
}

}  // namespace fusor::runtime
