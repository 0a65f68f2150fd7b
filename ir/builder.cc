#include "ir/builder.h"

#include <algorithm>
#include <numeric>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {

Builder::Scope::Scope(Builder& builder, const std::string& name)
    : builder_(builder), saved_(builder.location_) {
  if (!builder_.location_.empty()) builder_.location_ += ".";
  builder_.location_ += name;
}

Builder::Scope::~Scope() { builder_.location_ = std::move(saved_); }

Builder::Layer::Layer(Builder& builder, Where at)
    : builder_(builder), outermost_(!builder.source_.has_value()) {
  if (outermost_) builder_.source_ = at.line();
}

Builder::Layer::~Layer() {
  if (outermost_) builder_.source_.reset();
}

void Builder::Inherit(const Location& origin) {
  location_ = origin.path;
  source_ = origin.source;
}

Location Builder::Here(Where at) const {
  return {location_, source_ ? *source_ : at.line()};
}

Node* Builder::Add(std::string_view op, std::vector<Value*> inputs, Attrs attrs,
                   Where at) {
  return graph_.AddNode(op, std::move(inputs), std::move(attrs), Here(at),
                        insertion_point_);
}

namespace {

// numpy's; nothing where the shapes do not fit.
std::optional<Shape> CommonShape(const Shape& a, const Shape& b) {
  Shape common(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < common.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    common[common.size() - 1 - i] = x == 1 ? y : x;
  }
  return common;
}

}  // namespace

Value* Builder::Binary(std::string_view op, Value* a, Value* b, Attrs attrs,
                       Where at) {
  const Layer layer(*this, at);
  if (a->type().shape != b->type().shape) {
    const auto common = CommonShape(a->type().shape, b->type().shape);
    FUSOR_CHECK(common, kGraph, "{}({}, {}){}: the shapes do not broadcast", op,
                ToString(a->type()), ToString(b->type()), AtLocation(Here(at)));
    const Layout& layout =
        a->type().shape == *common ? a->type().layout : b->type().layout;
    a = BroadcastTo(a, *common);
    b = BroadcastTo(b, *common);
    for (Value* side : {a, b}) {  // a fresh broadcast takes the other's layout
      if (side->type().layout == layout) continue;
      FUSOR_ASSERT(side->producer() != nullptr, "{}: mixed layouts", op);
      TensorType type = side->type();
      type.layout = layout;
      side->set_type(type);
    }
  }
  return Add(op, {a, b}, std::move(attrs))->output();
}

Value* Builder::Cast(Value* x, DType dtype, Where at) {
  if (x->type().dtype == dtype) return x;
  return Add("cast", {x}, {{"dtype", std::string(DTypeName(dtype))}}, at)
      ->output();
}

Value* Builder::Compare(std::string direction, Value* a, Value* b, Where at) {
  const Layer layer(*this, at);
  return Binary("compare", a, b, {{"direction", std::move(direction)}});
}

Value* Builder::Select(Value* predicate, Value* if_true, Value* if_false,
                       Where at) {
  return Add("select", {predicate, if_true, if_false}, {}, at)->output();
}

Value* Builder::Constant(DType dtype, Shape shape, std::vector<double> values,
                         Where at) {
  if (!IsFloat(dtype)) {
    for (double& value : values) value = RoundTo(dtype, value);
  }
  return Add("constant", {},
             {{"dtype", std::string(DTypeName(dtype))},
              {"shape", std::move(shape)},
              {"value", std::move(values)}},
             at)
      ->output();
}

Value* Builder::Scalar(DType dtype, double value, Where at) {
  const Layer layer(*this, at);
  return Constant(dtype, {}, {value});
}

// A splat of the operand's own shape and layout, so that no broadcast node is
// needed; it costs nothing in a kernel.
Value* Builder::ScalarLike(Value* like, double value, Where at) {
  const Layer layer(*this, at);
  Value* splat = Constant(like->type().dtype, like->type().shape, {value});
  splat->set_type(like->type());
  return splat;
}

Value* Builder::Zeros(const TensorType& type, Where at) {
  const Layer layer(*this, at);
  Value* zeros = Constant(type.dtype, type.shape, {0});
  zeros->set_type(type);
  return zeros;
}

Value* Builder::Iota(DType dtype, Shape shape, int64_t dim, Where at) {
  return Add("iota", {},
             {{"dtype", std::string(DTypeName(dtype))},
              {"shape", std::move(shape)},
              {"dim", dim}},
             at)
      ->output();
}

Value* Builder::Random(Value* key, Value* step, Shape shape, Where at) {
  const Layer layer(*this, at);
  int64_t site = 0;
  for (const auto& node : graph_.nodes()) {
    if (node->attrs().Has("site")) {
      site = std::max(site, node->attrs().Int("site") + 1);
    }
  }
  return Add("random", {key, step},
             {{"shape", std::move(shape)}, {"site", site}})
      ->output();
}

Value* Builder::Broadcast(Value* x, Shape shape, std::vector<int64_t> dims,
                          Where at) {
  if (x->type().shape == shape) return x;
  return Add("broadcast", {x},
             {{"shape", std::move(shape)}, {"dims", std::move(dims)}}, at)
      ->output();
}

