#include "models/import/torch_importer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "models/import/aten_ops.h"
#include "models/import/dense_loss.h"
#include "models/import/torch_archive.h"
#include "models/layers.h"

namespace fusor::models {
namespace {

using ir::DType;
using ir::InputRole;
using ir::Value;

constexpr std::string_view kAten = "torch.ops.aten.";
constexpr std::string_view kOperator = "_operator.";

// Returns the tensor that an argument refers to; "" if there is none.
std::string TensorName(const TorchNode& node, std::string_view argument) {
  for (const TorchArgument& input : node.inputs) {
    if (input.name != argument || input.is_list) continue;
    const auto* tensor = std::get_if<TorchTensor>(&input.items[0]);
    return tensor == nullptr ? "" : tensor->name;
  }
  return "";
}

// Returns the weights and biases of a recurrent layer's call: those that
// multiply inputs, those that multiply states, ..; none for other calls.
std::vector<std::string> RecurrentLayers(const TorchNode& node) {
  std::vector<std::string> names;
  for (const TorchArgument& input : node.inputs) {
    if (input.name != "params" || !input.is_list) continue;
    for (const TorchItem& item : input.items) {
      const auto* tensor = std::get_if<TorchTensor>(&item);
      if (tensor != nullptr) names.push_back(tensor->name);
    }
  }
  return names;
}

// An archive's program, and the roles of its parameters and buffers.
class Archive {
 public:
  Archive(std::string path, TorchProgram program)
      : path_(std::move(path)), program_(std::move(program)) {
    FUSOR_CHECK(!program_.outputs.empty(), kGraph,
                "{}: expected a result, a tensor, got none", path_);
    FindHeads();
    FindStates();
  }

  // A parameter or running statistic.
  struct State {
    InputRole role = InputRole::kBias;
    ir::Attrs init;
  };

  const std::string& path() const { return path_; }
  const TorchProgram& program() const { return program_; }
  // Names, in the program, of the tensors of the last layers.
  const std::vector<std::string>& heads() const { return heads_; }
  int64_t num_classes() const { return num_classes_; }
  // Null for a constant.
  const State* FindState(const std::string& name) const {
    const auto found = states_.find(name);
    return found == states_.end() ? nullptr : &found->second;
  }

 private:
  // Follows each result back to the last layer with a weight.
  void FindHeads() {
    std::map<std::string, const TorchNode*> producers;
    for (const TorchNode& node : program_.nodes) {
      for (const TorchArgument& output : node.outputs) {
        for (const TorchItem& item : output.items) {
          if (const auto* tensor = std::get_if<TorchTensor>(&item)) {
            producers[tensor->name] = &node;
          }
        }
      }
    }
    for (const std::string& output : program_.outputs) {
      std::string at = output;
      // A path visits each node once at most, unless the archive is damaged.
      for (size_t i = 0; i < program_.nodes.size(); ++i) {
        const auto found = producers.find(at);
        if (found == producers.end()) break;
        const TorchNode& node = *found->second;
        const std::string weight = TensorName(node, "weight");
        const bool layer = node.target.find(".linear.") != std::string::npos ||
                           node.target.find(".conv2d.") != std::string::npos;
        if (layer && !weight.empty()) {
          heads_.push_back(weight);
          heads_.push_back(TensorName(node, "bias"));
          break;
        }
        at = TensorName(node, "self");
        if (at.empty()) at = TensorName(node, "input");
      }
    }
    const auto logits = program_.types.find(program_.outputs[0]);
    if (logits == program_.types.end()) return;
    const ir::Shape& shape = logits->second.shape;
    if (shape.size() < 2) return;
    num_classes_ = std::max<int64_t>(shape[ClassDim(shape.size())], 0);
  }

