#include "models/onnx/onnx_importer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {
namespace {

using ir::DType;
using ir::InputRole;
using ir::Value;

// A parameter or running statistic.
struct State {
  InputRole role = InputRole::kBias;
  ir::Attrs init;
};

// Returns how an operand is used, see OnnxOp::states.
char UseOf(const OnnxNode& node, size_t operand) {
  const OnnxOp* op = FindOnnxOp(node.type);
  if (op == nullptr || op->states.empty()) return '-';
  const std::string_view states = op->states;
  if (states.back() == '*' && operand + 1 >= states.size()) {
    return states[states.size() - 2];
  }
  return operand < states.size() ? states[operand] : '-';
}

// Returns true if each row of a weight computes one result of the layer.
bool RowsAreResults(const OnnxNode& node, const ir::Shape& weight) {
  const auto found = node.attributes.find("transB");
  const int64_t* transposed = found == node.attributes.end()
                                  ? nullptr
                                  : std::get_if<int64_t>(&found->second);
  return weight.size() > 2 || (transposed != nullptr && *transposed != 0);
}

// A model's graph, and the roles of its initialisers.
class Program {
 public:
  Program(std::string path, OnnxModel model)
      : path_(std::move(path)), model_(std::move(model)) {
    FUSOR_CHECK(!graph().outputs.empty(), kGraph,
                "{}: expected a result, got none", path_);
    for (const OnnxNode& node : graph().nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        readers_[node.inputs[i]].push_back({&node, i});
      }
      for (const std::string& output : node.outputs) producers_[output] = &node;
    }
    for (const auto& [name, tensor] : graph().tensors) {
      if (ir::IsFloat(tensor.type.dtype) && !tensor.bytes.empty()) {
        FindState(name);
      }
    }
    FindHeads();
  }

  const std::string& path() const { return path_; }
  const OnnxGraph& graph() const { return model_.graph; }
  int64_t opset() const { return model_.opset; }
  int64_t num_classes() const { return num_classes_; }
  // Returns the dimension of classes of a last layer's tensor; -1 for others.
  int64_t ClassDim(const std::string& name) const {
    const auto found = heads_.find(name);
    return found == heads_.end() ? -1 : found->second;
  }
  // Null for a constant.
  const State* FindState(const std::string& name) const {
    const auto found = states_.find(name);
    return found == states_.end() ? nullptr : &found->second;
  }
  // Returns the logits of a result. For a softmax these are its operand,
  // because the loss contains a softmax.
  const std::string& LogitsOf(const std::string& result) const {
    const auto found = producers_.find(result);
    const bool softmax = found != producers_.end() &&
                         found->second->type == "Softmax" &&
                         !found->second->inputs.empty();
    return softmax ? found->second->inputs[0] : result;
  }
  std::vector<ir::TensorSource> Weights() const {
    std::vector<ir::TensorSource> weights;
    for (const auto& [name, state] : states_) {
      const ir::NamedTensor& tensor = graph().tensors.at(name);
      weights.push_back(ir::SourceOf(name, tensor.type, tensor.bytes));
    }
    return weights;
  }

 private:
  struct Reader {
    const OnnxNode* node;
    size_t operand;
  };

  // Decides by the nodes that read a tensor, also in another shape or dtype.
  void FindState(const std::string& tensor) {
    const ir::Shape& shape = graph().tensors.at(tensor).type.shape;
    std::vector<std::string> names{tensor};
    std::set<std::string> seen{tensor};
    for (size_t i = 0; i < names.size(); ++i) {
      const auto readers = readers_.find(names[i]);
      if (readers == readers_.end()) continue;
      for (const auto& [node, operand] : readers->second) {
        const char use = UseOf(*node, operand);
        if (use == '=') {
          for (const std::string& output : node->outputs) {
            if (seen.insert(output).second) names.push_back(output);
          }
        } else if (std::optional<State> state = StateOf(*node, use, shape)) {
          // Elementwise readers give a default role. Other readers take
          // precedence.
          if (use == '+') {
            states_.try_emplace(tensor, *std::move(state));
          } else {
            states_.insert_or_assign(tensor, *std::move(state));
            return;
          }
        }
      }
    }
  }

