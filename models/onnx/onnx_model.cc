#include "models/onnx/onnx_model.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"

namespace fusor::models {
namespace {

using ir::DType;
using onnx::TensorProto;

// Numbers of TensorProto.DataType.
struct DataTypeRow {
  std::string_view name;
  std::optional<DType> dtype;
};
constexpr DataTypeRow kDataTypes[] = {{"undefined", {}},
                                      {"float", DType::kF32},
                                      {"uint8", DType::kU8},
                                      {"int8", {}},
                                      {"uint16", {}},
                                      {"int16", {}},
                                      {"int32", DType::kI32},
                                      {"int64", DType::kI64},
                                      {"string", {}},
                                      {"bool", DType::kBool},
                                      {"float16", DType::kF16},
                                      {"double", DType::kF64},
                                      {"uint32", {}},
                                      {"uint64", {}},
                                      {"complex64", {}},
                                      {"complex128", {}},
                                      {"bfloat16", DType::kBF16},
                                      {"float8e4m3fn", {}},
                                      {"float8e4m3fnuz", {}},
                                      {"float8e5m2", {}},
                                      {"float8e5m2fnuz", {}},
                                      {"uint4", {}},
                                      {"int4", {}},
                                      {"float4e2m1", {}},
                                      {"float8e8m0", {}},
                                      {"uint2", {}},
                                      {"int2", {}}};

class Parser {
 public:
  explicit Parser(const std::string& path) : path_(path) {}

  // `read` parses the message; returns false if it is damaged.
  OnnxModel Parse(int64_t bytes,
                  const std::function<bool(onnx::ModelProto&)>& read) {
    if (bytes > std::numeric_limits<int>::max()) {
      Throw("file",
            "expected less than 2 GiB, with larger tensors in "
            "external data");
    }
    onnx::ModelProto model;
    if (!read(model)) {
      Throw("file", "expected an ONNX model, got damaged or truncated bytes");
    }
    if (!model.has_graph()) Throw("graph", "expected one, got none");
    OnnxModel result;
    for (const auto& opset : model.opset_import()) {
      if (opset.domain().empty() || opset.domain() == "ai.onnx") {
        result.opset = opset.version();
      }
    }
    if (result.opset < kOldestOpset || result.opset > kNewestOpset) {
      Throw("opset", fmt::format("expected {} to {}, got {}", kOldestOpset,
                                 kNewestOpset, result.opset));
    }
    for (const onnx::FunctionProto& function : model.functions()) {
      functions_[TypeOf(function.domain(), function.name())] = &function;
    }
    result.graph = Graph(*model.mutable_graph());
    return result;
  }

 private:
  [[noreturn]] void Throw(const std::string& where,
                          const std::string& message) const {
    ThrowError(ErrorCode::kGraph,
               OneLine(fmt::format("{}: {}: {}", path_, where, message)));
  }

  // Runs `check` and adds the place to its error.
  template <typename Check>
  void Named(const std::string& where, Check check) const {
    try {
      check();
    } catch (const Error& error) {
      Throw(where, error.what());
    }
  }

  // Consumes the message's tensors, so that they are in memory once.
  OnnxGraph Graph(onnx::GraphProto& graph) {
    OnnxGraph result;
    if (graph.sparse_initializer_size() > 0) {
      Throw("initializer " + graph.sparse_initializer(0).values().name(),
            "expected a dense tensor, got a sparse one");
    }
    for (TensorProto& tensor : *graph.mutable_initializer()) {
      ir::NamedTensor values = Tensor(tensor, "initializer " + tensor.name());
      result.tensors.insert_or_assign(values.name, std::move(values));
    }
    std::set<std::string> names;
    for (const auto& input : graph.input()) {
      if (input.name().empty() || !names.insert(input.name()).second) {
        Throw(
            fmt::format("input {} of the graph", names.size()),
            fmt::format("expected a name of its own, got '{}'", input.name()));
      }
      if (result.tensors.contains(input.name())) continue;
      result.inputs.push_back(Input(input));
    }
    for (const auto& output : graph.output()) {
      result.outputs.push_back(output.name());
    }
    for (onnx::NodeProto& node : *graph.mutable_node()) {
      AddNode(node, result.nodes, 0);
    }
    return result;
  }