  // Roles follow from the operators that use the tensors. Initial values are
  // PyTorch's defaults for such layers.
  void FindStates() {
    std::map<std::string, ir::Shape> parameters;
    for (const TorchInput& input : program_.inputs) {
      if (input.kind == TorchInputKind::kParameter) {
        parameters[input.name] = program_.tensors.at(input.target).type.shape;
      }
    }
    for (const auto& [name, shape] : parameters) {
      states_[name] = {shape.size() > 1 ? InputRole::kWeight : InputRole::kBias,
                       {{"init", std::string("normal")}, {"std", 0.02}}};
    }
    const auto constant = [](double value) -> ir::Attrs {
      return {{"init", std::string("constant")}, {"value", value}};
    };
    const auto set = [&](const std::string& name, InputRole role,
                         ir::Attrs init) {
      if (parameters.contains(name)) states_[name] = {role, std::move(init)};
    };
    for (const TorchNode& node : program_.nodes) {
      const std::string weight = TensorName(node, "weight");
      const std::string bias = TensorName(node, "bias");
      if (node.target.find("_norm") != std::string::npos) {
        set(weight, InputRole::kNormScale, constant(1));
        set(bias, InputRole::kNormShift, constant(0));
        for (const auto& [argument, value] :
             {std::pair("running_mean", 0.0), std::pair("running_var", 1.0)}) {
          const std::string name = TensorName(node, argument);
          if (name.empty()) continue;
          states_[name] = {InputRole::kStatistic, constant(value)};
        }
      } else if (const auto found = parameters.find(weight);
                 found != parameters.end()) {
        const ir::Shape& shape = found->second;
        const double fan_in = static_cast<double>(ir::NumElements(shape)) /
                              static_cast<double>(shape.empty() ? 1 : shape[0]);
        const ir::Attrs uniform = {{"init", std::string("uniform")},
                                   {"bound", 1 / std::sqrt(fan_in)}};
        set(weight, InputRole::kWeight, uniform);
        set(bias, InputRole::kBias, uniform);
      } else if (const std::vector<std::string> layers = RecurrentLayers(node);
                 layers.size() > 1 && parameters.contains(layers[1])) {
        const auto hidden =
            static_cast<double>(parameters.at(layers[1]).back());
        for (const std::string& name : layers) {
          if (!parameters.contains(name)) continue;
          states_[name].init = {{"init", std::string("uniform")},
                                {"bound", 1 / std::sqrt(hidden)}};
        }
      }
    }
  }

  std::string path_;
  TorchProgram program_;
  std::vector<std::string> heads_;
  int64_t num_classes_ = 0;
  std::map<std::string, State> states_;
};

// Returns the number of rows of the embedding that looks up an input; 0 if none
// does.
int64_t TokensOf(const TorchProgram& program, const std::string& input) {
  std::set<std::string> tokens{input};
  for (const TorchNode& node : program.nodes) {
    if (tokens.contains(TensorName(node, "indices")) &&
        node.target == "torch.ops.aten.embedding.default") {
      const auto weight = program.types.find(TensorName(node, "weight"));
      return weight == program.types.end() || weight->second.shape.empty()
                 ? 0
                 : std::max<int64_t>(weight->second.shape[0], 0);
    }
    // Tokens in another shape or dtype.
    const bool same = node.target.find(".view.") != std::string::npos ||
                      node.target.find(".reshape.") != std::string::npos ||
                      node.target.find(".to.") != std::string::npos ||
                      node.target.find(".clone.") != std::string::npos;
    if (!same || node.outputs.empty() ||
        !(tokens.contains(TensorName(node, "self")) ||
          tokens.contains(TensorName(node, "input")))) {
      continue;
    }
    for (const TorchItem& item : node.outputs[0].items) {
      if (const auto* tensor = std::get_if<TorchTensor>(&item)) {
        tokens.insert(tensor->name);
      }
    }
  }
  return 0;
}

ImportedInterface InterfaceOf(const Archive& archive) {
  const TorchProgram& program = archive.program();
  ImportedInterface interface { .num_classes = archive.num_classes() };
  for (const TorchInput& input : program.inputs) {
    if (input.kind != TorchInputKind::kUser) continue;
    const auto found = program.types.find(input.name);
    if (found == program.types.end()) continue;
    const TorchType& type = found->second;
    const DType dtype = TorchDType(type.scalar_type, archive.path());
    interface.types.push_back({dtype, type.shape, {}});
    interface.inputs.push_back(
        {input.name, ir::IsFloat(dtype) ? 0 : TokensOf(program, input.name)});
  }
  const auto result = program.types.find(program.outputs[0]);
  if (result != program.types.end()) {
    interface.rank = result->second.shape.size();
  }
  return interface;
}

// Runs a program's nodes on a graph. A tensor of the program is either a view
// of another tensor or has a value. Writing in place replaces that value.
class GraphBuilder {
 public:
  GraphBuilder(const Archive& archive, ir::Graph& graph, Phase phase,
               const ModelOptions& options)
      : archive_(archive),
        builder_(graph),
        layers_(builder_, phase, options),
        context_{layers_, archive.path(),
                 [this](const std::string& name) { return Read(name); },
                 [this](const std::string& name) { return Symbol(name); },
                 [this](const std::string& name) { return IsComplex(name); }} {}