Value* Builder::BroadcastAlong(Value* vector, const TensorType& like,
                               int64_t dim, Where at) {
  const Layer layer(*this, at);
  Value* result = Broadcast(vector, like.shape, {dim});
  TensorType type = result->type();
  type.layout = like.layout;
  result->set_type(type);
  return result;
}

// Dimensions of extent 1 that grow are dropped first; the rest map in order.
Value* Builder::BroadcastTo(Value* x, const Shape& shape, Where at) {
  const Layer layer(*this, at);
  const Shape& from = x->type().shape;
  if (from == shape) return x;
  FUSOR_CHECK(from.size() <= shape.size(), kGraph,
              "broadcast of rank {} to rank {}{}", from.size(), shape.size(),
              AtLocation(Here(at)));
  const size_t offset = shape.size() - from.size();
  Shape squeezed;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == 1 && shape[offset + i] != 1) continue;
    squeezed.push_back(from[i]);
    dims.push_back(static_cast<int64_t>(offset + i));
  }
  return Broadcast(Reshape(x, squeezed), shape, dims);
}

Value* Builder::Reshape(Value* x, Shape shape, Where at) {
  if (x->type().shape == shape) return x;
  return Add("reshape", {x}, {{"shape", std::move(shape)}}, at)->output();
}

Value* Builder::Transpose(Value* x, std::vector<int64_t> permutation,
                          Where at) {
  return Add("transpose", {x}, {{"permutation", std::move(permutation)}}, at)
      ->output();
}

Value* Builder::Slice(Value* x, std::vector<int64_t> start,
                      std::vector<int64_t> limit, std::vector<int64_t> stride,
                      Where at) {
  if (stride.empty()) stride.assign(start.size(), 1);
  return Add("slice", {x},
             {{"start", std::move(start)},
              {"limit", std::move(limit)},
              {"stride", std::move(stride)}},
             at)
      ->output();
}

Value* Builder::Pad(Value* x, std::vector<int64_t> low,
                    std::vector<int64_t> high, std::vector<int64_t> interior,
                    double value, Where at) {
  return Add("pad", {x},
             {{"low", std::move(low)},
              {"high", std::move(high)},
              {"interior", std::move(interior)},
              {"value", value}},
             at)
      ->output();
}

Value* Builder::Concat(std::vector<Value*> parts, int64_t dim, Where at) {
  return Add("concat", std::move(parts), {{"dim", dim}}, at)->output();
}

Value* Builder::Copy(Value* x, Layout layout, Where at) {
  if (x->type().layout == layout) return x;
  return Add("copy", {x}, {{"layout", FormatLayout(layout, x->type().rank())}},
             at)
      ->output();
}

Value* Builder::ReduceSum(Value* x, std::vector<int64_t> dims, Where at) {
  if (dims.empty()) return x;
  return Add("reduce", {x},
             {{"kind", std::string("sum")}, {"dims", std::move(dims)}}, at)
      ->output();
}

Value* Builder::ReduceMax(Value* x, std::vector<int64_t> dims, Where at) {
  return Add("reduce", {x},
             {{"kind", std::string("max")}, {"dims", std::move(dims)}}, at)
      ->output();
}

Value* Builder::ReduceMin(Value* x, std::vector<int64_t> dims, Where at) {
  return Add("reduce", {x},
             {{"kind", std::string("min")}, {"dims", std::move(dims)}}, at)
      ->output();
}

Value* Builder::ReduceMean(Value* x, std::vector<int64_t> dims, Where at) {
  const Layer layer(*this, at);
  int64_t count = 1;
  for (int64_t dim : dims) count *= x->type().shape[dim];
  return Times(ReduceSum(x, std::move(dims)), 1.0 / static_cast<double>(count));
}

Value* Builder::Matmul(Value* a, Value* b, bool transpose_a, bool transpose_b,
                       Where at) {
  return Add("matmul", {a, b},
             {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}}, at)
      ->output();
}

Value* Builder::Conv2d(Value* x, Value* weight, Value* bias,
                       const Conv2dOptions& options, Where at) {
  std::vector<Value*> inputs{x, weight};
  if (bias != nullptr) inputs.push_back(bias);
  using Ints = std::vector<int64_t>;
  return Add("conv2d", std::move(inputs),
             {{"stride", Ints{options.stride_h, options.stride_w}},
              {"pad", Ints{options.pad_h, options.pad_w}},
              {"dilation", Ints{options.dilation_h, options.dilation_w}},
              {"groups", options.groups}},
             at)
      ->output();
}

namespace {

Attrs PoolAttrs(const Pool2dOptions& options) {
  using Ints = std::vector<int64_t>;
  return {{"window", Ints{options.window_h, options.window_w}},
          {"stride", Ints{options.stride_h, options.stride_w}},
          {"pad", Ints{options.pad_h, options.pad_w}}};
}

}  // namespace

Value* Builder::MaxPool2d(Value* x, const Pool2dOptions& options, Where at) {
  return Add("max_pool", {x}, PoolAttrs(options), at)->output();
}

Value* Builder::AvgPool2d(Value* x, const Pool2dOptions& options, Where at) {
  Attrs attrs = PoolAttrs(options);
  attrs.Set("count_include_pad", options.count_include_pad);
  return Add("avg_pool", {x}, std::move(attrs), at)->output();
}

}  // namespace fusor::ir
