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

Node* Builder::Add(OpKind op, std::vector<Value*> inputs, Attrs attrs,
                   Where at) {
  return graph_.AddNode(op, std::move(inputs), std::move(attrs), Here(at),
                        insertion_point_);
}

Node* Builder::Add(std::string_view op, std::vector<Value*> inputs, Attrs attrs,
                   Where at) {
  return graph_.AddNode(op, std::move(inputs), std::move(attrs), Here(at),
                        insertion_point_);
}

namespace {

// Formats "add(f32[2], null)" for messages.
std::string Describe(std::string_view call,
                     std::span<const Value* const> values) {
  return fmt::format("{}({})", call, Join(values, ", ", [](const Value* value) {
                       return value == nullptr ? "null"
                                               : ToString(value->type());
                     }));
}

// Broadcasts by numpy's rule; nullopt if the shapes do not fit.
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

void Builder::CheckValues(std::string_view call,
                          std::initializer_list<const Value*> values,
                          Where at) const {
  size_t i = 0;
  for (const Value* value : values) {
    FUSOR_CHECK(value != nullptr, kGraph,
                "{}{}: operand {}: expected a value, got null",
                Describe(call, {values.begin(), values.size()}),
                AtLocation(Here(at)), i);
    ++i;
  }
}

int64_t Builder::CheckDim(std::string_view call, int64_t dim, size_t rank,
                          Where at) const {
  const auto end = static_cast<int64_t>(rank);
  FUSOR_CHECK(rank > 0, kGraph, "{}{}: dim {}: a scalar has no dimension", call,
              AtLocation(Here(at)), dim);
  FUSOR_CHECK(-end <= dim && dim < end, kGraph,
              "{}{}: dim {}: expected {} to {} for rank {}", call,
              AtLocation(Here(at)), dim, -end, end - 1, rank);
  return dim < 0 ? dim + end : dim;
}

std::vector<int64_t> Builder::CheckDims(std::string_view call,
                                        std::vector<int64_t> dims, size_t rank,
                                        Where at) const {
  for (int64_t& dim : dims) dim = CheckDim(call, dim, rank, at);
  std::vector<int64_t> sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  FUSOR_CHECK(twice == sorted.end(), kGraph, "{}{}: dim {} is given twice",
              call, AtLocation(Here(at)), *twice);
  return dims;
}

void Builder::CheckRank(std::string_view call, const Value* x, size_t rank,
                        Where at) const {
  FUSOR_CHECK(x->type().rank() == rank, kGraph,
              "{}({}){}: expected rank {}, got {}", call, ToString(x->type()),
              AtLocation(Here(at)), rank, x->type().rank());
}

void Builder::BroadcastTogether(std::string_view call,
                                std::vector<Value*>& operands) {
  Shape common;
  for (const Value* operand : operands) {
    const auto wider = CommonShape(common, operand->type().shape);
    FUSOR_CHECK(wider, kGraph, "{}{}: the shapes do not broadcast",
                Describe(call, operands), AtLocation(Here({})));
    common = *wider;
  }
  // New broadcasts take the layout of an operand that needs no broadcast.
  const auto whole =
      std::find_if(operands.begin(), operands.end(),
                   [&](const Value* v) { return v->type().shape == common; });
  const Layout layout =
      whole == operands.end() ? Layout() : (*whole)->type().layout;
  for (Value*& operand : operands) {
    if (operand->type().shape == common) continue;
    operand = BroadcastTo(operand, common);
    TensorType type = operand->type();
    type.layout = layout;
    operand->set_type(std::move(type));
  }
}

Value* Builder::Binary(std::string_view op, Value* a, Value* b, Attrs attrs,
                       Where at) {
  const Layer layer(*this, at);
  CheckValues(op, {a, b}, at);
  std::vector<Value*> operands{a, b};
  if (a->type().shape != b->type().shape) BroadcastTogether(op, operands);
  return Add(op, std::move(operands), std::move(attrs))->output();
}

Value* Builder::Cast(Value* x, DType dtype, Where at) {
  CheckValues("cast", {x}, at);
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
  const Layer layer(*this, at);
  CheckValues("select", {predicate, if_true, if_false}, at);
  std::vector<Value*> operands{predicate, if_true, if_false};
  const Shape& shape = predicate->type().shape;
  if (if_true->type().shape != shape || if_false->type().shape != shape) {
    BroadcastTogether("select", operands);
  }
  return Add("select", std::move(operands))->output();
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

// Returns a constant of the operand's shape and layout, so that no broadcast
// node is needed. It is free inside a kernel.
Value* Builder::ScalarLike(Value* like, double value, Where at) {
  const Layer layer(*this, at);
  CheckValues("constant", {like}, at);
  const DType dtype = like->type().dtype;
  FUSOR_CHECK(IsFloat(dtype) || RoundTo(dtype, value) == value, kGraph,
              "scalar {}{}: expected a value of {}, as its operand has", value,
              AtLocation(Here(at)), DTypeName(dtype));
  Value* splat = Constant(dtype, like->type().shape, {value});
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
  dim = CheckDim("iota", dim, shape.size(), at);
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
    if (node->kind() == OpKind::kRandom) {
      site = std::max(site, node->attrs().Int("site") + 1);
    }
  }
  return Add("random", {key, step},
             {{"shape", std::move(shape)}, {"site", site}})
      ->output();
}

Value* Builder::Broadcast(Value* x, Shape shape, std::vector<int64_t> dims,
                          Where at) {
  CheckValues("broadcast", {x}, at);
  dims = CheckDims("broadcast", std::move(dims), shape.size(), at);
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

// Drops dimensions of extent 1 that grow; the remaining ones map in order.
Value* Builder::BroadcastTo(Value* x, const Shape& shape, Where at) {
  const Layer layer(*this, at);
  CheckValues("broadcast", {x}, at);
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
  CheckValues("reshape", {x}, at);
  if (x->type().shape == shape) return x;
  return Add("reshape", {x}, {{"shape", std::move(shape)}}, at)->output();
}

Value* Builder::Transpose(Value* x, std::vector<int64_t> permutation,
                          Where at) {
  CheckValues("transpose", {x}, at);
  permutation =
      CheckDims("transpose", std::move(permutation), x->type().rank(), at);
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
  if (!parts.empty()) {  // otherwise the op reports the missing operand
    CheckValues("concat", {parts.front()}, at);
    dim = CheckDim("concat", dim, parts.front()->type().rank(), at);
  }
  return Add("concat", std::move(parts), {{"dim", dim}}, at)->output();
}

Value* Builder::Copy(Value* x, Layout layout, Where at) {
  CheckValues("copy", {x}, at);
  if (x->type().layout == layout) return x;
  return Add("copy", {x}, {{"layout", FormatLayout(layout, x->type().rank())}},
             at)
      ->output();
}

Value* Builder::Reduce(std::string kind, Value* x, std::vector<int64_t> dims,
                       bool keepdim, Where at) {
  const Layer layer(*this, at);
  CheckValues("reduce", {x}, at);
  dims = CheckDims("reduce", std::move(dims), x->type().rank(), at);
  std::sort(dims.begin(), dims.end());
  if (dims.empty() && kind == "sum") return x;
  Shape kept = x->type().shape;
  for (int64_t dim : dims) kept[dim] = 1;
  Value* y =
      Add("reduce", {x}, {{"kind", std::move(kind)}, {"dims", std::move(dims)}})
          ->output();
  return keepdim ? Reshape(y, std::move(kept)) : y;
}

Value* Builder::ReduceSum(Value* x, std::vector<int64_t> dims, bool keepdim,
                          Where at) {
  return Reduce("sum", x, std::move(dims), keepdim, at);
}

Value* Builder::ReduceMax(Value* x, std::vector<int64_t> dims, bool keepdim,
                          Where at) {
  return Reduce("max", x, std::move(dims), keepdim, at);
}

Value* Builder::ReduceMin(Value* x, std::vector<int64_t> dims, bool keepdim,
                          Where at) {
  return Reduce("min", x, std::move(dims), keepdim, at);
}

Value* Builder::ReduceMean(Value* x, std::vector<int64_t> dims, bool keepdim,
                           Where at) {
  const Layer layer(*this, at);
  CheckValues("mean", {x}, at);
  FUSOR_CHECK(IsFloat(x->type().dtype), kGraph,
              "mean({}){}: expected a floating dtype, got {}; cast it first",
              ToString(x->type()), AtLocation(Here(at)),
              DTypeName(x->type().dtype));
  dims = CheckDims("mean", std::move(dims), x->type().rank(), at);
  int64_t count = 1;
  for (int64_t dim : dims) count *= x->type().shape[dim];
  return Times(ReduceSum(x, std::move(dims), keepdim),
               1.0 / static_cast<double>(count));
}

namespace {

// The shape's dimensions before the last two.
Shape BatchDims(const Value* x) {
  const Shape& shape = x->type().shape;
  return {shape.begin(), shape.end() - 2};
}

Shape WithBatch(Shape batch, const Value* x) {
  const Shape& shape = x->type().shape;
  batch.insert(batch.end(), shape.end() - 2, shape.end());
  return batch;
}

// Returns the matrix that a broadcast repeats for each element of a batch; x
// itself if it is no such broadcast.
Value* Unrepeated(Value* x) {
  const Node* node = x->producer();
  const int64_t rank = x->type().rank();
  if (rank < 3 || node == nullptr || node->kind() != OpKind::kBroadcast) {
    return x;
  }
  const bool last =
      node->attrs().Ints("dims") == std::vector<int64_t>{rank - 2, rank - 1};
  return last && WithBatch(BatchDims(x), node->input(0)) == x->type().shape
             ? node->input(0)
             : x;
}

}  // namespace

Value* Builder::Matmul(Value* a, Value* b, bool transpose_a, bool transpose_b,
                       Where at) {
  const Layer layer(*this, at);
  CheckValues("matmul", {a, b}, at);
  const bool row = a->type().rank() == 1 && !transpose_a;
  const bool column = b->type().rank() == 1 && !transpose_b;
  if (row) a = Reshape(a, {1, a->type().shape[0]});
  if (column) b = Reshape(b, {b->type().shape[0], 1});
  FUSOR_CHECK(a->type().rank() >= 2 && b->type().rank() >= 2, kGraph,
              "matmul({}, {}){}: expected operands of rank 1 or more, and of "
              "rank 2 or more where transposed",
              ToString(a->type()), ToString(b->type()), AtLocation(Here(at)));
  if (BatchDims(a) == BatchDims(b)) b = Unrepeated(b);
  const Shape batch_a = BatchDims(a);
  const Shape batch_b = BatchDims(b);
  const auto batch = CommonShape(batch_a, batch_b);
  FUSOR_CHECK(batch, kGraph,
              "matmul({}, {}){}: the batch dimensions do not broadcast",
              ToString(a->type()), ToString(b->type()), AtLocation(Here(at)));
  // Folds the batch into rows if b is one matrix for all of it; nothing is
  // copied.
  const bool fold =
      batch_a != batch_b && NumElements(batch_b) == 1 && !transpose_a;
  if (fold) {
    const int64_t k = a->type().shape.back();
    a = Reshape(a, {a->type().num_elements() / k, k});
    b = Reshape(b, WithBatch({}, b));
  } else {
    a = BroadcastTo(a, WithBatch(*batch, a));
    b = BroadcastTo(b, WithBatch(*batch, b));
  }
  Value* y = Add("matmul", {a, b},
                 {{"transpose_a", transpose_a}, {"transpose_b", transpose_b}})
                 ->output();
  Shape shape = *batch;
  const Shape& product = y->type().shape;
  const int64_t rows = product[product.size() - 2];
  if (!row) {
    shape.push_back(fold ? rows / NumElements(*batch) : rows);
  }
  if (!column) shape.push_back(product.back());
  return Reshape(y, std::move(shape));
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

// A single window becomes a mean, which fuses with the loops beside it.
Value* Builder::AvgPool2d(Value* x, const Pool2dOptions& options, Where at) {
  if (x != nullptr && x->type().rank() == 4 && options.pad_h == 0 &&
      options.pad_w == 0 && x->type().shape[2] == options.window_h &&
      x->type().shape[3] == options.window_w) {
    const Layer layer(*this, at);
    return ReduceMean(x, {2, 3}, true);
  }
  Attrs attrs = PoolAttrs(options);
  attrs.Set("count_include_pad", options.count_include_pad);
  return Add("avg_pool", {x}, std::move(attrs), at)->output();
}

}  // namespace fusor::ir