  // A batch in, loss out.
  void BuildTrained(const ImportedInterface& interface) {
    Run([&](const TorchInput& input) {
      const auto own =
          std::ranges::find(interface.inputs, input.name, &ModelInput::name);
      FUSOR_CHECK(own != interface.inputs.end(), kGraph,
                  "{}: input {}: expected its type, got none", archive_.path(),
                  input.name);
      return AddInput(layers_, interface,
                      static_cast<size_t>(own - interface.inputs.begin()));
    });
    std::vector<Value*> results;
    for (const std::string& output : archive_.program().outputs) {
      results.push_back(Result(output));
    }
    AddResultLoss(layers_, archive_.path(), results);
    EraseEmptyParts();
  }

  // Tensors in, tensors out.
  void BuildProgram(const GivenTensor& given) {
    Run([&](const TorchInput& input) {
      const auto type = archive_.program().types.find(input.name);
      FUSOR_CHECK(type != archive_.program().types.end(), kGraph,
                  "{}: input {}: expected its type, got none", archive_.path(),
                  input.name);
      const ir::Shape& shape = given(input.name).type.shape;
      CheckGivenShape(archive_.path(), input.name, type->second.shape, shape);
      const DType dtype = TorchDType(type->second.scalar_type,
                                     archive_.path() + ": " + input.name);
      return builder_.graph().AddInput({dtype, shape, {}}, InputRole::kData,
                                       input.name);
    });
    int number = 0;
    for (const std::string& output : archive_.program().outputs) {
      builder_.graph().AddOutput(Result(output),
                                 fmt::format("output{}", number++));
    }
    EraseEmptyParts();
  }

 private:
  struct Tensor {
    Value* value = nullptr;  // null: unknown, see Write
    int64_t version = 0;     // writes so far
    // For views: the tensor that owns the memory, and how to compute it.
    size_t base = kNone;
    int64_t base_version = 0;
    const TorchNode* node = nullptr;
    const AtenOp* op = nullptr;
    size_t result = 0;
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // `user` returns the value of an input of forward().
  void Run(const std::function<Value*(const TorchInput&)>& user) {
    AddInputs(user);
    for (const TorchNode& node : archive_.program().nodes) {
      builder_.Inherit(node.location);
      const size_t before = builder_.graph().nodes().size();
      Run(node);
      if (node.keeps_precision) ir::KeepPrecision(builder_.graph(), before);
    }
    builder_.Inherit({});
  }

