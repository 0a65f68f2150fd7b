#include "models/onnx/onnx_call.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::models {

using ir::Shape;
using ir::Value;
using Ints64 = std::vector<int64_t>;

void KnownValues::Set(const ir::Value* input, ir::Tensor tensor) {
  if (tensor.type.num_elements() > kMaxKnown) return;
  known_.insert_or_assign(input, std::move(tensor));
}

const ir::Tensor* KnownValues::Find(const ir::Value* value) {
  for (; next_ < graph_.nodes().size(); ++next_) {
    const ir::Node& node = *graph_.nodes()[next_];
    bool small = true;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      small = small && node.output(i)->type().num_elements() <= kMaxKnown;
    }
    std::vector<const ir::Tensor*> operands;
    for (const ir::Value* operand : node.inputs()) {
      const auto found = known_.find(operand);
      if (found != known_.end()) operands.push_back(&found->second);
    }
    if (!small || operands.size() != node.num_inputs()) continue;
    std::vector<ir::Tensor> results =
        InterpretNode(node, operands, ir::EvalMode::kTyped);
    for (size_t i = 0; i < results.size(); ++i) {
      known_.emplace(node.output(i), std::move(results[i]));
    }
  }
  const auto found = known_.find(value);
  return found == known_.end() ? nullptr : &found->second;
}

void OnnxCall::Throw(const std::string& message) const {
  ThrowError(ErrorCode::kGraph,
             OneLine(fmt::format("{}: {} at {}: {}", context_.path, node_.type,
                                 node_.name, message)));
}

bool OnnxCall::Has(size_t i) const {
  return i < node_.inputs.size() && !node_.inputs[i].empty();
}

const std::string& OnnxCall::Name(size_t i) const {
  if (!Has(i)) Throw(fmt::format("operand {}: expected a tensor, got none", i));
  return node_.inputs[i];
}

bool OnnxCall::IsEmpty(size_t i) const {
  return context_.tensor(Name(i)) == nullptr;
}

Value* OnnxCall::Tensor(size_t i) const {
  Value* value = context_.tensor(Name(i));
  if (value == nullptr) {
    Throw(
        fmt::format("operand {}, {}: expected elements, got none", i, Name(i)));
  }
  return value;
}

Value* OnnxCall::OptionalTensor(size_t i) const {
  return Has(i) ? Tensor(i) : nullptr;
}

std::vector<Value*> OnnxCall::Tensors() const {
  std::vector<Value*> tensors{Tensor(0)};
  for (size_t i = 1; i < num_inputs(); ++i) tensors.push_back(Tensor(i));
  return tensors;
}

bool OnnxCall::IsKnown(size_t i) const {
  return IsEmpty(i) || context_.known.Find(Tensor(i)) != nullptr;
}

std::vector<double> OnnxCall::KnownNumbers(size_t i) const {
  if (IsEmpty(i)) return {};
  const ir::Tensor* known = context_.known.Find(Tensor(i));
  if (known == nullptr) {
    Throw(
        fmt::format("operand {}, {}: expected a constant or a function of "
                    "shapes, got a tensor that is computed in the step",
                    i, Name(i)));
  }
  return known->data;
}

std::vector<int64_t> OnnxCall::KnownInts(size_t i) const {
  Ints64 values;
  for (const double number : KnownNumbers(i)) {
    // Limits of shapes are often the greatest integer.
    constexpr double kMost = 0x1p62;
    values.push_back(
        static_cast<int64_t>(std::clamp(std::trunc(number), -kMost, kMost)));
  }
  return values;
}

double OnnxCall::KnownNumber(size_t i) const {
  const std::vector<double> numbers = KnownNumbers(i);
  if (numbers.size() != 1) {
    Throw(fmt::format("operand {}, {}: expected one element, got {}", i,
                      Name(i), numbers.size()));
  }
  return numbers[0];
}

int64_t OnnxCall::KnownInt(size_t i) const {
  KnownNumber(i);
  return KnownInts(i)[0];
}

template <typename T>
const T* OnnxCall::Find(std::string_view name, const char* expected) {
  read_.emplace(name);
  const auto found = node_.attributes.find(std::string(name));
  if (found == node_.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) {
    Throw(fmt::format("attribute {}: expected {}", name, expected));
  }
  return value;
}

bool OnnxCall::HasAttribute(std::string_view name) {
  return node_.attributes.contains(std::string(name));
}

int64_t OnnxCall::Int(std::string_view name, std::optional<int64_t> fallback) {
  const int64_t* value = Find<int64_t>(name, "an integer");
  if (value == nullptr && !fallback) {
    Throw(fmt::format("attribute {}: expected an integer, got none", name));
  }
  return value == nullptr ? *fallback : *value;
}

std::vector<int64_t> OnnxCall::Ints(std::string_view name, Ints64 fallback) {
  const Ints64* values = Find<Ints64>(name, "integers");
  return values == nullptr ? std::move(fallback) : *values;
}

bool OnnxCall::Flag(std::string_view name, bool fallback) {
  return Int(name, fallback ? 1 : 0) != 0;
}

double OnnxCall::Float(std::string_view name, std::optional<double> fallback) {
  const double* value = Find<double>(name, "a number");
  if (value == nullptr && !fallback) {
    Throw(fmt::format("attribute {}: expected a number, got none", name));
  }
  return value == nullptr ? *fallback : *value;
}

