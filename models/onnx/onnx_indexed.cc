// Operators that access elements by index or sort them.

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "models/functions.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

int64_t ExtentOf(const Value* x, int64_t axis) {
  return ShapeOf(x)[static_cast<size_t>(axis)];
}

OnnxResults Gather(OnnxCall& call) {
  if (call.IsEmpty(1)) return {nullptr};
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, 0);
  return {call.b().Take(
      x, NormalizedIndex(call, call.Tensor(1), ExtentOf(x, axis)), axis)};
}

// Cuts x to the extents of the index, except along the axis.
Value* CutTo(OnnxCall& call, Value* x, const Value* index, int64_t axis) {
  if (RankOf(index) != RankOf(x)) {
    call.Throw("index: expected the rank of " + ToString(x->type()));
  }
  for (int64_t d = 0; d < RankOf(x); ++d) {
    if (d == axis) continue;
    if (ExtentOf(index, d) > ExtentOf(x, d)) {
      call.Throw("index: expected extents of at most " + ToString(x->type()));
    }
    x = Strided(call, x, d, 0, ExtentOf(index, d), 1);
  }
  return x;
}

OnnxResults GatherElements(OnnxCall& call) {
  Value* x = call.Tensor(0);
  Value* index = call.Tensor(1);
  const int64_t axis = AxisAttribute(call, x, 0);
  x = CutTo(call, x, index, axis);
  index = NormalizedIndex(call, index, ExtentOf(x, axis));
  return {call.b().TakeAlong(x, index, axis)};
}

// The columns of an index [.., Q], which select in dimensions first, first + 1,
// ... of x; each [..].
std::vector<Value*> IndexColumns(OnnxCall& call, Value* index, const Value* x,
                                 int64_t first) {
  const int64_t rank = RankOf(index);
  if (rank < 1 || first + ShapeOf(index).back() > RankOf(x)) {
    call.Throw(fmt::format("index {} into {}", ToString(index->type()),
                           ToString(x->type())));
  }
  Shape shape = ShapeOf(index);
  const int64_t columns = shape.back();
  shape.pop_back();
  std::vector<Value*> result;
  for (int64_t q = 0; q < columns; ++q) {
    Value* column =
        call.b().Reshape(Strided(call, index, rank - 1, q, 1, 1), shape);
    result.push_back(NormalizedIndex(call, column, ExtentOf(x, first + q)));
  }
  return result;
}

OnnxResults GatherNd(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* index = call.Tensor(1);
  const int64_t batch = call.Int("batch_dims", 0);
  if (batch < 0 || batch >= std::min(RankOf(x), RankOf(index))) {
    call.Throw(fmt::format("batch_dims {} of {} and {}", batch,
                           ToString(x->type()), ToString(index->type())));
  }
  std::vector<Value*> indices = IndexColumns(call, index, x, batch);
  const auto rows = RankOf(index) - 1;
  const int64_t inner = batch + static_cast<int64_t>(indices.size());
  // [index rows.., rest of x..]
  Shape shape(ShapeOf(index).begin(), ShapeOf(index).end() - 1);
  Ints dims(ShapeOf(x).size(), -1);
  for (int64_t d = inner; d < RankOf(x); ++d) {
    dims[static_cast<size_t>(d)] = static_cast<int64_t>(shape.size());
    shape.push_back(ExtentOf(x, d));
  }
  std::iota(dims.begin(), dims.begin() + batch, 0);
  for (Value*& column : indices) {
    column = b.Broadcast(column, shape, AllAxes(rows));
  }
  return {b.Gather(x, indices, dims)};
}

// --- Scattering --------------------------------------------------------------

// How several updates of one element are combined.
struct Combiner {
  const char* kind;  // of ir's reduce
  double none;       // leaves an element unchanged
};
Combiner CombinerOf(OnnxCall& call, const std::string& reduction, DType dtype) {
  if (reduction == "mul") return {"prod", 1};
  if (!ir::IsFloat(dtype)) {
    call.Throw("reduction " + reduction + ": expected floats");
  }
  const double infinity = std::numeric_limits<double>::infinity();
  if (reduction == "max") return {"max", -infinity};
  return {"min", infinity};
}