  // Erases the parts without elements that only concatenations read. Throws if
  // other operators or results have such tensors.
  void EraseEmptyParts() {
    ir::Graph& graph = builder_.graph();
    std::unordered_set<const Value*> outputs;
    for (const ir::Output& output : graph.outputs()) {
      outputs.insert(output.value);
    }
    std::vector<ir::Node*> empty;
    for (const auto& node : graph.nodes()) {
      const Value* value = node->output(0);
      if (value->type().num_elements() == 0 && value->uses().empty() &&
          !outputs.contains(value)) {
        empty.push_back(node.get());
      }
    }
    graph.EraseAll(empty);
    for (const auto& node : graph.nodes()) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        const ir::TensorType& type = node->output(i)->type();
        FUSOR_CHECK(type.num_elements() > 0, kGraph,
                    "{}: expected tensors with elements, got {}{}",
                    archive_.path(), ToString(type),
                    AtLocation(node->location()));
      }
    }
  }

  void AddInputs(const std::function<Value*(const TorchInput&)>& user) {
    const TorchProgram& program = archive_.program();
    for (const TorchInput& input : program.inputs) {
      if (input.kind == TorchInputKind::kUser) {
        FUSOR_CHECK(!IsComplex(input.name), kGraph,
                    "{}: input {}: expected real numbers, of which the model "
                    "makes complex ones by view_as_complex(), got complex ones",
                    archive_.path(), input.name);
        Define(input.name, user(input));
        continue;
      }
      if (!input.tied_to.empty()) {
        Define(input.name, builder_.graph().FindInput(input.tied_to));
        continue;
      }
      const ir::TensorSource& tensor = program.tensors.at(input.target);
      const Archive::State* state = archive_.FindState(input.name);
      if (state == nullptr) {
        Define(input.name, Constant(tensor));
        continue;
      }
      FUSOR_CHECK(tensor.type.num_elements() > 0, kGraph,
                  "{}: {}: expected elements, got {}", archive_.path(),
                  input.target, ToString(tensor.type));
      ir::Shape shape = tensor.type.shape;
      const int64_t classes = layers_.options().num_classes;
      if (archive_.num_classes() != 0 && archive_.num_classes() != classes &&
          std::find(archive_.heads().begin(), archive_.heads().end(),
                    input.name) != archive_.heads().end()) {
        shape[0] = classes;
      }
      Value* value = builder_.graph().AddInput(
          {DType::kF32, shape, {}}, state->role, input.target, state->init);
      Define(input.name, input.frozen && layers_.training()
                             ? builder_.StopGradient(value)
                             : value);
    }
  }

  Value* Constant(const ir::TensorSource& tensor) {
    if (tensor.type.num_elements() == 0) {
      return EmptyPart(builder_, tensor.type);
    }
    const std::vector<uint8_t> bytes = ir::ReadWhole(tensor);
    const ir::Tensor values = ir::LoadTensor(tensor.type, bytes.data());
    builder_.Inherit(ir::Location(tensor.name));
    return builder_.Constant(tensor.type.dtype, tensor.type.shape,
                             {values.data.begin(), values.data.end()});
  }