  static std::optional<State> StateOf(const OnnxNode& node, char use,
                                      const ir::Shape& shape) {
    const auto constant = [](InputRole role, double value) -> State {
      return {role, {{"init", std::string("constant")}, {"value", value}}};
    };
    const int64_t elements = ir::NumElements(shape);
    switch (use) {
      case 's':
        return constant(InputRole::kNormScale, 1);
      case 'h':
        return constant(InputRole::kNormShift, 0);
      case 'v':
        return constant(InputRole::kStatistic, 1);
      case 'm':
        return constant(InputRole::kStatistic, 0);
      case 'w':
        if (shape.size() > 1) {
          return State{InputRole::kWeight, WeightInit(node, shape)};
        }
        break;
      case '+':
        if (elements == 1) return std::nullopt;
        break;
      case 'b':
        break;
      default:
        return std::nullopt;
    }
    const bool vector =
        shape.empty() ||
        elements == *std::max_element(shape.begin(), shape.end());
    return constant(vector ? InputRole::kBias : InputRole::kWeight, 0);
  }

  // PyTorch's default for such layers.
  static ir::Attrs WeightInit(const OnnxNode& node, const ir::Shape& shape) {
    const int64_t results =
        RowsAreResults(node, shape) ? shape[0] : shape.back();
    const double fan_in = static_cast<double>(ir::NumElements(shape)) /
                          static_cast<double>(results);
    return {{"init", std::string("uniform")}, {"bound", 1 / std::sqrt(fan_in)}};
  }

  bool IsState(const std::string& name) const { return states_.contains(name); }

  // Follows each result back to the last layer with a weight.
  void FindHeads() {
    for (const std::string& output : graph().outputs) {
      std::string at = LogitsOf(output);
      std::string bias;
      // A path visits each node once at most, unless the model is damaged.
      for (size_t i = 0; i < graph().nodes.size(); ++i) {
        const auto found = producers_.find(at);
        if (found == producers_.end() || found->second->inputs.empty()) break;
        const OnnxNode& node = *found->second;
        const std::vector<std::string>& in = node.inputs;
        const bool layer =
            node.type == "Gemm" || node.type == "MatMul" || node.type == "Conv";
        if (layer && in.size() > 1 && IsState(in[1]) &&
            graph().tensors.at(in[1]).type.rank() > 1) {
          AddHead(node, bias);
          break;
        }
        at = in[0];
        if (node.type == "Add" && in.size() == 2) {
          const size_t own = IsState(in[0]) ? 0 : 1;
          if (IsState(in[own])) bias = in[own];
          at = in[1 - own];
        }
      }
    }
  }

  void AddHead(const OnnxNode& node, const std::string& bias) {
    const ir::Shape& shape = graph().tensors.at(node.inputs[1]).type.shape;
    const bool rows = node.type == "Conv" || RowsAreResults(node, shape);
    const int64_t dim = rows ? 0 : static_cast<int64_t>(shape.size()) - 1;
    const int64_t classes = shape[static_cast<size_t>(dim)];
    heads_[node.inputs[1]] = dim;
    if (num_classes_ == 0) num_classes_ = classes;
    for (const std::string& name :
         {bias, node.inputs.size() > 2 ? node.inputs[2] : std::string()}) {
      if (!IsState(name)) continue;
      const ir::Shape& own = graph().tensors.at(name).type.shape;
      if (own.empty() || own.back() != classes) continue;
      heads_[name] = static_cast<int64_t>(own.size()) - 1;
    }
  }

  std::string path_;
  OnnxModel model_;
  std::map<std::string, std::vector<Reader>> readers_;
  std::map<std::string, const OnnxNode*> producers_;
  std::map<std::string, State> states_;
  std::map<std::string, int64_t> heads_;
  int64_t num_classes_ = 0;
};

// Returns the layer path of a node: "/layer1/layer1.0/conv1/Conv" is
// "layer1.layer1.0.conv1.Conv".
std::string PathOf(const OnnxNode& node) {
  std::string path;
  for (const char c : node.name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (c == '/') {
      if (!path.empty() && path.back() != '.') path += '.';
    } else {
      path += plain ? c : '_';
    }
  }
  return path;
}