// Combines x [E,R] with updates [K,R] at the rows `index` [K,R]. "none"
// requires that each row and column occurs at most once, as in ONNX.
Value* Scattered(OnnxCall& call, Value* x, Value* index, Value* updates,
                 const std::string& reduction) {
  Builder& b = call.b();
  const Shape shape = ShapeOf(x);
  const DType dtype = x->type().dtype;
  const bool flag = dtype == DType::kBool;
  if (reduction == "add" || reduction == "none") {
    const Ints dims{-1, 1};
    const DType sum = flag ? DType::kI32 : dtype;
    Value* sums = b.ScatterAdd(b.Cast(updates, sum), {index}, shape, dims);
    if (reduction == "add") return b.Plus(x, sums);
    Value* ones = b.Constant(DType::kI32, ShapeOf(updates), {1});
    Value* counts = b.ScatterAdd(ones, {index}, shape, dims);
    return b.Select(b.Compare("gt", counts, 0.0), b.Cast(sums, dtype), x);
  }
  const Combiner combiner = CombinerOf(call, reduction, dtype);
  // [E,K,R]: the updates of each row, otherwise the neutral element.
  const Shape all{shape[0], ShapeOf(updates)[0], shape[1]};
  const Ints inner{1, 2};
  Value* hits = b.Compare("eq", b.Iota(DType::kI64, all, 0),
                          b.Broadcast(b.Cast(index, DType::kI64), all, inner));
  Value* values = b.Broadcast(updates, all, inner);
  values = b.Select(hits, values, b.ScalarLike(values, combiner.none));
  Value* combined =
      b.Add("reduce", {values},
            {{"kind", std::string(combiner.kind)}, {"dims", Ints{1}}})
          ->output();
  if (reduction == "mul") return b.Times(x, combined);
  return reduction == "max" ? b.Maximum(x, combined) : b.Minimum(x, combined);
}

std::string ReductionOf(OnnxCall& call) {
  return call.Choice("reduction", {"none", "add", "mul", "max", "min"});
}

OnnxResults ScatterElements(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* index = call.Tensor(1);
  Value* updates = call.Tensor(2);
  const int64_t axis = AxisAttribute(call, x, 0);
  const std::string reduction = ReductionOf(call);
  if (ShapeOf(updates) != ShapeOf(index)) {
    call.Throw(fmt::format("updates: expected the shape of the index, got {}",
                           ToString(updates->type())));
  }
  // Only the part of x that the index covers changes.
  const Value* part = CutTo(call, x, index, axis);
  index = NormalizedIndex(call, index, ExtentOf(x, axis));
  // [axis, the others]
  Ints order{axis};
  for (int64_t d = 0; d < RankOf(x); ++d) {
    if (d != axis) order.push_back(d);
  }
  const auto flat = [&](Value* value) {
    const int64_t rows = ExtentOf(value, axis);
    return b.Reshape(b.Transpose(value, order),
                     {rows, value->type().num_elements() / rows});
  };
  Shape moved;
  Ints back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    moved.push_back(ExtentOf(part, order[i]));
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  const Ints zeros(order.size(), 0);
  Value* y = Scattered(call, flat(CutTo(call, x, index, axis)), flat(index),
                       flat(updates), reduction);
  y = b.Transpose(b.Reshape(y, moved), back);
  if (ShapeOf(y) == ShapeOf(x)) return {y};
  Ints high;
  for (int64_t d = 0; d < RankOf(x); ++d) {
    high.push_back(ExtentOf(x, d) - ExtentOf(y, d));
  }
  Value* inside =
      b.Pad(b.Constant(DType::kI32, ShapeOf(y), {1}), zeros, high, zeros, 0);
  y = b.Pad(y, zeros, high, zeros, 0);
  return {b.Select(b.Compare("eq", inside, 1.0), y, x)};
}

OnnxResults ScatterNd(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* index = call.Tensor(1);
  Value* updates = call.Tensor(2);
  const std::string reduction = ReductionOf(call);
  const std::vector<Value*> columns = IndexColumns(call, index, x, 0);
  // Row of x as a matrix [rows, rest].
  Value* row = nullptr;
  int64_t rows = 1;
  for (size_t q = 0; q < columns.size(); ++q) {
    const int64_t extent = ShapeOf(x)[q];
    row = row == nullptr
              ? columns[q]
              : b.Plus(b.Times(row, static_cast<double>(extent)), columns[q]);
    rows = ir::NumElements({rows, extent});
  }
  if (row == nullptr) call.Throw("index: expected elements, got none");
  const int64_t rest = x->type().num_elements() / rows;
  const int64_t count = row->type().num_elements();
  if (updates->type().num_elements() != count * rest) {
    call.Throw(fmt::format("updates: expected {} elements, got {}",
                           count * rest, ToString(updates->type())));
  }
  Value* y = Scattered(call, b.Reshape(x, {rows, rest}),
                       b.Broadcast(b.Reshape(row, {count}), {count, rest}, {0}),
                       b.Reshape(updates, {count, rest}), reduction);
  return {b.Reshape(y, ShapeOf(x))};
}

// Writes `update` along the axis, from a position per batch entry on; circular:
// positions wrap.
OnnxResults TensorScatter(OnnxCall& call) {
  Builder& b = call.b();
  Value* past = call.Tensor(0);
  Value* update = call.Tensor(1);
  const int64_t axis = AxisAttribute(call, past, -2);
  const bool circular = call.Choice("mode", {"linear", "circular"}) != "linear";
  const Shape& shape = ShapeOf(past);
  if (RankOf(update) != RankOf(past) || axis == 0) {
    call.Throw(fmt::format("{} into {}", ToString(update->type()),
                           ToString(past->type())));
  }
  const int64_t length = ExtentOf(update, axis);
  Value* offset = b.Iota(DType::kI64, shape, axis);
  if (call.Has(2)) {
    Value* first = b.Cast(call.Tensor(2), DType::kI64);
    offset = b.Minus(offset, b.Broadcast(first, shape, {0}));
  }
  if (circular) {
    offset = b.Remainder(offset, static_cast<double>(ExtentOf(past, axis)));
  }
  Value* written = b.And(b.Compare("ge", offset, 0.0),
                         b.Compare("lt", offset, static_cast<double>(length)));
  Value* at = b.Select(written, offset, b.ScalarLike(offset, 0));
  return {b.Select(written, b.TakeAlong(update, at, axis), past)};
}

