#include "models/import/aten_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

// --- Arguments --------------------------------------------------------------

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
  return context_.tensor(tensor->name);
}

Value* AtenCall::Tensor(std::string_view name) {
  const TorchItem& item = One(name);
  if (name == "self" && self_ != nullptr) return self_;
  return TensorOf(name, item);
}

Value* AtenCall::OptionalTensor(std::string_view name) {
  return Has(name) ? Tensor(name) : nullptr;
}

std::vector<Value*> AtenCall::Tensors(std::string_view name) {
  const TorchArgument* argument = Find(name);
  if (argument == nullptr) Reject(name, "tensors");
  std::vector<Value*> tensors;
  for (const TorchItem& item : argument->items) {
    const bool none = std::holds_alternative<std::monostate>(item);
    tensors.push_back(none ? nullptr : TensorOf(name, item));
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
  // None of them affects a result.
  constexpr std::string_view kIgnored[] = {"device", "cudnn_enabled",
                                           "cudnn_enable"};
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

// --- Rows -------------------------------------------------------------------

namespace {

using Values = std::vector<Value*>;

const Shape& ShapeOf(const Value* value) { return value->type().shape; }
int64_t RankOf(const Value* value) {
  return static_cast<int64_t>(value->type().rank());
}

// Returns `dim` counted from the front.
int64_t DimOf(AtenCall& call, int64_t dim, int64_t rank) {
  if (dim < -rank || dim >= std::max<int64_t>(rank, 1)) {
    call.Throw(fmt::format("dim {}: expected {} to {}", dim, -rank, rank - 1));
  }
  return dim < 0 ? dim + rank : dim;
}
int64_t DimArgument(AtenCall& call, const Value* x, std::string_view name,
                    std::optional<int64_t> fallback = {}) {
  return DimOf(call, call.Int(name, fallback), RankOf(x));
}

// PyTorch's type promotion: bool < integers < floats, then the wider dtype. A
// scalar tensor does not widen a dtype of its own category.
int Category(DType dtype) {
  return ir::IsFloat(dtype) ? 2 : dtype == DType::kBool ? 0 : 1;
}
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

// Reads an operand that may be a number, as a tensor of dtype `like` or of the
// dtype that promotion gives.
Value* Operand(AtenCall& call, std::string_view name, Value* like) {
  if (call.IsTensor(name)) return call.Tensor(name);
  const double number = call.Number(name);
  DType dtype = like->type().dtype;
  if (!ir::IsFloat(dtype)) {
    if (number != std::floor(number)) {
      dtype = DType::kF32;
    } else if (dtype == DType::kBool) {
      dtype = DType::kI64;
    }
  }
  return call.b().Scalar(dtype, number);
}

struct Pair {
  Value* a;
  Value* b;
};
// Converts both operands to their common dtype.
Pair Promoted(AtenCall& call, Value* a, Value* b) {
  const DType dtype = Promote(a, b);
  return {call.b().Cast(a, dtype), call.b().Cast(b, dtype)};
}
Pair Operands(AtenCall& call) {
  Value* self = call.Tensor("self");
  return Promoted(call, self, Operand(call, "other", self));
}

// Returns x as a float, as functions of real numbers do for integers.
Value* AsFloat(AtenCall& call, Value* x) {
  return ir::IsFloat(x->type().dtype) ? x : call.b().Cast(x, DType::kF32);
}
Value* FloatSelf(AtenCall& call) { return AsFloat(call, call.Tensor("self")); }

template <Value* (Builder::*function)(Value*, ir::Where)>
Values Function(AtenCall& call) {
  return {(call.b().*function)(FloatSelf(call), {})};
}

template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values Arithmetic(AtenCall& call) {
  const Pair x = Operands(call);
  return {(call.b().*function)(x.a, x.b, {})};
}

template <Value* (Builder::*function)(Value*, Value*, ir::Where)>
Values WithAlpha(AtenCall& call) {
  const Pair x = Operands(call);
  Value* b = x.b;
  if (const double alpha = call.Number("alpha", 1); alpha != 1) {
    b = call.b().Times(b, alpha);
  }
  return {(call.b().*function)(x.a, b, {})};
}

Values Div(AtenCall& call) {
  Builder& b = call.b();
  const std::string mode = call.Text("rounding_mode", "");
  const Pair x = Operands(call);
  const DType dtype = x.a->type().dtype;
  if (mode.empty()) {
    return {b.Divide(AsFloat(call, x.a), AsFloat(call, x.b))};
  }
  if (mode != "floor") {
    call.Throw("rounding_mode " + mode + ": expected floor or none");
  }
  const DType exact = ir::IsFloat(dtype) ? dtype : DType::kF64;
  Value* ratio = b.Divide(b.Cast(x.a, exact), b.Cast(x.b, exact));
  return {b.Cast(b.Floor(ratio), dtype)};
}

Values Reciprocal(AtenCall& call) {
  Value* x = FloatSelf(call);
  return {call.b().Divide(call.b().ScalarLike(x, 1), x)};
}

Values Rsub(AtenCall& call) {
  const Pair x = Operands(call);
  return {call.b().Minus(x.b, x.a)};
}

Values PowScalar(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double exponent = call.Number("exponent");
  if (exponent == 2) return {b.Times(x, x)};
  if (exponent == 1) return {x};
  x = AsFloat(call, x);
  if (exponent == 0.5) return {b.Sqrt(x)};
  if (exponent == 3) return {b.Times(x, b.Times(x, x))};
  return {b.Pow(x, exponent)};
}

Values PowTensor(AtenCall& call) {
  Value* self = call.Tensor("self");
  const Pair x = Promoted(call, self, Operand(call, "exponent", self));
  return {call.b().Pow(AsFloat(call, x.a), AsFloat(call, x.b))};
}

template <char first, char second>
Values Compare(AtenCall& call) {
  const Pair x = Operands(call);
  return {call.b().Compare({first, second}, x.a, x.b)};
}

Value* AsBool(AtenCall& call, Value* x) {
  return call.b().Cast(x, DType::kBool);
}
Values And(AtenCall& call) {
  return {call.b().And(AsBool(call, call.Tensor("self")),
                       AsBool(call, call.Tensor("other")))};
}
Values Or(AtenCall& call) {
  return {call.b().Or(AsBool(call, call.Tensor("self")),
                      AsBool(call, call.Tensor("other")))};
}
Values Not(AtenCall& call) {
  return {call.b().Not(AsBool(call, call.Tensor("self")))};
}
// Bitwise operators on bools are logical; this IR has none on integers.
template <Values (*logical)(AtenCall&)>
Values Bitwise(AtenCall& call) {
  if (call.Tensor("self")->type().dtype != DType::kBool) {
    call.Throw("expected bools, got " + ToString(call.Tensor("self")->type()));
  }
  return logical(call);
}

Values Where(AtenCall& call) {
  Value* condition = AsBool(call, call.Tensor("condition"));
  const bool tensor = call.IsTensor("self");
  Value* other = call.IsTensor("other") ? call.Tensor("other") : nullptr;
  if (!tensor && other == nullptr) {
    call.Throw("expected a tensor among self and other");
  }
  Value* self = tensor ? call.Tensor("self") : Operand(call, "self", other);
  const Pair x = Promoted(call, self, Operand(call, "other", self));
  return {call.b().Select(condition, x.a, x.b)};
}

Values MaskedFill(AtenCall& call) {
  Value* self = call.Tensor("self");
  Value* value =
      call.b().Cast(Operand(call, "value", self), self->type().dtype);
  return {call.b().Select(AsBool(call, call.Tensor("mask")), value, self)};
}

Values Clamp(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  if (call.Has("min")) x = b.Maximum(x, Operand(call, "min", x));
  if (call.Has("max")) x = b.Minimum(x, Operand(call, "max", x));
  return {x};
}

// The gradient at both limits is 0.
Values Hardtanh(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double low = call.Number("min_val", -1);
  const double high = call.Number("max_val", 1);
  if (low == 0 && high == 6) return {b.Relu6(x)};
  Value* inside = b.And(b.Compare("gt", x, low), b.Compare("lt", x, high));
  return {b.Select(inside, x, b.StopGradient(b.Clamp(x, low, high)))};
}

// The gradient passes at -3 and 3, as in PyTorch.
Values Hardswish(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  return {b.Divide(b.Times(x, b.Clamp(b.Plus(x, 3.0), 0, 6)), 6.0)};
}
// The gradient at -3 and 3 is 0, as in PyTorch.
Values Hardsigmoid(AtenCall& call) {
  Builder& b = call.b();
  return {b.Divide(b.Relu6(b.Plus(call.Tensor("self"), 3.0)), 6.0)};
}

Values Gelu(AtenCall& call) {
  const std::string approximate = call.Text("approximate", "none");
  Value* x = call.Tensor("self");
  return {approximate == "tanh" ? call.b().GeluTanh(x) : call.b().Gelu(x)};
}

Values LeakyRelu(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double slope = call.Number("negative_slope", 0.01);
  return {b.Select(b.Compare("gt", x, 0.0), x, b.Times(x, slope))};
}

// Computes scale x for positive x, else scale alpha (exp(input_scale x) - 1).
Values Exponential(AtenCall& call, double alpha, double scale,
                   double input_scale) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* e = b.Exp(b.Times(b.Minimum(x, 0.0), input_scale));
  Value* negative = b.Times(b.Minus(e, 1.0), alpha * scale);
  return {b.Select(b.Compare("gt", x, 0.0), b.Times(x, scale), negative)};
}
Values Elu(AtenCall& call) {
  return Exponential(call, call.Number("alpha", 1), call.Number("scale", 1),
                     call.Number("input_scale", 1));
}
// Constants of Klambauer et al. 2017, as in ATen.
Values Selu(AtenCall& call) {
  return Exponential(call, 1.6732632423543772848, 1.0507009873554804934, 1);
}

Values Softplus(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double beta = call.Number("beta", 1);
  const double threshold = call.Number("threshold", 20);
  Value* linear = b.Compare("gt", b.Times(x, beta), threshold);
  return {b.Select(linear, x, b.Softplus(x, beta))};
}

Values Mish(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  return {b.Times(x, b.Tanh(b.Softplus(x)))};
}

// --- Normalisation, linear algebra ------------------------------------------

Values BatchNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const Shape shape = ShapeOf(x);
  if (shape.size() < 2)
    call.Throw("expected [N, C, ..], got " + ToString(x->type()));
  const ir::TensorType channels{DType::kF32, {shape[1]}, {}};
  const auto or_constant = [&](const char* name, double value) {
    Value* given = call.OptionalTensor(name);
    return given != nullptr ? given
                            : b.Constant(DType::kF32, channels.shape, {value});
  };
  Layers::NormState state;
  state.scale = or_constant("weight", 1);
  state.shift = or_constant("bias", 0);
  state.mean = call.OptionalTensor("running_mean");
  state.variance = call.OptionalTensor("running_var");
  // The phase decides; a layer whose statistics are fixed keeps them.
  const bool batch_statistics = call.Bool("training", false);
  const double momentum = call.Number("momentum", 0.1);
  const double epsilon = call.Number("eps", 1e-5);
  if (shape.size() != 4) {
    const int64_t rest = x->type().num_elements() / (shape[0] * shape[1]);
    x = b.Reshape(x, {shape[0], shape[1], rest, 1});
  }
  Value* y = nullptr;
  if (!batch_statistics && call.layers().training()) {
    y = b.BatchNormInference(x, state.scale, state.shift, state.mean,
                             state.variance, epsilon);
  } else {
    y = call.layers().BatchNorm(x, state, momentum, epsilon);
  }
  return {b.Reshape(y, shape)};
}

// Returns an optional affine parameter, or a constant of the same shape.
Value* Affine(AtenCall& call, const char* name, const Shape& shape,
              double value) {
  Value* given = call.OptionalTensor(name);
  return given != nullptr ? given
                          : call.b().Constant(DType::kF32, shape, {value});
}

Values LayerNorm(AtenCall& call) {
  const Shape shape = call.Ints("normalized_shape");
  return {call.b().LayerNorm(
      call.Tensor("input"), Affine(call, "weight", shape, 1),
      Affine(call, "bias", shape, 0), call.Number("eps", 1e-5))};
}

Values GroupNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const Shape shape = ShapeOf(x);
  const int64_t groups = call.Int("num_groups");
  if (shape.size() < 2 || groups < 1 || shape[1] % groups != 0) {
    call.Throw(fmt::format("{} groups of {}", groups, ToString(x->type())));
  }
  const int64_t size = x->type().num_elements() / (shape[0] * groups);
  const Shape flat{size};
  Value* y = b.LayerNorm(b.Reshape(x, {shape[0] * groups, size}),
                         b.Constant(x->type().dtype, flat, {1}),
                         b.Constant(x->type().dtype, flat, {0}),
                         call.Number("eps", 1e-5));
  y = b.Reshape(y, shape);
  const Shape channels{shape[1]};
  Value* scale = Affine(call, "weight", channels, 1);
  Value* shift = Affine(call, "bias", channels, 0);
  return {b.Plus(b.Times(y, b.BroadcastAlong(scale, y->type(), 1)),
                 b.BroadcastAlong(shift, y->type(), 1))};
}

