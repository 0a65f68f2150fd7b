#pragma once

// Archives that torch.export.save writes (.pt2): a zip file with the program as
// JSON and the tensors as raw bytes. Format: PyTorch's documentation, "PT2
// Archive Spec", and torch/_export/serde/schema.py, schema version 8.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ir/interpreter/tensor_source.h"
#include "ir/location.h"

namespace fusor::models {

// A reference to a tensor of the program, or to a symbolic integer or bool.
struct TorchTensor {
  std::string name;
};
struct TorchSymbol {
  std::string name;
};
// monostate: None, and settings without a meaning here (device, layout). A
// dtype is PyTorch's ScalarType number.
using TorchItem = std::variant<std::monostate, TorchTensor, TorchSymbol,
                               int64_t, double, bool, std::string>;

// An argument or a result of an op.
struct TorchArgument {
  std::string name;              // in the op's signature; "" for a result
  std::vector<TorchItem> items;  // one item unless `is_list`
  bool is_list = false;
};

struct TorchNode {
  std::string target;  // "torch.ops.aten.conv2d.default"
  std::vector<TorchArgument> inputs;
  std::vector<TorchArgument> outputs;
  ir::Location location;  // module path and the user's Python line
  // In a block of torch.autocast(enabled=False): its convolutions and matmuls
  // stay f32 with mixed precision.
  bool keeps_precision = false;
};

enum class TorchInputKind { kParameter, kBuffer, kConstant, kUser };
struct TorchInput {
  TorchInputKind kind = TorchInputKind::kUser;
  std::string name;    // in the program
  std::string target;  // name in the module ("layer1.0.bn1.weight"); kUser: ""
  // Parameters: whether it requires no gradient; the target of an earlier
  // parameter with the same storage, or "".
  bool frozen = false;
  std::string tied_to;
};

// A program's input. -1 is a symbolic extent.
struct TorchType {
  int64_t scalar_type = 0;
  std::vector<int64_t> shape;
};

struct TorchProgram {
  std::vector<TorchInput> inputs;
  std::vector<std::string> outputs;        // tensors that forward() returns
  std::vector<TorchNode> nodes;            // in order of execution
  std::map<std::string, TorchType> types;  // of the program's tensors
  std::map<std::string, ir::TensorSource> tensors;  // by TorchInput::target
};

// Reads an archive. Its tensors stay in the file, which must not change, and
// are read from there. Throws kUsage if the file cannot be read, and kGraph,
// with a line that names the entry, for damaged and truncated files, compressed
// entries, pickled tensors, custom objects, unknown dtypes, other schema
// versions, and strides that reach outside a tensor's bytes.
TorchProgram ReadTorchArchive(const std::string& path);
// The same for an archive's bytes, which must outlive the tensors. `path` names
// it in messages.
TorchProgram ReadTorchArchive(const std::string& path,
                              std::span<const uint8_t> file);

// Returns whether a ScalarType number is that of complex numbers.
bool IsTorchComplex(int64_t scalar_type);
// Returns the dtype of a ScalarType number, of complex numbers that of their
// parts; throws kGraph, starting with
// `where`, if this IR has none.
ir::DType TorchDType(int64_t scalar_type, const std::string& where);

}  // namespace fusor::models