// Runs a program's nodes on a graph.
class GraphBuilder {
 public:
  GraphBuilder(const Program& program, ir::Graph& graph, Phase phase,
               const ModelOptions& options)
      : program_(program),
        builder_(graph),
        layers_(builder_, phase, options),
        known_(graph),
        context_{layers_,
                 program.path(),
                 program.opset(),
                 known_,
                 [this](const std::string& name) { return Read(name); },
                 [this](const OnnxGraph& body,
                        const std::vector<Value*>& arguments) {
                   return RunBody(body, arguments);
                 }} {}

  // A batch in, loss out.
  void BuildTrained(const ImportedInterface& interface) {
    const OnnxGraph& graph = program_.graph();
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      values_[graph.inputs[i].name] = models::AddInput(layers_, interface, i);
    }
    Run(graph);
    std::vector<Value*> results;
    for (const std::string& output : graph.outputs) {
      results.push_back(Result(program_.LogitsOf(output)));
    }
    AddResultLoss(layers_, program_.path(), results);
  }

  // Tensors in, tensors out.
  void BuildProgram(const GivenTensor& given) {
    const OnnxGraph& graph = program_.graph();
    for (const OnnxInput& input : graph.inputs) {
      AddInput(input, given(input.name));
    }
    Run(graph);
    for (const std::string& output : graph.outputs) {
      builder_.graph().AddOutput(Result(output), output);
    }
  }

 private:
  void AddInput(const OnnxInput& input, const ir::NamedTensor& tensor) {
    const ir::Shape& shape = tensor.type.shape;
    if (input.has_shape) {
      CheckGivenShape(program_.path(), input.name, input.shape, shape);
    }
    for (size_t d = 0; d < input.symbols.size(); ++d) {
      if (input.symbols[d].empty()) continue;
      const int64_t extent =
          symbols_.emplace(input.symbols[d], shape[d]).first->second;
      FUSOR_CHECK(extent == shape[d], kGraph,
                  "{}: input {}: extent {}: expected {}, as before, got {}",
                  program_.path(), input.name, input.symbols[d], extent,
                  shape[d]);
    }
    const DType dtype =
        OnnxDType(input.element_type,
                  fmt::format("{}: input {}", program_.path(), input.name));
    Value* value = builder_.graph().AddInput({dtype, shape, {}},
                                             InputRole::kData, input.name);
    values_[input.name] = value;
    ir::Tensor known = ir::LoadTensor(tensor.type, tensor.bytes);
    known.type.dtype = dtype;
    known_.Set(value, std::move(known));
  }

  void Run(const OnnxGraph& graph) {
    for (const auto& [name, tensor] : graph.tensors) {
      const bool outer = &graph == &program_.graph();
      values_[name] =
          Initializer(name, tensor, outer ? program_.FindState(name) : nullptr);
    }
    for (const OnnxNode& node : graph.nodes) {
      builder_.Inherit(ir::Location(PathOf(node)));
      Run(node);
    }
    builder_.Inherit({});
  }

  // Names in the body hide those in the graph around it.
  std::vector<Value*> RunBody(const OnnxGraph& body,
                              const std::vector<Value*>& arguments) {
    const std::map<std::string, Value*> outer = values_;
    FUSOR_CHECK(arguments.size() == body.inputs.size(), kGraph,
                "{}: a body: expected {} inputs, got {}", program_.path(),
                arguments.size(), body.inputs.size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      values_[body.inputs[i].name] = arguments[i];
    }
    Run(body);
    std::vector<Value*> results;
    for (const std::string& output : body.outputs) {
      results.push_back(Read(output));
    }
    values_ = outer;
    return results;
  }

  // `state` is null for a constant.
  Value* Initializer(const std::string& name, const ir::NamedTensor& tensor,
                     const State* state) {
    builder_.Inherit(ir::Location(name));
    if (state == nullptr) return OnnxConstant(builder_, tensor);
    ir::Shape shape = tensor.type.shape;
    const int64_t dim = program_.ClassDim(name);
    const int64_t classes = layers_.options().num_classes;
    if (dim >= 0 && program_.num_classes() != classes) {
      shape[static_cast<size_t>(dim)] = classes;
    }
    Value* value = builder_.graph().AddInput({DType::kF32, shape, {}},
                                             state->role, name, state->init);
    return builder_.Cast(value, tensor.type.dtype);
  }

  void Run(const OnnxNode& node) {
    OnnxCall call(node, context_);
    // Limits the number of nodes run, because loop bodies run repeatedly.
    constexpr int64_t kMostNodes = 1 << 20;
    if (++runs_ > kMostNodes) {
      call.Throw(fmt::format("more than {} nodes", kMostNodes));
    }
    const OnnxOp* op = FindOnnxOp(node.type);
    if (op == nullptr) call.Throw("unknown operator");
    const OnnxResults results = op->build(call);
    call.CheckAllRead();
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i].empty()) continue;
      if (i >= results.size()) {
        call.Throw(fmt::format("result {}: this import has only {}", i,
                               results.size()));
      }
      values_[node.outputs[i]] = results[i];
    }
  }

  Value* Read(const std::string& name) const {
    const auto found = values_.find(name);
    FUSOR_CHECK(found != values_.end(), kGraph,
                "{}: tensor {}: expected one defined before its use, got none",
                program_.path(), OneLine(name));
    return found->second;
  }
  Value* Result(const std::string& name) const {
    Value* value = Read(name);
    FUSOR_CHECK(value != nullptr, kGraph,
                "{}: result {}: expected elements, got none", program_.path(),
                OneLine(name));
    return value;
  }

  const Program& program_;
  ir::Builder builder_;
  Layers layers_;
  KnownValues known_;
  OnnxContext context_;
  std::map<std::string, Value*> values_;  // null: without elements
  std::map<std::string, int64_t> symbols_;
  int64_t runs_ = 0;  // of nodes
};