std::vector<double> OnnxCall::Floats(std::string_view name) {
  const auto* values = Find<std::vector<double>>(name, "numbers");
  return values == nullptr ? std::vector<double>{} : *values;
}

std::string OnnxCall::Text(std::string_view name, std::string fallback) {
  const std::string* value = Find<std::string>(name, "text");
  return value == nullptr ? std::move(fallback) : *value;
}

std::string OnnxCall::Choice(std::string_view name,
                             std::initializer_list<std::string_view> choices) {
  std::string text = Text(name, std::string(*choices.begin()));
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
    Throw(fmt::format("attribute {}: expected {}, got {}", name,
                      fmt::join(choices, " or "), text));
  }
  return text;
}

std::vector<std::string> OnnxCall::Texts(std::string_view name) {
  const auto* values = Find<std::vector<std::string>>(name, "texts");
  return values == nullptr ? std::vector<std::string>{} : *values;
}

const ir::NamedTensor& OnnxCall::TensorAttribute(std::string_view name) {
  const auto* value = Find<ir::NamedTensor>(name, "a tensor");
  if (value == nullptr) {
    Throw(fmt::format("attribute {}: expected a tensor, got none", name));
  }
  return *value;
}

const OnnxGraph& OnnxCall::Body(std::string_view name) {
  const auto* body = Find<std::shared_ptr<const OnnxGraph>>(name, "a graph");
  if (body == nullptr) {
    Throw(fmt::format("attribute {}: expected a graph, got none", name));
  }
  return **body;
}

ir::DType OnnxCall::DType(std::string_view name, ir::DType fallback) {
  const int64_t* value = Find<int64_t>(name, "an integer");
  if (value == nullptr) return fallback;
  return OnnxDType(*value,
                   fmt::format("{}: {} at {}: attribute {}", context_.path,
                               node_.type, node_.name, name));
}

void OnnxCall::CheckAllRead() const {
  for (const auto& [name, value] : node_.attributes) {
    if (read_.contains(name)) continue;
    Throw(fmt::format("attribute {}: this import has no such attribute", name));
  }
}

int64_t AxisOf(OnnxCall& call, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    call.Throw(fmt::format("axis {} of {} dimensions", axis, rank));
  }
  return axis < 0 ? axis + rank : axis;
}

int64_t AxisAttribute(OnnxCall& call, const Value* x,
                      std::optional<int64_t> fallback) {
  return AxisOf(call, call.Int("axis", fallback), RankOf(x));
}

std::vector<int64_t> AxesOf(OnnxCall& call, const Value* x, size_t i) {
  Ints64 axes = call.Has(i) ? call.KnownInts(i) : call.Ints("axes");
  for (int64_t& axis : axes) axis = AxisOf(call, axis, RankOf(x));
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
    call.Throw("axes: expected each once");
  }
  return axes;
}

namespace {

// The greatest integer, which means "to the end", is not a double, and the next
// double would wrap around.
double AtMostGreatest(double value) {
  constexpr double kGreatest = 0x1p63 - 1024;
  return std::min(value, kGreatest);
}

}  // namespace

Value* OnnxConstant(ir::Builder& b, const ir::NamedTensor& tensor) {
  if (tensor.bytes.empty()) return nullptr;
  ir::Tensor values = ir::LoadTensor(tensor.type, tensor.bytes);
  if (tensor.type.dtype == ir::DType::kI64) {
    for (double& value : values.data) value = AtMostGreatest(value);
  }
  return b.Constant(tensor.type.dtype, tensor.type.shape,
                    std::move(values.data));
}

std::vector<int64_t> AllAxes(int64_t count) {
  Ints64 axes(static_cast<size_t>(count));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

Value* IntVector(OnnxCall& call, const Ints64& values) {
  std::vector<double> numbers;
  for (const int64_t value : values) {
    numbers.push_back(AtMostGreatest(static_cast<double>(value)));
  }
  const auto count = static_cast<int64_t>(values.size());
  return call.b().Constant(ir::DType::kI64, {count}, std::move(numbers));
}

Value* NormalizedIndex(OnnxCall& call, Value* index, int64_t extent) {
  const ir::DType dtype = index->type().dtype;
  if (ir::IsFloat(dtype) || dtype == ir::DType::kBool) {
    call.Throw("index: expected integers, got " + ToString(index->type()));
  }
  ir::Builder& b = call.b();
  index = b.Cast(index, ir::DType::kI64);
  return b.Select(b.Compare("lt", index, 0.0),
                  b.Plus(index, static_cast<double>(extent)), index);
}

Value* TakeAt(OnnxCall& call, Value* x, int64_t axis, const Ints64& positions) {
  return call.b().Take(
      x,
      call.b().Constant(ir::DType::kI32,
                        {static_cast<int64_t>(positions.size())},
                        {positions.begin(), positions.end()}),
      axis);
}

Value* Strided(OnnxCall& call, Value* x, int64_t axis, int64_t first,
               int64_t count, int64_t step) {
  const auto dim = static_cast<size_t>(axis);
  Ints64 start(ShapeOf(x).size(), 0);
  Shape limit = ShapeOf(x);
  Ints64 stride(limit.size(), 1);
  if (first == 0 && step == 1 && count == limit[dim]) return x;
  start[dim] = first;
  limit[dim] = first + (count - 1) * step + 1;
  stride[dim] = step;
  return call.b().Slice(x, start, limit, stride);
}

}  // namespace fusor::models
