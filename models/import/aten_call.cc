#include "models/import/aten_call.h"

#include <algorithm>
#include <numeric>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

void AtenCall::Throw(const std::string& message) const {
  std::string_view target = node_.target;
  constexpr std::string_view kPrefix = "torch.ops.";
  if (target.starts_with(kPrefix)) target.remove_prefix(kPrefix.size());
  ThrowError(ErrorCode::kGraph,
             OneLine(fmt::format("{}: {}{}: {}", context_.path, target,
                                 AtLocation(node_.location), message)));
}

void AtenCall::Reject(std::string_view name, const char* expected) const {
  Throw(fmt::format("argument {}: expected {}", name, expected));
}

const TorchArgument* AtenCall::Find(std::string_view name) {
  read_.emplace(name);
  for (const TorchArgument& argument : node_.inputs) {
    if (argument.name == name) return &argument;
  }
  return nullptr;
}

const TorchItem& AtenCall::One(std::string_view name) {
  const TorchArgument* argument = Find(name);
  if (argument == nullptr || argument->is_list) Reject(name, "one value");
  return argument->items[0];
}

bool AtenCall::Has(std::string_view name) {
  const TorchArgument* argument = Find(name);
  return argument != nullptr &&
         (argument->is_list ||
          !std::holds_alternative<std::monostate>(argument->items[0]));
}

bool AtenCall::IsTensor(std::string_view name) {
  return std::holds_alternative<TorchTensor>(One(name));
}

Value* AtenCall::TensorOf(std::string_view name, const TorchItem& item) const {
  const auto* tensor = std::get_if<TorchTensor>(&item);
  if (tensor == nullptr) Reject(name, "a tensor");
  Value* value = AsVector(context_.tensor(tensor->name));
  if (parts_.empty()) return value;
  // The item's number among the tensors.
  size_t number = 0;
  for (const TorchArgument& argument : node_.inputs) {
    for (const TorchItem& other : argument.items) {
      if (&other == &item) {
        const AtenPart part = parts_[std::min(number, parts_.size() - 1)];
        if (part == AtenPart::kWhole) return value;
        Builder& b = context_.layers.builder();
        if (context_.is_complex(tensor->name)) return PartOf(b, value, part);
        return part == AtenPart::kReal ? value : b.Zeros(value->type());
      }
      if (std::holds_alternative<TorchTensor>(other)) ++number;
    }
  }
  return value;
}

Value* AtenCall::AsVector(Value* value) const {
  return scalars_as_vectors_ && RankOf(value) == 0
             ? context_.layers.builder().Reshape(value, {1})
             : value;
}

std::string_view AtenCall::op() const {
  constexpr std::string_view kPrefix = "torch.ops.aten.";
  std::string_view target = node_.target;
  if (target.starts_with(kPrefix)) target.remove_prefix(kPrefix.size());
  return target;
}

bool AtenCall::IsComplex(std::string_view name) {
  const auto* tensor = std::get_if<TorchTensor>(&One(name));
  return tensor != nullptr && context_.is_complex(tensor->name);
}

std::vector<bool> AtenCall::ComplexTensors() const {
  std::vector<bool> found;
  for (const TorchArgument& argument : node_.inputs) {
    for (const TorchItem& item : argument.items) {
      const auto* tensor = std::get_if<TorchTensor>(&item);
      if (tensor != nullptr) {
        found.push_back(context_.is_complex(tensor->name));
      }
    }
  }
  return found;
}

Value* AtenCall::Tensor(std::string_view name) {
  const TorchItem& item = One(name);
  if (name == "self" && self_ != nullptr) return AsVector(self_);
  return TensorOf(name, item);
}

Value* AtenCall::OptionalTensor(std::string_view name) {
  return Has(name) ? Tensor(name) : nullptr;
}

std::vector<Value*> AtenCall::OptionalTensors(std::string_view name) {
  const TorchArgument* argument = Find(name);
  if (argument == nullptr) Reject(name, "tensors");
  std::vector<Value*> tensors;
  for (const TorchItem& item : argument->items) {
    const bool none = std::holds_alternative<std::monostate>(item);
    tensors.push_back(none ? nullptr : TensorOf(name, item));
  }
  return tensors;
}

std::vector<Value*> AtenCall::Tensors(std::string_view name) {
  std::vector<Value*> tensors = OptionalTensors(name);
  if (tensors.empty()) Reject(name, "one tensor or more");
  for (const Value* tensor : tensors) {
    if (tensor == nullptr) Reject(name, "tensors, not None");
  }
  return tensors;
}

int64_t AtenCall::IntOf(std::string_view name, const TorchItem& item) const {
  if (const auto* value = std::get_if<int64_t>(&item)) return *value;
  if (const auto* symbol = std::get_if<TorchSymbol>(&item)) {
    return context_.symbol(symbol->name);
  }
  Reject(name, "an integer");
}

int64_t AtenCall::Int(std::string_view name, std::optional<int64_t> fallback) {
  if (fallback && !Has(name)) return *fallback;
  return IntOf(name, One(name));
}

std::vector<int64_t> AtenCall::Ints(std::string_view name,
                                    std::vector<int64_t> fallback) {
  if (!Has(name)) return fallback;
  std::vector<int64_t> values;
  for (const TorchItem& item : Find(name)->items) {
    values.push_back(IntOf(name, item));
  }
  return values;
}

double AtenCall::Number(std::string_view name, std::optional<double> fallback) {
  if (fallback && !Has(name)) return *fallback;
  const TorchItem& item = One(name);
  if (const auto* value = std::get_if<double>(&item)) return *value;
  if (const auto* value = std::get_if<bool>(&item)) return *value ? 1 : 0;
  return static_cast<double>(IntOf(name, item));
}

