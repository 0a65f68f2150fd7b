#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/interpreter/tensor_source.h"
#include "ir/support/file.h"
#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// Samples of safetensors files. Sample i of a file is element i of the input
// tensors and of the tensor "target", e.g. an image and its mask, or tokens and
// the next ones. Other tensors are not read.
class TensorSet : public ImageSet {
 public:
  // Throws kData if a file cannot be read or is damaged, if it lacks a tensor,
  // if its tensors have different numbers of samples, and if the samples of two
  // files have different types.
  TensorSet(std::string path, const std::vector<std::string>& files,
            std::vector<std::string> inputs = {"input"});

  int64_t size() const override { return first_.back(); }
  int32_t Label(int64_t) const override { return kUnknownLabel; }
  std::string Name(int64_t index) const override;
  // Throws kData: samples are not images.
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
  const SampleTensors* tensors() const override { return &tensors_; }
  void ReadTensors(int64_t index, const std::vector<std::span<uint8_t>>& inputs,
                   std::span<uint8_t> target) const override;
  uint64_t Fingerprint() const override;
  std::string Description() const override;

 private:
  struct File {
    std::string path;
    std::vector<ir::TensorSource> inputs;
    ir::TensorSource target;
  };

  void Open(const std::string& path);
  // Returns the file of a sample.
  size_t FileOf(int64_t index) const;

  const std::vector<std::string> inputs_;
  std::vector<File> files_;
  std::vector<int64_t> first_ = {0};  // sample of each file, and the end
  SampleTensors tensors_;
};

}  // namespace fusor::runtime