  // --- Functions of the model ------------------------------------------------

  static std::string TypeOf(const std::string& domain,
                            const std::string& name) {
    const bool standard = domain.empty() || domain == "ai.onnx";
    return standard ? name : domain + "." + name;
  }

  // Adds a node. For a call of a function, adds the function's nodes instead.
  void AddNode(onnx::NodeProto& node, std::vector<OnnxNode>& nodes, int depth) {
    const auto found = functions_.find(TypeOf(node.domain(), node.op_type()));
    constexpr size_t kMostNodes = 1 << 20;
    constexpr int kDeepest = 32;
    if (nodes.size() > kMostNodes || depth > kDeepest) {
      Throw("node " + node.name(),
            fmt::format("functions: expected at most {} nodes, and calls at "
                        "most {} deep",
                        kMostNodes, kDeepest));
    }
    if (found == functions_.end()) {
      nodes.push_back(Node(node));
      return;
    }
    const onnx::FunctionProto& function = *found->second;
    std::map<std::string, std::string> names{{"", ""}};
    for (int i = 0; i < function.input_size(); ++i) {
      names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
    }
    for (int i = 0; i < function.output_size(); ++i) {
      const bool used = i < node.output_size() && !node.output(i).empty();
      if (used) names[function.output(i)] = node.output(i);
    }
    const std::string own = node.name().empty() && node.output_size() > 0
                                ? node.output(0)
                                : node.name();
    for (onnx::NodeProto inner : function.node()) {
      Rename(inner, own + "/", names);
      Bind(inner, node);
      AddNode(inner, nodes, depth + 1);
    }
  }

  // Adds the prefix to the names of a function's local tensors; `names` maps
  // the others.
  static void Rename(onnx::NodeProto& node, const std::string& prefix,
                     const std::map<std::string, std::string>& names) {
    const auto rename = [&](std::string* name) {
      const auto found = names.find(*name);
      *name = found != names.end() ? found->second : prefix + *name;
    };
    for (std::string& name : *node.mutable_input()) rename(&name);
    for (std::string& name : *node.mutable_output()) rename(&name);
    node.set_name(prefix +
                  (node.name().empty() ? node.op_type() : node.name()));
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (!attribute.has_g()) continue;
      onnx::GraphProto& body = *attribute.mutable_g();
      for (auto& input : *body.mutable_input()) rename(input.mutable_name());
      for (auto& output : *body.mutable_output()) rename(output.mutable_name());
      for (auto& tensor : *body.mutable_initializer()) {
        rename(tensor.mutable_name());
      }
      for (auto& inner : *body.mutable_node()) Rename(inner, prefix, names);
    }
  }

  // Replaces references to attributes of the call by their values; drops
  // references to attributes that the call does not have.
  static void Bind(onnx::NodeProto& node, const onnx::NodeProto& call) {
    auto& attributes = *node.mutable_attribute();
    for (int i = attributes.size() - 1; i >= 0; --i) {
      onnx::AttributeProto& attribute = attributes[i];
      if (attribute.has_g()) {
        for (auto& inner : *attribute.mutable_g()->mutable_node()) {
          Bind(inner, call);
        }
      }
      if (attribute.ref_attr_name().empty()) continue;
      const auto given = std::find_if(
          call.attribute().begin(), call.attribute().end(),
          [&](const auto& a) { return a.name() == attribute.ref_attr_name(); });
      const std::string name = attribute.name();
      if (given == call.attribute().end()) {
        attributes.DeleteSubrange(i, 1);
      } else {
        attribute = *given;
        attribute.set_name(name);
      }
    }
  }

  // --- Nodes and tensors -----------------------------------------------------

  OnnxInput Input(const onnx::ValueInfoProto& info) const {
    OnnxInput input;
    input.name = info.name();
    // Inputs of a subgraph need no type.
    if (!info.has_type()) return input;
    if (!info.type().has_tensor_type()) {
      Throw("input " + info.name(), "expected a tensor");
    }
    const auto& type = info.type().tensor_type();
    input.element_type = type.elem_type();
    input.has_shape = type.has_shape();
    for (const auto& dim : type.shape().dim()) {
      const bool known = dim.has_dim_value();
      input.shape.push_back(known ? dim.dim_value() : -1);
      input.symbols.push_back(dim.dim_param());
      if (known && dim.dim_value() < 1) {
        Throw("input " + info.name(),
              fmt::format("extent {}: expected 1 or more", dim.dim_value()));
      }
    }
    return input;
  }