// Repeats a single extent for height and width.
std::vector<int64_t> Both(std::vector<int64_t> values, size_t rank) {
  if (values.size() == 1) values.resize(rank, values[0]);
  return values;
}

Values Convolution(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  Value* weight = call.Tensor("weight");
  const bool one_d = RankOf(x) == 3;
  if (RankOf(x) != RankOf(weight) || (!one_d && RankOf(x) != 4)) {
    call.Throw(fmt::format("{} and {}: expected [N,C,H,W] and [O,I,H,W]",
                           ToString(x->type()), ToString(weight->type())));
  }
  if (call.Bool("transposed", false)) call.Throw("a transposed convolution");
  call.Ints("output_padding");  // of transposed convolutions only
  const size_t rank = one_d ? 1 : 2;
  auto stride = Both(call.Ints("stride", {1}), rank);
  auto padding = Both(call.Ints("padding", {0}), rank);
  auto dilation = Both(call.Ints("dilation", {1}), rank);
  if (stride.size() != rank || padding.size() != rank ||
      dilation.size() != rank) {
    call.Throw("stride, padding or dilation has a wrong number of extents");
  }
  if (one_d) {
    const auto widen = [&](Value* value) {
      const Shape& s = ShapeOf(value);
      return b.Reshape(value, {s[0], s[1], 1, s[2]});
    };
    x = widen(x);
    weight = widen(weight);
    stride.insert(stride.begin(), 1);
    padding.insert(padding.begin(), 0);
    dilation.insert(dilation.begin(), 1);
  }
  Value* y = b.Conv2d(x, weight, call.OptionalTensor("bias"),
                      {.stride_h = stride[0],
                       .stride_w = stride[1],
                       .pad_h = padding[0],
                       .pad_w = padding[1],
                       .dilation_h = dilation[0],
                       .dilation_w = dilation[1],
                       .groups = call.Int("groups", 1)});
  if (!one_d) return {y};
  const Shape& s = ShapeOf(y);
  return {b.Reshape(y, {s[0], s[1], s[3]})};
}