  void Run(const TorchNode& node) {
    AtenCall call(node, context_);
    if (RunSymbolic(node, call)) return;
    std::string name = node.target;
    if (name.starts_with(kAten)) name = name.substr(kAten.size());
    // Assertions about values and devices that export inserted.
    if (name.starts_with("_assert")) return;
    const AtenOp* op =
        HasComplex(node) ? FindComplexAtenOp(name) : FindAtenOp(name);
    std::string target;  // the tensor that the result replaces
    bool writes = false;
    if (const size_t dot = name.find('.'); op == nullptr && !HasComplex(node) &&
                                           dot != 0 &&
                                           dot != std::string::npos) {
      if (name.substr(dot) == ".out") {
        writes = true;
        target = TensorName(node, "out");
        op = FindAtenOp(name.substr(0, dot) + ".Tensor");
        if (op == nullptr) op = FindAtenOp(name.substr(0, dot) + ".default");
      } else if (name[dot - 1] == '_') {
        writes = true;
        target = Target(node);
        op = FindAtenOp(name.erase(dot - 1, 1));
      }
    }
    if (op == nullptr) {
      call.Throw(HasComplex(node) ? "unknown operator of complex numbers"
                                  : "unknown operator");
    }
    if (writes && target.empty()) call.Throw("expected a tensor to write to");
    const std::vector<std::string> names = ResultNames(node);
    const std::vector<Value*> results = Build(*op, node, call);
    call.CheckAllRead();
    if (names.size() != results.size()) {
      call.Throw(fmt::format("expected {} results, got {}", results.size(),
                             names.size()));
    }
    if (writes) {
      Value* value = results[0];
      const Value* old = Read(target);
      if (value->type().shape != old->type().shape) {
        call.Throw(fmt::format("in place on {}: the result is {}",
                               ToString(old->type()), ToString(value->type())));
      }
      Write(Id(target), builder_.Cast(value, old->type().dtype), call);
      ids_[names[0]] = Id(target);
      return;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      Define(names[i], results[i]);
      if (op->memory == AtenMemory::kNew) continue;
      Tensor& tensor = tensors_.back();
      tensor.base = Id(Target(node, i));
      tensor.base_version = tensors_[tensor.base].version;
      tensor.node = &node;
      tensor.op = op;
      tensor.result = i;
    }
  }

  std::vector<Value*> Build(const AtenOp& op, const TorchNode& node,
                            AtenCall& call) {
    if (!NamesDimOfScalar(node)) return op.build(call);
    call.ReadScalarsAsVectors();
    std::vector<Value*> results = op.build(call);
    const std::vector<std::string> names = ResultNames(node);
    for (size_t i = 0; i < std::min(results.size(), names.size()); ++i) {
      const auto type = archive_.program().types.find(names[i]);
      if (type != archive_.program().types.end() &&
          type->second.shape.empty()) {
        results[i] = builder_.Reshape(results[i], {});
      }
    }
    return results;
  }

  // Returns whether an operator names a dimension of a tensor that has none.
  bool NamesDimOfScalar(const TorchNode& node) {
    constexpr std::string_view kDims[] = {"dim", "dim0", "dim1"};
    const bool named = std::ranges::any_of(node.inputs, [&](const auto& a) {
      return std::ranges::find(kDims, a.name) != std::end(kDims) &&
             !a.items.empty() &&
             !std::holds_alternative<std::monostate>(a.items[0]);
    });
    const std::string self = Target(node);
    // unsqueeze() names a dimension of its result.
    return named && !self.empty() && RankOf(Read(self)) == 0 &&
           node.target.find("unsqueeze") == std::string::npos;
  }

  bool IsComplex(const std::string& name) const {
    const auto type = archive_.program().types.find(name);
    return type != archive_.program().types.end() &&
           IsTorchComplex(type->second.scalar_type);
  }

  // Returns whether an argument or a result is complex.
  bool HasComplex(const TorchNode& node) const {
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (const TorchArgument& argument : *list) {
        for (const TorchItem& item : argument.items) {
          const auto* tensor = std::get_if<TorchTensor>(&item);
          if (tensor != nullptr && IsComplex(tensor->name)) return true;
        }
      }
    }
    return false;
  }

  // Returns a result of forward().
  Value* Result(const std::string& name) {
    FUSOR_CHECK(!IsComplex(name), kGraph,
                "{}: result {}: expected real numbers, such as view_as_real() "
                "returns, got complex ones",
                archive_.path(), name);
    return Read(name);
  }

  // The tensor that an operator writes or that its result `index` views.
  static std::string Target(const TorchNode& node, size_t index = 0) {
    for (const char* argument : {"self", "input"}) {
      const std::string name = TensorName(node, argument);
      if (!name.empty()) return name;
    }
    // A list has one result per tensor.
    for (const TorchArgument& input : node.inputs) {
      if (input.name != "tensors" || index >= input.items.size()) continue;
      const auto* tensor = std::get_if<TorchTensor>(&input.items[index]);
      if (tensor != nullptr) return tensor->name;
    }
    return "";
  }