  OnnxNode Node(onnx::NodeProto& node) {
    OnnxNode result;
    result.type = TypeOf(node.domain(), node.op_type());
    result.name = node.name();
    result.inputs = {node.input().begin(), node.input().end()};
    result.outputs = {node.output().begin(), node.output().end()};
    if (result.name.empty() && !result.outputs.empty()) {
      result.name = result.outputs[0];
    }
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      result.attributes.insert_or_assign(attribute.name(),
                                         Attribute(attribute, result));
    }
    return result;
  }

  OnnxAttribute Attribute(onnx::AttributeProto& a, const OnnxNode& node) {
    const std::string where =
        fmt::format("node {}: attribute {}", node.name, a.name());
    switch (a.type()) {
      case onnx::AttributeProto::INT:
        return a.i();
      case onnx::AttributeProto::FLOAT:
        return static_cast<double>(a.f());
      case onnx::AttributeProto::STRING:
        return a.s();
      case onnx::AttributeProto::INTS:
        return std::vector<int64_t>(a.ints().begin(), a.ints().end());
      case onnx::AttributeProto::FLOATS:
        return std::vector<double>(a.floats().begin(), a.floats().end());
      case onnx::AttributeProto::STRINGS:
        return std::vector<std::string>(a.strings().begin(), a.strings().end());
      case onnx::AttributeProto::TENSOR:
        return Tensor(*a.mutable_t(), where);
      case onnx::AttributeProto::GRAPH:
        return std::make_shared<const OnnxGraph>(Graph(*a.mutable_g()));
      default:
        Throw(where,
              fmt::format("type {}: expected numbers, text, a tensor "
                          "or a graph",
                          onnx::AttributeProto::AttributeType_Name(a.type())));
    }
  }

  ir::NamedTensor Tensor(TensorProto& tensor, const std::string& where) {
    ir::NamedTensor result;
    result.name = tensor.name();
    result.type.dtype =
        OnnxDType(tensor.data_type(), fmt::format("{}: {}", path_, where));
    result.type.shape = {tensor.dims().begin(), tensor.dims().end()};
    if (tensor.has_segment()) Throw(where, "expected a whole tensor");
    bool empty = false;
    for (const int64_t extent : result.type.shape) {
      if (extent < 0) Throw(where, fmt::format("extent {}", extent));
      empty = empty || extent == 0;
    }
    if (empty) return result;
    Named(where, [&] { ir::CheckType(result.type); });
    if (tensor.data_location() == TensorProto::EXTERNAL) {
      result.bytes = External(tensor, result.type, where);
    } else if (tensor.has_raw_data()) {
      const std::unique_ptr<const std::string> raw(tensor.release_raw_data());
      CheckCount(raw->size(), result.type.num_bytes(), "bytes", where);
      result.bytes.assign(raw->begin(), raw->end());
    } else {
      Fields(tensor, where, result);
    }
    return result;
  }

  void CheckCount(size_t got, int64_t expected, const char* what,
                  const std::string& where) const {
    if (static_cast<int64_t>(got) == expected) return;
    Throw(where, fmt::format("expected {} {}, got {}", expected, what, got));
  }

  // Reads values from the field of their type. 16-bit floats are stored as bits
  // in int32_data.
  void Fields(const TensorProto& tensor, const std::string& where,
              ir::NamedTensor& result) const {
    const auto copy = [&](const auto& field, auto as) {
      CheckCount(static_cast<size_t>(field.size()), result.type.num_elements(),
                 "elements", where);
      result.bytes.resize(static_cast<size_t>(result.type.num_bytes()));
      uint8_t* to = result.bytes.data();
      for (const auto value : field) {
        const auto element = static_cast<decltype(as)>(value);
        std::memcpy(to, &element, sizeof element);
        to += sizeof element;
      }
    };
    switch (result.type.dtype) {
      case DType::kF32:
        return copy(tensor.float_data(), float{});
      case DType::kF64:
        return copy(tensor.double_data(), double{});
      case DType::kI64:
        return copy(tensor.int64_data(), int64_t{});
      case DType::kI32:
        return copy(tensor.int32_data(), int32_t{});
      case DType::kF16:
      case DType::kBF16:
        return copy(tensor.int32_data(), uint16_t{});
      case DType::kU8:
      case DType::kBool:
        return copy(tensor.int32_data(), uint8_t{});
    }
  }