Values Linear(AtenCall& call) {
  return {call.b().Linear(call.Tensor("input"), call.Tensor("weight"),
                          call.OptionalTensor("bias"))};
}

Values Addmm(AtenCall& call) {
  Builder& b = call.b();
  Value* y = b.Matmul(call.Tensor("mat1"), call.Tensor("mat2"));
  Value* self = call.Tensor("self");
  if (const double alpha = call.Number("alpha", 1); alpha != 1) {
    y = b.Times(y, alpha);
  }
  if (const double beta = call.Number("beta", 1); beta != 1) {
    self = b.Times(self, beta);
  }
  return {b.Plus(y, self)};
}

template <const char* other>
Values Matmul(AtenCall& call) {
  return {call.b().Matmul(call.Tensor("self"), call.Tensor(other))};
}
constexpr char kOther[] = "other";
constexpr char kMat2[] = "mat2";

// q [..,L,E], k [..,S,E], v [..,S,V] -> [..,L,V].
Values Attention(AtenCall& call) {
  Builder& b = call.b();
  Value* q = call.Tensor("query");
  Value* k = call.Tensor("key");
  Value* v = call.Tensor("value");
  const double width = static_cast<double>(ShapeOf(q).back());
  const double scale = call.Number("scale", 1 / std::sqrt(width));
  Value* scores = b.Matmul(b.Times(q, scale), k, false, /*transpose_b=*/true);
  const auto masked = [&](Value* keep) {
    const double none = -std::numeric_limits<double>::infinity();
    return b.Select(keep, scores, b.ScalarLike(scores, none));
  };
  if (call.Bool("is_causal", false)) {
    const Shape& s = ShapeOf(scores);
    const Shape square{s[s.size() - 2], s.back()};
    scores = masked(b.Compare("ge", b.Iota(DType::kI32, square, 0),
                              b.Iota(DType::kI32, square, 1)));
  }
  if (Value* mask = call.OptionalTensor("attn_mask"); mask != nullptr) {
    scores = mask->type().dtype == DType::kBool ? masked(mask)
                                                : b.Plus(scores, mask);
  }
  Value* weights = b.Softmax(scores);
  weights = call.layers().Dropout(weights, call.Number("dropout_p", 0));
  return {b.Matmul(weights, v)};
}

// Two operands: transposes each to [batch.., free.., contracted..] and
// multiplies matrices.
Values Einsum(AtenCall& call) {
  Builder& b = call.b();
  std::string equation = call.Text("equation", "");
  std::erase(equation, ' ');
  call.Ints("path");  // the order of contractions
  const Values x = call.Tensors("tensors");
  const size_t comma = equation.find(',');
  const size_t arrow = equation.find("->");
  if (x.size() != 2 || comma == equation.npos || arrow == equation.npos ||
      comma > arrow || equation.find('.') != equation.npos) {
    call.Throw("equation " + equation +
               ": expected two operands, letters and ->");
  }
  const std::string in[2] = {equation.substr(0, comma),
                             equation.substr(comma + 1, arrow - comma - 1)};
  const std::string out = equation.substr(arrow + 2);
  std::map<char, int64_t> extents;
  std::string batch, contracted, free[2];
  for (int i = 0; i < 2; ++i) {
    if (static_cast<int64_t>(in[i].size()) != RankOf(x[i])) {
      call.Throw(fmt::format("equation {}: operand {} is {}", equation, i,
                             ToString(x[i]->type())));
    }
    for (size_t d = 0; d < in[i].size(); ++d) {
      const char letter = in[i][d];
      const int64_t extent = ShapeOf(x[i])[d];
      const bool fits = extents.emplace(letter, extent).first->second == extent;
      const bool shared = in[1 - i].find(letter) != std::string::npos;
      const bool kept = out.find(letter) != std::string::npos;
      if (!fits || in[i].find(letter) != d || (!shared && !kept)) {
        call.Throw("equation " + equation +
                   ": expected letters of one extent, once in each operand");
      }
      if (!shared) {
        free[i] += letter;
      } else if (i == 0) {
        (kept ? batch : contracted) += letter;
      }
    }
  }
  const auto shape = [&](std::initializer_list<std::string> groups) {
    Shape merged;
    for (const std::string& group : groups) {
      int64_t extent = 1;
      for (const char letter : group) extent *= extents.at(letter);
      merged.push_back(extent);
    }
    return merged;
  };
  const auto arranged = [&](Value* value, const std::string& from,
                            const std::string& to) {
    std::vector<int64_t> order;
    for (const char letter : to) {
      order.push_back(static_cast<int64_t>(from.find(letter)));
    }
    return b.Transpose(value, order);
  };
  Value* left = b.Reshape(arranged(x[0], in[0], batch + free[0] + contracted),
                          shape({batch, free[0], contracted}));
  Value* right = b.Reshape(arranged(x[1], in[1], batch + free[1] + contracted),
                           shape({batch, free[1], contracted}));
  Value* y = b.Matmul(left, right, false, /*transpose_b=*/true);
  const std::string now = batch + free[0] + free[1];
  if (out.size() != now.size()) {
    call.Throw("equation " + equation + ": a letter of the result is unknown");
  }
  Shape full;
  for (const char letter : now) full.push_back(extents.at(letter));
  return {arranged(b.Reshape(y, full), now, out)};
}