// --- Selection ---------------------------------------------------------------

OnnxResults OneHot(OnnxCall& call) {
  Builder& b = call.b();
  Value* index = b.Cast(call.Tensor(0), DType::kI64);
  Value* values = call.Tensor(2);
  const int64_t depth = call.KnownInt(1);
  if (depth < 1 || depth > ir::kMaxElements || ShapeOf(values) != Shape{2}) {
    call.Throw(
        fmt::format("depth {}, values {}: expected 1 or more, and off "
                    "and on",
                    depth, ToString(values->type())));
  }
  const int64_t axis = AxisOf(call, call.Int("axis", -1), RankOf(index) + 1);
  index = NormalizedIndex(call, index, depth);
  Shape shape = ShapeOf(index);
  shape.insert(shape.begin() + axis, 1);
  index = b.Reshape(index, shape);
  shape[static_cast<size_t>(axis)] = depth;
  Value* hot = b.Compare("eq", b.Iota(DType::kI64, shape, axis), index);
  const auto value = [&](int64_t i) {
    return b.Reshape(Strided(call, values, 0, i, 1, 1), {});
  };
  return {b.Select(hot, value(1), value(0))};
}

OnnxResults TopK(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, -1);
  const bool largest = call.Flag("largest", true);
  call.Flag("sorted", true);  // any order is allowed otherwise
  const int64_t extent = ExtentOf(x, axis);
  const int64_t count = call.KnownInt(1);
  if (count < 1 || count > extent || extent > kMostRanked) {
    call.Throw(fmt::format("{} of {}: expected at most {} elements", count,
                           ToString(x->type()), kMostRanked));
  }
  const Ranked ranked = Leading(call.b(), x, axis, count, largest);
  return {ranked.values, ranked.indices};
}

OnnxResults Compress(OnnxCall& call) {
  Value* x = call.Tensor(0);
  int64_t axis = 0;
  if (call.HasAttribute("axis")) {
    axis = AxisAttribute(call, x);
  } else {
    x = call.b().Reshape(x, {x->type().num_elements()});
  }
  const std::vector<double> condition = call.KnownNumbers(1);
  Ints positions;
  for (size_t i = 0; i < condition.size(); ++i) {
    if (condition[i] != 0) positions.push_back(static_cast<int64_t>(i));
  }
  if (positions.empty()) return {nullptr};
  if (positions.back() >= ExtentOf(x, axis)) {
    call.Throw("condition: expected at most as many as elements of the axis");
  }
  return {TakeAt(call, x, axis, positions)};
}

OnnxResults NonZero(OnnxCall& call) {
  const Value* x = call.Tensor(0);
  const std::vector<double> values = call.KnownNumbers(0);
  std::vector<std::vector<double>> columns(ShapeOf(x).size());
  int64_t count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) continue;
    ++count;
    auto rest = static_cast<int64_t>(i);
    for (size_t d = columns.size(); d-- > 0;) {
      columns[d].push_back(static_cast<double>(rest % ShapeOf(x)[d]));
      rest /= ShapeOf(x)[d];
    }
  }
  if (count == 0 || columns.empty()) return {nullptr};
  std::vector<double> all;
  for (const auto& column : columns) {
    all.insert(all.end(), column.begin(), column.end());
  }
  return {call.b().Constant(DType::kI64, {RankOf(x), count}, std::move(all))};
}

// Reverses the first `length` elements of each batch entry.
OnnxResults ReverseSequence(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t time = AxisOf(call, call.Int("time_axis", 0), RankOf(x));
  const int64_t batch = AxisOf(call, call.Int("batch_axis", 1), RankOf(x));
  Value* length =
      b.Broadcast(b.Cast(call.Tensor(1), DType::kI64), ShapeOf(x), {batch});
  Value* step = b.Iota(DType::kI64, ShapeOf(x), time);
  Value* reversed = b.Minus(b.Minus(length, 1.0), step);
  Value* index = b.Select(b.Compare("lt", step, length), reversed, step);
  return {b.TakeAlong(x, index, time)};
}

constexpr OnnxOp kIndexedOps[] = {
    {"Compress", Compress},
    {"Gather", Gather, "w"},
    {"GatherElements", GatherElements, "w"},
    {"GatherND", GatherNd, "w"},
    {"NonZero", NonZero},
    {"OneHot", OneHot},
    {"ReverseSequence", ReverseSequence},
    {"ScatterElements", ScatterElements},
    {"ScatterND", ScatterNd},
    {"TensorScatter", TensorScatter},
    {"TopK", TopK},
};

}  // namespace

std::span<const OnnxOp> OnnxIndexedOps() { return kIndexedOps; }

}  // namespace fusor::models
