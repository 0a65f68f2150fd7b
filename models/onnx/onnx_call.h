#pragma once

// One call of an ONNX operator, with its operands and attributes.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/interpreter/interpreter.h"
#include "models/layers.h"
#include "models/onnx/onnx_model.h"

namespace fusor::models {

// Values that follow from constants alone, such as a shape that a model
// computes. Finds them while a builder appends to the graph.
class KnownValues {
 public:
  // `graph` must outlive this object and only grow.
  explicit KnownValues(const ir::Graph& graph) : graph_(graph) {}

  // Declares the value of an input. Larger tensors than kMaxKnown are ignored.
  void Set(const ir::Value* input, ir::Tensor tensor);
  // Returns null if the value is unknown or large. Valid until the next call.
  const ir::Tensor* Find(const ir::Value* value);

 private:
  // In elements: enough for every shape, few enough to be cheap.
  static constexpr int64_t kMaxKnown = 1024;

  const ir::Graph& graph_;
  size_t next_ = 0;  // the first node that was not visited
  std::unordered_map<const ir::Value*, ir::Tensor> known_;
};

// Looks up the values of names in a node.
struct OnnxContext {
  Layers& layers;
  const std::string& path;  // of the model, for messages
  int64_t opset;
  KnownValues& known;
  // Null for a tensor without elements, which this IR doesn't have.
  std::function<ir::Value*(const std::string&)> tensor;
  // Runs a body on its inputs and returns its results, null without elements.
  std::function<std::vector<ir::Value*>(const OnnxGraph&,
                                        const std::vector<ir::Value*>&)>
      run;
};

// One call of an operator. Operands have numbers, attributes the names of
// ONNX's documentation. Functions throw kGraph, with one line that names
// operator and node, if an operand or attribute is wrong.
class OnnxCall {
 public:
  OnnxCall(const OnnxNode& node, const OnnxContext& context)
      : node_(node), context_(context) {}

  ir::Builder& b() { return context_.layers.builder(); }
  Layers& layers() { return context_.layers; }
  const OnnxContext& context() const { return context_; }
  int64_t opset() const { return context_.opset; }
  size_t num_inputs() const { return node_.inputs.size(); }
  // True if a later node or a result may read output `i`.
  bool IsUsed(size_t i) const {
    return i < node_.outputs.size() && !node_.outputs[i].empty();
  }
  size_t num_outputs() const { return node_.outputs.size(); }

  // --- Operands --------------------------------------------------------------
  // False if the operand is absent.
  bool Has(size_t i) const;
  // True if it has no elements.
  bool IsEmpty(size_t i) const;
  ir::Value* Tensor(size_t i) const;
  ir::Value* OptionalTensor(size_t i) const;  // may be null
  // Returns all operands, one or more.
  std::vector<ir::Value*> Tensors() const;
  // Return whether the operand's value is known without running the model (a
  // constant or a function of shapes), and the value; {} for a tensor without
  // elements.
  bool IsKnown(size_t i) const;
  std::vector<double> KnownNumbers(size_t i) const;
  std::vector<int64_t> KnownInts(size_t i) const;
  double KnownNumber(size_t i) const;  // of one element
  int64_t KnownInt(size_t i) const;

  // --- Attributes ------------------------------------------------------------
  bool HasAttribute(std::string_view name);
  int64_t Int(std::string_view name, std::optional<int64_t> fallback = {});
  std::vector<int64_t> Ints(std::string_view name,
                            std::vector<int64_t> fallback = {});
  bool Flag(std::string_view name, bool fallback);
  double Float(std::string_view name, std::optional<double> fallback = {});
  std::vector<double> Floats(std::string_view name);
  std::string Text(std::string_view name, std::string fallback);
  // Returns one of `choices`; by default the first.
  std::string Choice(std::string_view name,
                     std::initializer_list<std::string_view> choices);
  std::vector<std::string> Texts(std::string_view name);
  const ir::NamedTensor& TensorAttribute(std::string_view name);
  const OnnxGraph& Body(std::string_view name);
  // Returns the attribute `name` as a dtype.
  ir::DType DType(std::string_view name, ir::DType fallback);

  [[noreturn]] void Throw(const std::string& message) const;
  // Throws if an attribute was not read.
  void CheckAllRead() const;

 private:
  // Returns null if the attribute is absent.
  template <typename T>
  const T* Find(std::string_view name, const char* expected);
  const std::string& Name(size_t i) const;

  const OnnxNode& node_;
  const OnnxContext& context_;
  std::set<std::string, std::less<>> read_;
};

// --- What several families of operators share --------------------------------

using OnnxResults = std::vector<ir::Value*>;  // null: without elements

// Returns `axis` counted from the front; throws if it is out of range.
int64_t AxisOf(OnnxCall& call, int64_t axis, int64_t rank);
// Returns AxisOf the attribute "axis".
int64_t AxisAttribute(OnnxCall& call, const ir::Value* x,
                      std::optional<int64_t> fallback = {});
// Returns the axes of operand `i` (before `opset`: of the attribute "axes") in
// increasing order; {} if absent.
std::vector<int64_t> AxesOf(OnnxCall& call, const ir::Value* x, size_t i);
// Returns null for a tensor without elements.
ir::Value* OnnxConstant(ir::Builder& b, const ir::NamedTensor& tensor);
// 0, 1, ..., count - 1.
std::vector<int64_t> AllAxes(int64_t count);
// Returns a constant vector of i64.
ir::Value* IntVector(OnnxCall& call, const std::vector<int64_t>& values);
// Returns an integer index as i64; converts negative elements, which count from
// the end.
ir::Value* NormalizedIndex(OnnxCall& call, ir::Value* index, int64_t extent);
// Reads x along `axis` at `positions`.
ir::Value* TakeAt(OnnxCall& call, ir::Value* x, int64_t axis,
                  const std::vector<int64_t>& positions);
// Reads elements first, first + step, ... of x along `axis`.
ir::Value* Strided(OnnxCall& call, ir::Value* x, int64_t axis, int64_t first,
                   int64_t count, int64_t step);

}  // namespace fusor::models