// --- Pooling ----------------------------------------------------------------

ir::Pool2dOptions PoolArguments(AtenCall& call, const Value* x) {
  if (RankOf(x) != 4) {
    call.Throw("expected [N,C,H,W], got " + ToString(x->type()));
  }
  const auto window = Both(call.Ints("kernel_size"), 2);
  auto stride = Both(call.Ints("stride"), 2);
  const auto pad = Both(call.Ints("padding", {0}), 2);
  if (stride.empty()) stride = window;
  if (window.size() != 2 || stride.size() != 2 || pad.size() != 2 ||
      std::min(stride[0], stride[1]) < 1 ||
      std::min(window[0], window[1]) < 1) {
    call.Throw("kernel_size, stride or padding: expected one or two extents");
  }
  for (const int64_t dilation : call.Ints("dilation", {1})) {
    if (dilation != 1) call.Throw("dilation: expected 1");
  }
  return {.window_h = window[0],
          .window_w = window[1],
          .stride_h = stride[0],
          .stride_w = stride[1],
          .pad_h = pad[0],
          .pad_w = pad[1]};
}

// Returns how much ceil_mode extends one dimension. As in PyTorch, the last
// window starts inside the input or its left padding.
int64_t CeilExtension(int64_t in, int64_t window, int64_t stride, int64_t pad) {
  const int64_t span = in + 2 * pad - window;
  int64_t steps = (span + stride - 1) / stride;
  if (steps * stride >= in + pad) --steps;
  return std::max<int64_t>(0, steps * stride - span);
}

Values MaxPool(AtenCall& call) {
  Value* x = call.Tensor("self");
  const ir::Pool2dOptions o = PoolArguments(call, x);
  if (call.Bool("ceil_mode", false)) {
    const Shape& s = ShapeOf(x);
    const int64_t h = CeilExtension(s[2], o.window_h, o.stride_h, o.pad_h);
    const int64_t w = CeilExtension(s[3], o.window_w, o.stride_w, o.pad_w);
    if (h > 0 || w > 0) {
      x = call.b().Pad(x, {0, 0, 0, 0}, {0, 0, h, w}, {0, 0, 0, 0},
                       -std::numeric_limits<double>::infinity());
    }
  }
  return {call.b().MaxPool2d(x, o)};
}

Values AvgPool(AtenCall& call) {
  Value* x = call.Tensor("self");
  ir::Pool2dOptions o = PoolArguments(call, x);
  o.count_include_pad = call.Bool("count_include_pad", true);
  if (call.Bool("ceil_mode", false)) {
    const Shape& s = ShapeOf(x);
    if (CeilExtension(s[2], o.window_h, o.stride_h, o.pad_h) > 0 ||
        CeilExtension(s[3], o.window_w, o.stride_w, o.pad_w) > 0) {
      call.Throw("ceil_mode: expected windows that end at the border");
    }
  }
  if (call.Has("divisor_override"))
    call.Throw("divisor_override: expected None");
  return {call.b().AvgPool2d(x, o)};
}

Values AdaptiveAvgPool(AtenCall& call) {
  const auto size = Both(call.Ints("output_size"), 2);
  if (size.size() != 2) call.Throw("output_size: expected one or two extents");
  return {call.b().AdaptiveAvgPool2d(call.Tensor("self"), size[0], size[1])};
}

// --- Reductions -------------------------------------------------------------

std::vector<int64_t> ReducedDims(AtenCall& call, const Value* x) {
  std::vector<int64_t> dims = call.Ints("dim");
  if (dims.empty()) {
    dims.resize(static_cast<size_t>(RankOf(x)));
    std::iota(dims.begin(), dims.end(), 0);
  }
  return dims;
}

template <Value* (Builder::*reduce)(Value*, std::vector<int64_t>, bool,
                                    ir::Where)>
Values Reduction(AtenCall& call) {
  Value* x = call.Tensor("self");
  DType dtype = x->type().dtype;
  constexpr bool kSums = reduce == &Builder::ReduceSum;
  if (kSums && !ir::IsFloat(dtype)) dtype = DType::kI64;
  x = call.b().Cast(x, call.DType(dtype));
  return {(call.b().*reduce)(x, ReducedDims(call, x),
                             call.Bool("keepdim", false), {})};
}

Values Variance(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const std::vector<int64_t> dims = ReducedDims(call, x);
  const bool keep = call.Bool("keepdim", false);
  double correction = call.Number("correction", 1);
  if (!call.Bool("unbiased", true)) correction = 0;
  Value* mean = b.ReduceMean(x, dims, /*keepdim=*/true);
  Value* centered = b.Minus(x, mean);
  Value* sum = b.ReduceSum(b.Times(centered, centered), dims, keep);
  const double count = static_cast<double>(x->type().num_elements() /
                                           mean->type().num_elements());
  return {b.Divide(sum, std::max(count - correction, 0.0))};
}

Values VectorNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double order = call.Number(call.Has("ord") ? "ord" : "p", 2);
  if (order != 2) call.Throw("expected the norm of order 2");
  return {b.Sqrt(b.ReduceSum(b.Times(x, x), ReducedDims(call, x),
                             call.Bool("keepdim", false)))};
}

Values Softmax(AtenCall& call) {
  Value* x = FloatSelf(call);
  x = call.b().Cast(x, call.DType(x->type().dtype));
  return {call.b().Softmax(x, call.Int("dim"))};
}
Values LogSoftmax(AtenCall& call) {
  Value* x = FloatSelf(call);
  x = call.b().Cast(x, call.DType(x->type().dtype));
  return {call.b().LogSoftmax(x, call.Int("dim"))};
}

// --- Shapes -----------------------------------------------------------------

// Replaces one -1 by what the number of elements leaves.
Shape Inferred(AtenCall& call, const Value* x, Shape shape) {
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (int64_t& extent : shape) {
    if (extent == -1 && unknown == nullptr) {
      unknown = &extent;
    } else if (extent < 1 || __builtin_mul_overflow(known, extent, &known)) {
      call.Throw(fmt::format("extent {}: expected 1 or more", extent));
    }
  }
  const int64_t elements = x->type().num_elements();
  if (unknown != nullptr) *unknown = elements / known;
  if (elements % known != 0 || (unknown == nullptr && known != elements)) {
    call.Throw(
        fmt::format("{} elements of {} for a shape of {}; an archive "
                    "of a fixed batch size has it in its shapes",
                    elements, ToString(x->type()), known));
  }
  return shape;
}