  static std::vector<std::string> ResultNames(const TorchNode& node) {
    std::vector<std::string> names;
    for (const TorchArgument& output : node.outputs) {
      for (const TorchItem& item : output.items) {
        const auto* tensor = std::get_if<TorchTensor>(&item);
        names.push_back(tensor == nullptr ? "" : tensor->name);
      }
    }
    return names;
  }

  // Integers computed from sizes. Overflow is an error.
  bool RunSymbolic(const TorchNode& node, AtenCall& call) {
    if (node.target == "torch.ops.aten.sym_size.int") {
      const Value* self = call.Tensor("self");
      const int64_t dim = call.Int("dim");
      if (dim < 0 || dim >= static_cast<int64_t>(self->type().rank())) {
        call.Throw(fmt::format("dim {} of {}", dim, ToString(self->type())));
      }
      SetSymbol(node, self->type().shape[static_cast<size_t>(dim)]);
      return true;
    }
    // A number that depends on values. Only assertions may read it.
    if (node.target == "torch.ops.aten.item.default") return true;
    if (node.target == "torch.sym_ite") return true;
    if (!node.target.starts_with(kOperator)) return false;
    const std::string name = node.target.substr(kOperator.size());
    if (name == "eq" || name == "ne" || name == "lt" || name == "le" ||
        name == "gt" || name == "ge") {
      return true;  // for assertions only
    }
    if (name == "getitem") {
      const std::vector<Value*> list = call.Tensors("a");
      const int64_t index = call.Int("b");
      if (index < 0 || index >= static_cast<int64_t>(list.size())) {
        call.Throw(fmt::format("item {} of {}", index, list.size()));
      }
      for (const std::string& result : ResultNames(node)) {
        Define(result, list[static_cast<size_t>(index)]);
      }
      return true;
    }
    const int64_t a = call.Int("a");
    const int64_t b = name == "neg" ? 0 : call.Int("b");
    int64_t value = 0;
    bool bad = false;
    if (name == "add") {
      bad = __builtin_add_overflow(a, b, &value);
    } else if (name == "sub") {
      bad = __builtin_sub_overflow(a, b, &value);
    } else if (name == "neg") {
      bad = __builtin_sub_overflow(int64_t{0}, a, &value);
    } else if (name == "mul") {
      bad = __builtin_mul_overflow(a, b, &value);
    } else if (name == "floordiv" || name == "mod") {
      // Python rounds the quotient down.
      bad = b <= 0;
      if (!bad) {
        const int64_t rest = ((a % b) + b) % b;
        value = name == "mod" ? rest : (a - rest) / b;
      }
    } else {
      call.Throw("unknown operator");
    }
    if (bad)
      call.Throw(fmt::format("{} of {} and {}: out of range", name, a, b));
    SetSymbol(node, value);
    return true;
  }

  void SetSymbol(const TorchNode& node, int64_t value) {
    for (const TorchArgument& output : node.outputs) {
      for (const TorchItem& item : output.items) {
        if (const auto* symbol = std::get_if<TorchSymbol>(&item)) {
          symbols_[symbol->name] = value;
        }
      }
    }
  }

  int64_t Symbol(const std::string& name) const {
    const auto found = symbols_.find(name);
    FUSOR_CHECK(found != symbols_.end(), kGraph,
                "{}: symbol {}: expected a size known here, got none",
                archive_.path(), name);
    return found->second;
  }

  void Define(const std::string& name, Value* value) {
    const ir::Shape& shape = value->type().shape;
    FUSOR_CHECK(!IsComplex(name) || (!shape.empty() && shape.back() == 2),
                kGraph,
                "{}: tensor {}: expected real and imaginary parts, [..,2], got "
                "{}",
                archive_.path(), name, ToString(value->type()));
    ids_[name] = tensors_.size();
    tensors_.push_back({.value = value});
  }

