#pragma once

// Reads the PyTorch values under tests/golden/torch. Its README.md describes
// them.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "runtime/data/files/safetensors.h"

namespace fusor::test {

// Returns the models with a stored training step, sorted by name.
std::vector<std::string> TorchModels();

// One file of stored values.
class TorchGolden {
 public:
  // `file` is relative to tests/golden/torch.
  explicit TorchGolden(const std::string& file);

  const nlohmann::json& spec() const { return spec_; }
  bool Has(const std::string& name) const;
  // Throws kInternal if there is no tensor of that name.
  ir::Tensor Get(const std::string& name) const;

 private:
  runtime::Safetensors file_;
  nlohmann::json spec_;
};

}  // namespace fusor::test