// Writes through a view that only changes the shape.
Value* WriteReshaped(AtenCall& call, Value* base, Value* part, size_t) {
  return call.b().Reshape(part, ShapeOf(base));
}

Values View(AtenCall& call) {
  Value* x = call.Tensor("self");
  const char* name = call.Has("shape") ? "shape" : "size";
  return {call.b().Reshape(x, Inferred(call, x, call.Ints(name)))};
}

Values Flatten(AtenCall& call) {
  Value* x = call.Tensor("self");
  const int64_t first = DimArgument(call, x, "start_dim", 0);
  const int64_t last = DimArgument(call, x, "end_dim", -1);
  Shape shape;
  for (int64_t i = 0; i < RankOf(x); ++i) {
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(i)];
    if (i > first && i <= last) {
      shape.back() *= extent;
    } else {
      shape.push_back(extent);
    }
  }
  if (shape.empty()) shape = {1};
  return {call.b().Reshape(x, shape)};
}

Values Unflatten(AtenCall& call) {
  Value* x = call.Tensor("self");
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim"));
  std::vector<int64_t> sizes = call.Ints("sizes");
  Shape shape = ShapeOf(x);
  int64_t known = 1;
  for (const int64_t size : sizes) known *= size == -1 ? 1 : size;
  for (int64_t& size : sizes) {
    if (size == -1 && known > 0) size = shape[dim] / known;
  }
  shape.erase(shape.begin() + static_cast<long>(dim));
  shape.insert(shape.begin() + static_cast<long>(dim), sizes.begin(),
               sizes.end());
  return {call.b().Reshape(x, Inferred(call, x, shape))};
}

Values Unsqueeze(AtenCall& call) {
  Value* x = call.Tensor("self");
  Shape shape = ShapeOf(x);
  const int64_t dim = DimOf(call, call.Int("dim"), RankOf(x) + 1);
  shape.insert(shape.begin() + dim, 1);
  return {call.b().Reshape(x, shape)};
}

Values Squeeze(AtenCall& call) {
  Value* x = call.Tensor("self");
  std::vector<int64_t> dims;
  const bool all = !call.Has("dim");
  if (!all) {
    for (const int64_t dim : call.Ints("dim")) {
      dims.push_back(DimOf(call, dim, RankOf(x)));
    }
  }
  Shape shape;
  for (int64_t i = 0; i < RankOf(x); ++i) {
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(i)];
    const bool chosen =
        all || std::find(dims.begin(), dims.end(), i) != dims.end();
    if (extent != 1 || !chosen) shape.push_back(extent);
  }
  return {call.b().Reshape(x, shape)};
}

// The permutation of a transposing operator: result dim i is operand dim [i].
std::vector<int64_t> PermutationOf(AtenCall& call, int64_t rank) {
  if (call.Has("dims")) {
    std::vector<int64_t> dims = call.Ints("dims");
    for (int64_t& dim : dims) dim = DimOf(call, dim, rank);
    return dims;
  }
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  int64_t a = 0;
  int64_t b = rank - 1;
  if (call.Has("dim0") || call.Has("axis0")) {
    a = DimOf(call, call.Int(call.Has("dim0") ? "dim0" : "axis0"), rank);
    b = DimOf(call, call.Int(call.Has("dim1") ? "dim1" : "axis1"), rank);
  }
  if (rank > 0) {
    std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
  }
  return order;
}
Values Permute(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {call.b().Transpose(x, PermutationOf(call, RankOf(x)))};
}
Value* WritePermuted(AtenCall& call, Value* base, Value* part, size_t) {
  const std::vector<int64_t> order = PermutationOf(call, RankOf(base));
  std::vector<int64_t> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return call.b().Transpose(part, inverse);
}

Values Same(AtenCall& call) { return {call.Tensor("self")}; }
Value* WriteSame(AtenCall&, Value*, Value* part, size_t) { return part; }

// A range of one dimension.
struct Range {
  size_t dim;
  int64_t start;
  int64_t end;
  int64_t step = 1;
};
Value* Part(AtenCall& call, Value* x, const Range& range) {
  const Shape& shape = ShapeOf(x);
  if (range.start < 0 || range.start >= range.end ||
      range.end > shape[range.dim] || range.step < 1) {
    call.Throw(fmt::format("range {} to {} by {} of {}", range.start, range.end,
                           range.step, ToString(x->type())));
  }
  std::vector<int64_t> start(shape.size(), 0);
  Shape limit = shape;
  std::vector<int64_t> stride(shape.size(), 1);
  start[range.dim] = range.start;
  limit[range.dim] = range.end;
  stride[range.dim] = range.step;
  if (range.start == 0 && range.end == shape[range.dim] && range.step == 1) {
    return x;
  }
  return call.b().Slice(x, start, limit, stride);
}
// Returns `base` with `part` in place of a range.
Value* Replaced(AtenCall& call, Value* base, Value* part, const Range& range) {
  if (range.step != 1) call.Throw("an in-place write to a range with a step");
  const int64_t extent = ShapeOf(base)[range.dim];
  Values pieces;
  if (range.start > 0) {
    pieces.push_back(Part(call, base, {range.dim, 0, range.start}));
  }
  pieces.push_back(part);
  if (range.end < extent) {
    pieces.push_back(Part(call, base, {range.dim, range.end, extent}));
  }
  return call.b().Concat(pieces, static_cast<int64_t>(range.dim));
}

Range SliceRange(AtenCall& call, const Value* x) {
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim", 0));
  const int64_t extent = ShapeOf(x)[dim];
  const auto bound = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent);
  };
  return {dim, bound(call.Int("start", 0)), bound(call.Int("end", extent)),
          call.Int("step", 1)};
}
Values Slice(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {Part(call, x, SliceRange(call, x))};
}
Value* WriteSlice(AtenCall& call, Value* base, Value* part, size_t) {
  return Replaced(call, base, part, SliceRange(call, base));
}

Range SelectRange(AtenCall& call, const Value* x) {
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim"));
  int64_t index = call.Int("index");
  if (index < 0) index += ShapeOf(x)[dim];
  return {dim, index, index + 1};
}
Values Select(AtenCall& call) {
  Value* x = call.Tensor("self");
  const Range range = SelectRange(call, x);
  Shape shape = ShapeOf(x);
  shape.erase(shape.begin() + static_cast<long>(range.dim));
  return {call.b().Reshape(Part(call, x, range), shape)};
}
Value* WriteSelect(AtenCall& call, Value* base, Value* part, size_t) {
  const Range range = SelectRange(call, base);
  Shape shape = ShapeOf(base);
  shape[range.dim] = 1;
  return Replaced(call, base, call.b().Reshape(part, shape), range);
}

