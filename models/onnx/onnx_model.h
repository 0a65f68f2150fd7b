#pragma once

// Models in ONNX's format (.onnx): a protobuf message with the graph. Large
// tensors may be in other files. Format: onnx.ai, "Open Neural Network
// Exchange Intermediate Representation".

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ir/io/named_tensor.h"

namespace fusor::models {

// Opsets of the default domain that the import reads.
inline constexpr int64_t kOldestOpset = 13;
inline constexpr int64_t kNewestOpset = 28;

struct OnnxGraph;
// A tensor attribute with an extent of 0 has no bytes.
using OnnxAttribute =
    std::variant<int64_t, double, std::string, std::vector<int64_t>,
                 std::vector<double>, std::vector<std::string>, ir::NamedTensor,
                 std::shared_ptr<const OnnxGraph>>;

struct OnnxNode {
  std::string type;  // "Conv"; in other domains than the default "domain.Op"
  std::string name;
  std::vector<std::string> inputs;   // "": an omitted optional one
  std::vector<std::string> outputs;  // the same
  std::map<std::string, OnnxAttribute> attributes;
};

struct OnnxInput {
  std::string name;
  int32_t element_type = 0;  // TensorProto.DataType
  bool has_shape = false;
  // -1 is a symbolic extent, whose name, if any, is in `symbols`.
  std::vector<int64_t> shape;
  std::vector<std::string> symbols;
};

struct OnnxGraph {
  std::vector<OnnxInput> inputs;  // without those that have an initialiser
  std::vector<std::string> outputs;
  std::vector<OnnxNode> nodes;                     // in order of execution
  std::map<std::string, ir::NamedTensor> tensors;  // initialisers
};

struct OnnxModel {
  int64_t opset = 0;
  OnnxGraph graph;
};

// Reads a model; its tensors are in memory once, except the one being read.
// Inlines the model's functions. Tensors in other files are read from the
// model's folder. Throws kUsage if the file cannot be read, and kGraph, with a
// line that names the tensor or node, for damaged and truncated files,
// unsupported opsets and dtypes, tensors whose bytes do not fit their shape,
// and files outside the folder.
OnnxModel ReadOnnx(const std::string& path);
// The same for a model's bytes; `path` names the model in messages.
OnnxModel ParseOnnx(const std::string& path, std::span<const uint8_t> file);

// Returns the dtype of a TensorProto.DataType; throws kGraph, starting with
// `where`, if this IR has none.
ir::DType OnnxDType(int64_t element_type, const std::string& where);

}  // namespace fusor::models