std::vector<double> AtenCall::Numbers(std::string_view name) {
  const TorchArgument* argument = Find(name);
  if (argument == nullptr) Reject(name, "numbers");
  std::vector<double> values;
  for (const TorchItem& item : argument->items) {
    const auto* value = std::get_if<double>(&item);
    values.push_back(value != nullptr ? *value
                                      : static_cast<double>(IntOf(name, item)));
  }
  return values;
}

bool AtenCall::Bool(std::string_view name, bool fallback) {
  if (!Has(name)) return fallback;
  const auto* value = std::get_if<bool>(&One(name));
  if (value == nullptr) Reject(name, "a bool");
  return *value;
}

std::string AtenCall::Text(std::string_view name, std::string fallback) {
  if (!Has(name)) return fallback;
  const auto* value = std::get_if<std::string>(&One(name));
  if (value == nullptr) Reject(name, "a string");
  return *value;
}

DType AtenCall::DType(ir::DType fallback) {
  if (!Has("dtype")) return fallback;
  return TorchDType(Int("dtype"),
                    fmt::format("{}: {}{}", context_.path, node_.target,
                                AtLocation(node_.location)));
}

void AtenCall::CheckAllRead() const {
  // None of them affects a result. "out" is where it goes.
  constexpr std::string_view kIgnored[] = {"device", "cudnn_enabled",
                                           "cudnn_enable", "out"};
  for (const TorchArgument& argument : node_.inputs) {
    const bool ignored = std::find(std::begin(kIgnored), std::end(kIgnored),
                                   argument.name) != std::end(kIgnored);
    if (ignored || read_.contains(argument.name)) continue;
    for (const TorchItem& item : argument.items) {
      const auto* flag = std::get_if<bool>(&item);
      if (std::holds_alternative<std::monostate>(item) ||
          (flag != nullptr && !*flag)) {
        continue;
      }
      Throw(fmt::format("argument {}: this import has no such argument",
                        argument.name));
    }
  }
}

Value* PartOf(Builder& b, Value* x, AtenPart part) {
  Shape limit = x->type().shape;
  std::vector<int64_t> start(limit.size(), 0);
  start.back() = part == AtenPart::kReal ? 0 : 1;
  limit.back() = start.back() + 1;
  Value* y = b.Slice(x, start, limit);
  return b.Reshape(y, Shape(limit.begin(), limit.end() - 1));
}

Value* EmptyPart(Builder& b, ir::TensorType type) {
  Value* empty = b.Scalar(type.dtype, 0);
  empty->set_type(std::move(type));
  return empty;
}

int64_t DimOf(AtenCall& call, int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= rank) {
    call.Throw(fmt::format("dim {} of {} dimensions", dim, rank));
  }
  return dim < 0 ? dim + rank : dim;
}

int64_t DimArgument(AtenCall& call, const Value* x, std::string_view name,
                    std::optional<int64_t> fallback) {
  return DimOf(call, call.Int(name, fallback), RankOf(x));
}

std::vector<int64_t> ReducedDims(AtenCall& call, const Value* x) {
  std::vector<int64_t> dims = call.Ints("dim");
  if (dims.empty()) {
    dims.resize(static_cast<size_t>(RankOf(x)));
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

std::vector<int64_t> Repeated(std::vector<int64_t> values, size_t rank) {
  if (values.size() == 1) values.resize(rank, values[0]);
  return values;
}

namespace {

int Category(DType dtype) {
  return ir::IsFloat(dtype) ? 2 : dtype == DType::kBool ? 0 : 1;
}

}  // namespace

DType Promote(const Value* a, const Value* b) {
  const DType x = a->type().dtype;
  const DType y = b->type().dtype;
  if (x == y) return x;
  if (Category(x) != Category(y)) return Category(x) > Category(y) ? x : y;
  if (RankOf(a) > 0 && RankOf(b) == 0) return x;
  if (RankOf(b) > 0 && RankOf(a) == 0) return y;
  const bool halves = (x == DType::kF16 && y == DType::kBF16) ||
                      (x == DType::kBF16 && y == DType::kF16);
  if (halves) return DType::kF32;
  return ir::DTypeSize(x) > ir::DTypeSize(y) ? x : y;
}

void ToCommonDType(Builder& b, std::vector<Value*>& tensors) {
  Value* widest = tensors.at(0);
  for (Value* tensor : tensors) {
    widest = b.Cast(widest, Promote(widest, tensor));
  }
  for (Value*& tensor : tensors) {
    tensor = b.Cast(tensor, widest->type().dtype);
  }
}

Value* AsFloat(AtenCall& call, Value* x) {
  return ir::IsFloat(x->type().dtype) ? x : call.b().Cast(x, DType::kF32);
}
Value* FloatSelf(AtenCall& call) { return AsFloat(call, call.Tensor("self")); }

std::vector<Value*> WithBatch(
    AtenCall& call, Value* x, int64_t rank,
    const std::function<std::vector<Value*>(Value*)>& layer) {
  Shape shape = x->type().shape;
  if (std::ssize(shape) == rank) return layer(x);
  if (std::ssize(shape) != rank - 1) {
    call.Throw(fmt::format("expected rank {}, or {} without a batch, got {}",
                           rank, rank - 1, ToString(x->type())));
  }
  shape.insert(shape.begin(), 1);
  std::vector<Value*> results = layer(call.b().Reshape(x, shape));
  for (Value*& result : results) {
    const Shape& all = result->type().shape;
    result = call.b().Reshape(result, Shape(all.begin() + 1, all.end()));
  }
  return results;
}

}  // namespace fusor::models