// The ranges of chunk, split and unbind.
std::vector<Range> SplitRanges(AtenCall& call, const Value* x) {
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim", 0));
  const int64_t extent = ShapeOf(x)[dim];
  std::vector<int64_t> sizes;
  if (call.Has("split_sizes")) {
    sizes = call.Ints("split_sizes");
  } else {
    int64_t size = 1;
    if (call.Has("chunks")) {
      const int64_t chunks = std::max<int64_t>(call.Int("chunks"), 1);
      size = (extent + chunks - 1) / chunks;
    } else if (call.Has("split_size")) {
      size = std::max<int64_t>(call.Int("split_size"), 1);
    }
    for (int64_t at = 0; at < extent; at += size) {
      sizes.push_back(std::min(size, extent - at));
    }
  }
  std::vector<Range> ranges;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    if (size < 1 || size > extent - at) call.Throw("sizes exceed the extent");
    ranges.push_back({dim, at, at + size});
    at += size;
  }
  return ranges;
}
Values Split(AtenCall& call) {
  Value* x = call.Tensor("self");
  Values parts;
  for (const Range& range : SplitRanges(call, x)) {
    parts.push_back(Part(call, x, range));
  }
  return parts;
}
Value* WriteSplit(AtenCall& call, Value* base, Value* part, size_t index) {
  return Replaced(call, base, part, SplitRanges(call, base).at(index));
}
Values Unbind(AtenCall& call) {
  Value* x = call.Tensor("self");
  Values parts;
  for (const Range& range : SplitRanges(call, x)) {
    Shape shape = ShapeOf(x);
    shape.erase(shape.begin() + static_cast<long>(range.dim));
    parts.push_back(call.b().Reshape(Part(call, x, range), shape));
  }
  return parts;
}

Values Expand(AtenCall& call) {
  Value* x = call.Tensor("self");
  Shape shape =
      call.Has("other") ? ShapeOf(call.Tensor("other")) : call.Ints("size");
  const size_t added = shape.size() - std::min(shape.size(), ShapeOf(x).size());
  for (size_t i = added; i < shape.size(); ++i) {
    if (shape[i] == -1) shape[i] = ShapeOf(x)[i - added];
  }
  return {call.b().BroadcastTo(x, shape)};
}

// Operands of rank 1 and extent 0 are skipped in PyTorch; they can't exist.
Values Cat(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  for (Value*& part : parts) {
    part = call.b().Cast(part, Promote(part, parts[0]));
  }
  return {call.b().Concat(parts, call.Int("dim", 0))};
}

Values Stack(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  if (parts.empty()) call.Throw("expected tensors");
  const int64_t dim = DimOf(call, call.Int("dim", 0), RankOf(parts[0]) + 1);
  for (Value*& part : parts) {
    Shape shape = ShapeOf(part);
    shape.insert(shape.begin() + dim, 1);
    part = call.b().Reshape(part, shape);
  }
  return {call.b().Concat(parts, dim)};
}

// Pairs of low and high padding, last dimension first. Negative ones crop.
Values Pad(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (const std::string mode = call.Text("mode", "constant");
      mode != "constant") {
    call.Throw("mode " + mode + ": expected constant");
  }
  const std::vector<int64_t> pad = call.Ints("pad");
  const auto rank = static_cast<size_t>(RankOf(x));
  if (pad.size() % 2 != 0 || pad.size() > 2 * rank) {
    call.Throw("pad: expected two numbers for each of the last dimensions");
  }
  std::vector<int64_t> low(rank, 0), high(rank, 0), start(rank, 0);
  Shape limit = ShapeOf(x);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = rank - 1 - i;
    low[dim] = std::max<int64_t>(pad[2 * i], 0);
    high[dim] = std::max<int64_t>(pad[2 * i + 1], 0);
    start[dim] = std::max<int64_t>(-pad[2 * i], 0);
    limit[dim] -= std::max<int64_t>(-pad[2 * i + 1], 0);
  }
  if (limit != ShapeOf(x) || start != std::vector<int64_t>(rank, 0)) {
    x = call.b().Slice(x, start, limit);
  }
  const std::vector<int64_t> zeros(rank, 0);
  if (low == zeros && high == zeros) return {x};
  return {call.b().Pad(x, low, high, zeros, call.Number("value", 0))};
}

Values Roll(AtenCall& call) {
  Value* x = call.Tensor("self");
  const std::vector<int64_t> shifts = call.Ints("shifts");
  const std::vector<int64_t> dims = call.Ints("dims");
  if (shifts.size() != dims.size()) {
    call.Throw("expected as many shifts as dims");
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = static_cast<size_t>(DimOf(call, dims[i], RankOf(x)));
    const int64_t extent = ShapeOf(x)[dim];
    const int64_t shift = ((shifts[i] % extent) + extent) % extent;
    if (shift == 0) continue;
    x = call.b().Concat({Part(call, x, {dim, extent - shift, extent}),
                         Part(call, x, {dim, 0, extent - shift})},
                        static_cast<int64_t>(dim));
  }
  return {x};
}

Values Repeat(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const std::vector<int64_t> repeats = call.Ints("repeats");
  if (repeats.size() < ShapeOf(x).size()) call.Throw("repeats: too few");
  Shape shape(repeats.size() - ShapeOf(x).size(), 1);
  shape.insert(shape.end(), ShapeOf(x).begin(), ShapeOf(x).end());
  // [a, b] -> [1, a, 1, b] -> [r, a, s, b] -> [r a, s b].
  Shape apart, wide, merged;
  for (size_t i = 0; i < shape.size(); ++i) {
    apart.insert(apart.end(), {1, shape[i]});
    wide.insert(wide.end(), {repeats[i], shape[i]});
    merged.push_back(repeats[i] * shape[i]);
  }
  return {b.Reshape(b.BroadcastTo(b.Reshape(x, apart), wide), merged)};
}

// Looks rows of `table` [V, ..] up by `index`, as a product with one-hot rows.
Value* Lookup(AtenCall& call, Value* table, Value* index) {
  Builder& b = call.b();
  const Shape& rows = ShapeOf(table);
  const int64_t count = index->type().num_elements();
  const Shape hot{count, rows[0]};
  Value* wanted = b.Reshape(index, {count});
  const DType integers = wanted->type().dtype;
  if (integers != DType::kI32 && integers != DType::kI64) {
    call.Throw("index: expected integers, got " + ToString(index->type()));
  }
  Value* negative = b.Compare("lt", wanted, 0.0);
  wanted =
      b.Select(negative, b.Plus(wanted, static_cast<double>(rows[0])), wanted);
  Value* hits =
      b.Compare("eq", b.Iota(integers, hot, 1), b.Broadcast(wanted, hot, {0}));
  Value* flat =
      b.Reshape(table, {rows[0], table->type().num_elements() / rows[0]});
  if (!ir::IsFloat(table->type().dtype)) {
    call.Throw("expected a table of floats, got " + ToString(table->type()));
  }
  Value* found = b.Matmul(b.Cast(hits, table->type().dtype), flat);
  Shape shape = ShapeOf(index);
  shape.insert(shape.end(), rows.begin() + 1, rows.end());
  return b.Reshape(found, shape);
}