  size_t Id(const std::string& name) const {
    const auto found = ids_.find(name);
    FUSOR_CHECK(found != ids_.end(), kGraph,
                "{}: tensor {}: expected one defined before its use, got none",
                archive_.path(), name);
    return found->second;
  }

  Value* Read(const std::string& name) {
    const size_t id = Id(name);
    Refresh(id);
    FUSOR_CHECK(tensors_[id].value != nullptr, kGraph,
                "{}: tensor {}: read after a write in place to a reshaped "
                "tensor, which is a copy or not depending on strides: expected "
                "clone() in the model",
                archive_.path(), name);
    return tensors_[id].value;
  }

  // Recomputes a view if the tensor that it views was written since.
  void Refresh(size_t id) {
    const size_t base = tensors_[id].base;
    if (base == kNone) return;
    Refresh(base);
    Tensor& tensor = tensors_[id];
    if (tensors_[base].version == tensor.base_version) return;
    tensor.base_version = tensors_[base].version;
    ++tensor.version;
    tensor.value = nullptr;
    if (tensors_[base].value == nullptr ||
        tensor.op->memory == AtenMemory::kMaybeView) {
      return;
    }
    AtenCall call(*tensor.node, context_);
    call.ReplaceSelf(tensors_[base].value);
    tensor.value = Build(*tensor.op, *tensor.node, call).at(tensor.result);
  }

  void Write(size_t id, Value* value, const AtenCall& writer) {
    Tensor& tensor = tensors_[id];
    tensor.value = value;
    ++tensor.version;
    if (tensor.base == kNone) return;
    Tensor& base = tensors_[tensor.base];
    if (tensor.op->memory == AtenMemory::kMaybeView) {
      base.value = nullptr;
      ++base.version;
    } else {
      if (tensor.op->write == nullptr) {
        writer.Throw("a write in place to a result of " +
                     std::string(tensor.op->name));
      }
      AtenCall call(*tensor.node, context_);
      Write(tensor.base,
            tensor.op->write(call, base.value, value, tensor.result), writer);
    }
    tensor.base_version = tensors_[tensor.base].version;
  }

  const Archive& archive_;
  ir::Builder builder_;
  Layers layers_;
  AtenContext context_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t> ids_;  // several names may share a tensor
  std::map<std::string, int64_t> symbols_;
};

std::vector<ir::TensorSource> Weights(const Archive& archive) {
  std::vector<ir::TensorSource> weights;
  for (const TorchInput& input : archive.program().inputs) {
    if (archive.FindState(input.name) == nullptr || !input.tied_to.empty()) {
      continue;
    }
    weights.push_back(archive.program().tensors.at(input.target));
  }
  return weights;
}

CustomModel Import(Archive read) {
  const auto archive = std::make_shared<const Archive>(std::move(read));
  const ImportedInterface interface = InterfaceOf(*archive);
  return TrainableModel(
      archive->path(), interface,
      [archive, interface](ir::Graph& graph, Phase phase,
                           const ModelOptions& options) {
        GraphBuilder(*archive, graph, phase, options).BuildTrained(interface);
      },
      [archive] { return Weights(*archive); });
}

}  // namespace

CustomModel ImportTorch(const std::string& path) {
  return Import({path, ReadTorchArchive(path)});
}

CustomModel ImportTorch(const std::string& path,
                        std::span<const uint8_t> file) {
  return Import({path, ReadTorchArchive(path, file)});
}

ImportedProgram ImportTorchProgram(const std::string& path,
                                   std::span<const uint8_t> file,
                                   const GivenTensor& given) {
  const Archive archive(path, ReadTorchArchive(path, file));
  ImportedProgram result{
      std::make_unique<ir::Graph>(std::filesystem::path(path).stem().string()),
      CopiesOf(Weights(archive))};
  const ModelOptions options{.num_classes = archive.num_classes()};
  GraphBuilder(archive, *result.graph, Phase::kTrain, options)
      .BuildProgram(given);
  return result;
}

}  // namespace fusor::models