ImportedInterface InterfaceOf(const Program& program) {
  ImportedInterface interface { .num_classes = program.num_classes() };
  const OnnxGraph& graph = program.graph();
  for (const OnnxInput& input : graph.inputs) {
    const DType dtype =
        OnnxDType(input.element_type,
                  fmt::format("{}: input {}", program.path(), input.name));
    interface.types.push_back({dtype, input.shape, {}});
    interface.inputs.push_back({input.name});
    for (const OnnxNode& node : graph.nodes) {
      if (node.type != "Gather" || node.inputs.size() < 2 ||
          node.inputs[1] != input.name) {
        continue;
      }
      const auto rows = graph.tensors.find(node.inputs[0]);
      if (rows == graph.tensors.end() || rows->second.type.rank() != 2)
        continue;
      interface.inputs.back().tokens = rows->second.type.shape[0];
    }
  }
  return interface;
}

CustomModel Import(const std::string& path, OnnxModel model) {
  const auto program = std::make_shared<const Program>(path, std::move(model));
  const ImportedInterface interface = InterfaceOf(*program);
  return TrainableModel(
      path, interface,
      [program, interface](ir::Graph& graph, Phase phase,
                           const ModelOptions& options) {
        GraphBuilder(*program, graph, phase, options).BuildTrained(interface);
      },
      [program] { return program->Weights(); });
}

}  // namespace

CustomModel ImportOnnx(const std::string& path) {
  return Import(path, ReadOnnx(path));
}

CustomModel ImportOnnx(const std::string& path, std::span<const uint8_t> file) {
  return Import(path, ParseOnnx(path, file));
}

ImportedProgram ImportOnnxProgram(const std::string& path,
                                  std::span<const uint8_t> file,
                                  const GivenTensor& given) {
  const Program program(path, ParseOnnx(path, file));
  ImportedProgram result{
      std::make_unique<ir::Graph>(std::filesystem::path(path).stem().string()),
      CopiesOf(program.Weights())};
  const ModelOptions options{.num_classes = program.num_classes()};
  GraphBuilder(program, *result.graph, Phase::kTrain, options)
      .BuildProgram(given);
  return result;
}

}  // namespace fusor::models