Values Index(AtenCall& call) {
  const Values indices = call.Tensors("indices");
  if (indices.size() != 1 || indices[0] == nullptr) {
    call.Throw("expected one index, of the first dimension");
  }
  return {Lookup(call, call.Tensor("self"), indices[0])};
}
Values Embedding(AtenCall& call) {
  if (call.Int("padding_idx", -1) != -1) {
    call.Throw("padding_idx: expected none");
  }
  return {Lookup(call, call.Tensor("weight"), call.Tensor("indices"))};
}

// --- Sources ----------------------------------------------------------------

template <const char* size_or_like, int value>
Values Filled(AtenCall& call) {
  const std::string_view kind = size_or_like;
  DType dtype = DType::kF32;
  Shape shape;
  if (kind != "size") {
    dtype = call.Tensor("self")->type().dtype;
    shape = ShapeOf(call.Tensor("self"));
  }
  if (kind != "like") shape = call.Ints("size");
  return {call.b().Constant(call.DType(dtype), shape, {value})};
}
constexpr char kSize[] = "size";    // a size, f32
constexpr char kLike[] = "like";    // shape and dtype of self
constexpr char kDType[] = "dtype";  // a size, dtype of self

Values Full(AtenCall& call) {
  const bool like = call.Has("self");
  DType dtype = like ? call.Tensor("self")->type().dtype : DType::kF32;
  const Shape shape = like ? ShapeOf(call.Tensor("self")) : call.Ints("size");
  return {
      call.b().Constant(call.DType(dtype), shape, {call.Number("fill_value")})};
}

Values ScalarTensor(AtenCall& call) {
  return {call.b().Scalar(call.DType(DType::kF32), call.Number("s"))};
}

Values Arange(AtenCall& call) {
  const double start = call.Number("start", 0);
  const double step = call.Number("step", 1);
  const double count = std::ceil((call.Number("end") - start) / step);
  if (!(count >= 1 && count <= 1e9)) {
    call.Throw(fmt::format("expected 1 to 1e9 elements, got {}", count));
  }
  Builder& b = call.b();
  const DType dtype = call.DType(DType::kI64);
  Value* index = b.Iota(dtype, {static_cast<int64_t>(count)}, 0);
  if (step != 1) index = b.Times(index, step);
  return {start == 0 ? index : b.Plus(index, start)};
}

template <bool lower>
Values Triangle(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t rank = RankOf(x);
  if (rank < 2) call.Throw("expected a matrix, got " + ToString(x->type()));
  Value* row = b.Iota(DType::kI64, ShapeOf(x), rank - 2);
  Value* column = b.Iota(DType::kI64, ShapeOf(x), rank - 1);
  row = b.Plus(row, static_cast<double>(call.Int("diagonal", 0)));
  Value* keep = b.Compare(lower ? "le" : "ge", column, row);
  return {b.Select(keep, x, b.Zeros(x->type()))};
}

Values Fill(AtenCall& call) {
  Value* self = call.Tensor("self");
  if (!call.IsTensor("value")) {
    return {call.b().ScalarLike(self, call.Number("value"))};
  }
  Value* value = call.b().Cast(call.Tensor("value"), self->type().dtype);
  return {call.b().BroadcastTo(value, ShapeOf(self))};
}

Values Copy(AtenCall& call) {
  Value* self = call.Tensor("self");
  Value* source = call.b().Cast(call.Tensor("src"), self->type().dtype);
  return {call.b().BroadcastTo(source, ShapeOf(self))};
}

Values Convert(AtenCall& call) {
  Value* x = call.Tensor("self");
  const DType dtype = call.Has("other") ? call.Tensor("other")->type().dtype
                                        : call.DType(x->type().dtype);
  call.Bool("copy", false);
  call.Bool("non_blocking", false);
  return {call.b().Cast(x, dtype)};
}

Values Dropout(AtenCall& call) {
  Value* x = call.Tensor(call.Has("self") ? "self" : "input");
  const double p = call.Number("p");
  if (!call.Bool("train", true)) return {x};
  return {call.layers().Dropout(x, p)};
}

// 1 with probability p, else 0. In evaluation its expectation, so that the
// usual division by p yields 1.
Values Bernoulli(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  const double p = call.Number("p", 0.5);
  if (!call.layers().training()) return {b.ScalarLike(self, p)};
  Value* below = b.Compare("lt", call.layers().Random(ShapeOf(self)), p);
  return {b.Cast(below, self->type().dtype)};
}

// --- Table ------------------------------------------------------------------

using enum AtenMemory;