  std::vector<uint8_t> External(const TensorProto& tensor,
                                const ir::TensorType& type,
                                const std::string& where) {
    std::string location;
    int64_t offset = 0;
    int64_t length = type.num_bytes();
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") location = entry.value();
      if (entry.key() == "offset") offset = Number(entry.value(), where);
      if (entry.key() == "length") length = Number(entry.value(), where);
    }
    const InputFile& file = ExternalFile(location, where);
    const int64_t size = file.size();
    if (length != type.num_bytes() || offset > size || length > size - offset) {
      Throw(where, fmt::format("bytes {} to {} + {} of {}, which has {}: "
                               "expected {} bytes",
                               offset, offset, length, location, size,
                               type.num_bytes()));
    }
    std::vector<uint8_t> bytes(static_cast<size_t>(length));
    Named(where, [&] { file.Read(offset, bytes); });
    return bytes;
  }

  int64_t Number(const std::string& text, const std::string& where) const {
    constexpr size_t kDigits = 18;
    if (text.empty() || text.size() > kDigits ||
        text.find_first_not_of("0123456789") != text.npos) {
      Throw(where, "external data: expected a number, got " + text);
    }
    return std::stoll(text);
  }

  // Only files inside the model's folder: a model must not read others.
  const InputFile& ExternalFile(const std::string& location,
                                const std::string& where) {
    const auto found = files_.find(location);
    if (found != files_.end()) return *found->second;
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path folder =
        fs::weakly_canonical(fs::absolute(path_).parent_path(), error);
    const fs::path file = fs::weakly_canonical(folder / location, error);
    const fs::path relative = file.lexically_relative(folder);
    if (error || location.empty() || fs::path(location).is_absolute() ||
        relative.empty() || *relative.begin() == "..") {
      Throw(where, "external data in " + location +
                       ": expected a file inside the model's folder");
    }
    std::unique_ptr<InputFile> opened;
    Named(where, [&] {
      opened = std::make_unique<InputFile>(file.string(), ErrorCode::kGraph);
    });
    return *(files_[location] = std::move(opened));
  }

  const std::string& path_;
  std::map<std::string, std::unique_ptr<InputFile>> files_;      // by location
  std::map<std::string, const onnx::FunctionProto*> functions_;  // by type
};

}  // namespace

OnnxModel ReadOnnx(const std::string& path) {
  const InputFile file(path, ErrorCode::kUsage);  // checks that it can be read
  return Parser(path).Parse(file.size(), [&](onnx::ModelProto& model) {
    std::ifstream stream(path, std::ios::binary);
    return model.ParseFromIstream(&stream);
  });
}

OnnxModel ParseOnnx(const std::string& path, std::span<const uint8_t> file) {
  const auto size = static_cast<int64_t>(file.size());
  return Parser(path).Parse(size, [&](onnx::ModelProto& model) {
    return model.ParseFromArray(file.data(), static_cast<int>(size));
  });
}

DType OnnxDType(int64_t element_type, const std::string& where) {
  const auto known = static_cast<int64_t>(std::size(kDataTypes));
  const bool named = element_type >= 0 && element_type < known;
  if (named && kDataTypes[element_type].dtype) {
    return *kDataTypes[element_type].dtype;
  }
  ThrowError(
      ErrorCode::kGraph,
      OneLine(fmt::format(
          "{}: dtype {}: expected float, double, float16, bfloat16, int32, "
          "int64, uint8 or bool",
          where,
          named ? std::string(kDataTypes[element_type].name)
                : fmt::format("{}", element_type))));
}

}  // namespace fusor::models