constexpr AtenOp kOps[] = {
    // Elementwise
    {"abs.default", Function<&Builder::Abs>},
    {"add.Tensor", WithAlpha<&Builder::Plus>},
    {"add.Scalar", WithAlpha<&Builder::Plus>},
    {"bitwise_and.Tensor", Bitwise<And>},
    {"bitwise_not.default", Bitwise<Not>},
    {"bitwise_or.Tensor", Bitwise<Or>},
    {"clamp.default", Clamp},
    {"clamp_max.default", Clamp},
    {"clamp_min.default", Clamp},
    {"div.Tensor", Div},
    {"div.Scalar", Div},
    {"div.Tensor_mode", Div},
    {"div.Scalar_mode", Div},
    {"elu.default", Elu},
    {"eq.Scalar", Compare<'e', 'q'>},
    {"eq.Tensor", Compare<'e', 'q'>},
    {"erf.default", Function<&Builder::Erf>},
    {"exp.default", Function<&Builder::Exp>},
    {"floor.default", Function<&Builder::Floor>},
    {"ge.Scalar", Compare<'g', 'e'>},
    {"ge.Tensor", Compare<'g', 'e'>},
    {"gelu.default", Gelu},
    {"gt.Scalar", Compare<'g', 't'>},
    {"gt.Tensor", Compare<'g', 't'>},
    {"hardsigmoid.default", Hardsigmoid},
    {"hardswish.default", Hardswish},
    {"hardtanh.default", Hardtanh},
    {"le.Scalar", Compare<'l', 'e'>},
    {"le.Tensor", Compare<'l', 'e'>},
    {"leaky_relu.default", LeakyRelu},
    {"log.default", Function<&Builder::Log>},
    {"logical_and.default", And},
    {"logical_not.default", Not},
    {"logical_or.default", Or},
    {"lt.Scalar", Compare<'l', 't'>},
    {"lt.Tensor", Compare<'l', 't'>},
    {"masked_fill.Scalar", MaskedFill},
    {"masked_fill.Tensor", MaskedFill},
    {"maximum.default", Arithmetic<&Builder::Maximum>},
    {"minimum.default", Arithmetic<&Builder::Minimum>},
    {"mish.default", Mish},
    {"mul.Scalar", Arithmetic<&Builder::Times>},
    {"mul.Tensor", Arithmetic<&Builder::Times>},
    {"ne.Scalar", Compare<'n', 'e'>},
    {"ne.Tensor", Compare<'n', 'e'>},
    {"neg.default", Function<&Builder::Neg>},
    {"pow.Tensor_Scalar", PowScalar},
    {"pow.Tensor_Tensor", PowTensor},
    {"reciprocal.default", Reciprocal},
    {"relu.default", Function<&Builder::Relu>},
    {"relu6.default", Function<&Builder::Relu6>},
    {"rsqrt.default", Function<&Builder::Rsqrt>},
    {"rsub.Scalar", Rsub},
    {"selu.default", Selu},
    {"sigmoid.default", Function<&Builder::Sigmoid>},
    {"silu.default", Function<&Builder::Silu>},
    {"softplus.default", Softplus},
    {"sqrt.default", Function<&Builder::Sqrt>},
    {"sub.Scalar", WithAlpha<&Builder::Minus>},
    {"sub.Tensor", WithAlpha<&Builder::Minus>},
    {"tanh.default", Function<&Builder::Tanh>},
    {"where.ScalarOther", Where},
    {"where.ScalarSelf", Where},
    {"where.self", Where},
    // Normalisation, convolution, linear algebra
    {"addmm.default", Addmm},
    {"batch_norm.default", BatchNorm},
    {"bmm.default", Matmul<kMat2>},
    {"conv1d.default", Convolution},
    {"conv2d.default", Convolution},
    {"convolution.default", Convolution},
    {"einsum.default", Einsum},
    {"group_norm.default", GroupNorm},
    {"layer_norm.default", LayerNorm},
    {"linear.default", Linear},
    {"matmul.default", Matmul<kOther>},
    {"mm.default", Matmul<kMat2>},
    {"scaled_dot_product_attention.default", Attention},
    // Pooling, reductions
    {"adaptive_avg_pool2d.default", AdaptiveAvgPool},
    {"amax.default", Reduction<&Builder::ReduceMax>},
    {"amin.default", Reduction<&Builder::ReduceMin>},
    {"avg_pool2d.default", AvgPool},
    {"linalg_vector_norm.default", VectorNorm},
    {"log_softmax.int", LogSoftmax},
    {"max_pool2d.default", MaxPool},
    {"mean.default", Reduction<&Builder::ReduceMean>},
    {"mean.dim", Reduction<&Builder::ReduceMean>},
    {"softmax.int", Softmax},
    {"sum.default", Reduction<&Builder::ReduceSum>},
    {"sum.dim_IntList", Reduction<&Builder::ReduceSum>},
    {"var.correction", Variance},
    {"var.dim", Variance},
    // Views
    {"alias.default", Same, kView, WriteSame},
    {"chunk.default", Split, kView, WriteSplit},
    {"contiguous.default", Same, kMaybeView, WriteSame},
    {"detach.default", Function<&Builder::StopGradient>, kView},
    {"expand.default", Expand, kView},
    {"expand_as.default", Expand, kView},
    {"flatten.using_ints", Flatten, kMaybeView, WriteReshaped},
    {"permute.default", Permute, kView, WritePermuted},
    {"reshape.default", View, kMaybeView, WriteReshaped},
    {"select.int", Select, kView, WriteSelect},
    {"slice.Tensor", Slice, kView, WriteSlice},
    {"split.Tensor", Split, kView, WriteSplit},
    {"split_with_sizes.default", Split, kView, WriteSplit},
    {"squeeze.default", Squeeze, kView, WriteReshaped},
    {"squeeze.dim", Squeeze, kView, WriteReshaped},
    {"squeeze.dims", Squeeze, kView, WriteReshaped},
    {"swapaxes.default", Permute, kView, WritePermuted},
    {"t.default", Permute, kView, WritePermuted},
    {"transpose.int", Permute, kView, WritePermuted},
    {"unbind.int", Unbind, kView},
    {"unflatten.int", Unflatten, kView, WriteReshaped},
    {"unsqueeze.default", Unsqueeze, kView, WriteReshaped},
    {"view.default", View, kView, WriteReshaped},
    // Data movement
    {"_to_copy.default", Convert},
    {"cat.default", Cat},
    {"clone.default", Same},
    {"constant_pad_nd.default", Pad},
    {"copy.default", Copy},
    {"embedding.default", Embedding},
    {"index.Tensor", Index},
    {"pad.default", Pad},
    {"repeat.default", Repeat},
    {"roll.default", Roll},
    {"stack.default", Stack},
    {"to.dtype", Convert, kMaybeView},
    {"to.dtype_layout", Convert, kMaybeView},
    {"tril.default", Triangle<true>},
    {"triu.default", Triangle<false>},
    {"type_as.default", Convert, kMaybeView},
    // Sources
    {"arange.default", Arange},
    {"arange.start", Arange},
    {"arange.start_step", Arange},
    {"bernoulli.float", Bernoulli},
    {"bernoulli.p", Bernoulli},
    {"dropout.default", Dropout},
    {"empty.memory_format", Filled<kSize, 0>},
    {"empty_like.default", Filled<kLike, 0>},
    {"fill.Scalar", Fill},
    {"fill.Tensor", Fill},
    {"full.default", Full},
    {"full_like.default", Full},
    {"new_empty.default", Filled<kDType, 0>},
    {"new_ones.default", Filled<kDType, 1>},
    {"new_zeros.default", Filled<kDType, 0>},
    {"ones.default", Filled<kSize, 1>},
    {"ones_like.default", Filled<kLike, 1>},
    {"scalar_tensor.default", ScalarTensor},
    {"zero.default", Filled<kLike, 0>},
    {"zeros.default", Filled<kSize, 0>},
    {"zeros_like.default", Filled<kLike, 0>},
};

}  // namespace

const AtenOp* FindAtenOp(std::string_view name) {
  const auto* row = std::find_if(
      std::begin(kOps), std::end(kOps),
      [&](const AtenOp& candidate) { return candidate.name == name; });
  return row == std::end(kOps) ? nullptr : row;
}

}  // namespace fusor::models
