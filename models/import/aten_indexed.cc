// Operators that access elements by index, cumulative sums.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value*>;

void CheckIndex(AtenCall& call, const Value* index) {
  if (ir::IsFloat(index->type().dtype) || index->type().dtype == DType::kBool) {
    call.Throw("index: expected integers, got " + ToString(index->type()));
  }
}

// Returns an integer index; converts negative elements, which count from the
// end.
Value* Normalized(AtenCall& call, Value* index, int64_t extent) {
  CheckIndex(call, index);
  Builder& b = call.b();
  index = b.Cast(index, DType::kI64);
  return b.Select(b.Compare("lt", index, 0.0),
                  b.Plus(index, static_cast<double>(extent)), index);
}

// Reads x along `dim` at `count` positions.
Value* Rearranged(AtenCall& call, Value* x, size_t dim, int64_t count,
                  const std::function<int64_t(int64_t)>& position) {
  std::vector<double> positions;
  for (int64_t i = 0; i < count; ++i) {
    positions.push_back(static_cast<double>(position(i)));
  }
  Builder& b = call.b();
  return b.Take(x, b.Constant(DType::kI32, {count}, std::move(positions)),
                static_cast<int64_t>(dim));
}

Values Gather(AtenCall& call) {
  Value* x = call.Tensor("self");
  Value* index = call.Tensor("index");
  CheckIndex(call, index);
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim"));
  if (RankOf(index) != RankOf(x)) {
    call.Throw("index: expected the rank of " + ToString(x->type()));
  }
  Shape taken = ShapeOf(index);
  taken[dim] = ShapeOf(x)[dim];
  for (size_t d = 0; d < taken.size(); ++d) {
    if (taken[d] > ShapeOf(x)[d]) {
      call.Throw("index: expected extents of at most " + ToString(x->type()));
    }
  }
  if (taken != ShapeOf(x)) x = call.b().Slice(x, Ints(taken.size(), 0), taken);
  return {call.b().TakeAlong(x, index, static_cast<int64_t>(dim))};
}

// Returns self with the updates in place of the elements that `add` adds to, or
// added to them. `add` adds its operand to a zero tensor. Of several updates of
// one element the mean counts; PyTorch takes any of them.
Value* Updated(Builder& b, Value* self, Value* updates, bool accumulate,
               const std::function<Value*(Value*)>& add) {
  Value* sums = add(updates);
  if (accumulate) return b.Plus(self, sums);
  const DType dtype = self->type().dtype;
  const DType counting = ir::IsFloat(dtype) ? dtype : DType::kI64;
  Value* ones = b.Constant(counting, ShapeOf(updates), {1});
  Value* counts = b.StopGradient(add(ones));
  Value* hit = b.Compare("gt", counts, 0.0);
  Value* divisor = b.Select(hit, counts, b.ScalarLike(counts, 1));
  Value* means = ir::IsFloat(dtype)
                     ? b.Divide(sums, divisor)
                     : b.FloorDivide(sums, b.Cast(divisor, dtype));
  return b.Select(hit, means, self);
}

// The operands of the scatter operators.
struct Scattering {
  Value* self;
  Value* updates;
  std::function<Value*(Value*)> add;  // adds updates to a zero tensor
};

Scattering ScatteringOf(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* index = call.Tensor("index");
  CheckIndex(call, index);
  Value* updates = call.Has("value")
                       ? b.Constant(self->type().dtype, ShapeOf(index),
                                    {call.Number("value")})
                       : b.Cast(call.Tensor("src"), self->type().dtype);
  const auto dim = static_cast<size_t>(DimArgument(call, self, "dim"));
  if (RankOf(index) != RankOf(self) || RankOf(updates) != RankOf(self)) {
    call.Throw("index and src: expected the rank of " + ToString(self->type()));
  }
  if (ShapeOf(updates) != ShapeOf(index)) {
    updates = b.Slice(updates, Ints(ShapeOf(index).size(), 0), ShapeOf(index));
  }
  Ints dims(ShapeOf(self).size());
  std::iota(dims.begin(), dims.end(), 0);
  dims[dim] = -1;
  Shape part = ShapeOf(index);
  part[dim] = ShapeOf(self)[dim];
  Ints high;
  for (size_t d = 0; d < part.size(); ++d) {
    high.push_back(ShapeOf(self)[d] - part[d]);
  }
  const Ints zeros(part.size(), 0);
  return {self, updates, [=, &b](Value* x) {
            Value* sums = b.ScatterAdd(x, {index}, part, dims);
            return high == zeros ? sums : b.Pad(sums, zeros, high, zeros, 0);
          }};
}

// Adds updates, a tensor or a number, to self, or replaces its elements.
template <bool kAdds>
Values Scatter(AtenCall& call) {
  const Scattering s = ScatteringOf(call);
  return {Updated(call.b(), s.self, s.updates, kAdds, s.add)};
}

// The sums or means of the updates of each element, and of the element itself.
Values ScatterReduce(AtenCall& call) {
  Builder& b = call.b();
  const Scattering s = ScatteringOf(call);
  const std::string reduce = call.Text("reduce", "");
  const bool with_self = call.Bool("include_self", true);
  if (reduce != "sum" && reduce != "mean") {
    call.Throw("reduce " + reduce + ": expected sum or mean");
  }
  if (reduce == "mean" && !with_self) {
    return {Updated(b, s.self, s.updates, false, s.add)};
  }
  Value* sums = s.add(s.updates);
  if (reduce == "sum" && with_self) return {b.Plus(s.self, sums)};
  const DType dtype = s.self->type().dtype;
  const DType counting = ir::IsFloat(dtype) ? dtype : DType::kI64;
  Value* counts =
      b.StopGradient(s.add(b.Constant(counting, ShapeOf(s.updates), {1})));
  if (reduce == "sum") {
    return {b.Select(b.Compare("gt", counts, 0.0), sums, s.self)};
  }
  Value* all = b.Plus(s.self, sums);
  Value* number = b.Cast(b.Plus(counts, 1.0), dtype);
  return {ir::IsFloat(dtype) ? b.Divide(all, number)
                             : b.FloorDivide(all, number)};
}

// The sums or means of the rows of each bag: bag i is the elements of the index
// from offset i to the next one. Without kCountsFromEnd, a negative padding
// index is none.
template <bool kCountsFromEnd>
Values EmbeddingBag(AtenCall& call) {
  Builder& b = call.b();
  Value* table = call.Tensor("weight");
  Value* index = call.Tensor("indices");
  Value* offsets = call.Tensor("offsets");
  CheckIndex(call, index);
  CheckIndex(call, offsets);
  call.Bool("scale_grad_by_freq", false);
  call.Bool("sparse", false);
  constexpr int64_t kMean = 1, kMax = 2;
  const int64_t mode = call.Int("mode", 0);
  if (mode >= kMax) call.Throw("mode max: expected sum or mean");
  if (RankOf(index) != 1 || RankOf(offsets) != 1 || RankOf(table) != 2) {
    call.Throw("expected a matrix and vectors of indices and offsets, got " +
               ToString(table->type()) + ", " + ToString(index->type()) +
               " and " + ToString(offsets->type()));
  }
  const int64_t count = ShapeOf(index)[0], width = ShapeOf(table)[1];
  int64_t bags = ShapeOf(offsets)[0];
  if (call.Bool("include_last_offset", false)) {
    --bags;
    if (bags < 1) call.Throw("offsets: expected one more than bags");
    offsets = b.Slice(offsets, {0}, {bags});
  }
  // An element's bag is the number of offsets up to it, less one.
  Value* starts =
      b.ScatterAdd(b.Constant(DType::kI64, {bags}, {1}),
                   {b.Cast(offsets, DType::kI64)}, {count + 1}, {-1});
  Value* bag = b.Plus(
      b.Slice(b.CumulativeSum(starts, 0, false, false), {0}, {count}), -1.0);
  bag = b.Reshape(bag, {count, 1});
  const DType dtype = table->type().dtype;
  Value* share = b.Constant(dtype, {count, 1}, {1});
  if (call.Has("padding_idx")) {
    int64_t padding = call.Int("padding_idx");
    if (kCountsFromEnd && padding < 0) padding += ShapeOf(table)[0];
    Value* kept = b.Compare("ne", index, static_cast<double>(padding));
    share = b.Cast(b.Reshape(kept, {count, 1}), dtype);
  }
  Value* weights = share;
  if (Value* given = call.OptionalTensor("per_sample_weights")) {
    weights = b.Times(share, b.Reshape(given, {count, 1}));
  }
  Value* rows = b.Times(b.Take(table, index, 0), weights);
  Value* y = b.ScatterAdd(rows, {bag}, {bags, width}, {-1, 1});
  if (mode == kMean) {
    Value* sizes = b.ScatterAdd(share, {bag}, {bags, 1}, {-1, 1});
    y = b.Divide(y, b.Maximum(sizes, b.ScalarLike(sizes, 1)));
  }
  // The other results are for PyTorch's own gradient.
  return {y, nullptr, nullptr, nullptr};
}

// Elements of the flat tensor.
Values TakeFlat(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t count = x->type().num_elements();
  Value* index = Normalized(call, call.Tensor("index"), count);
  return {b.Take(b.Reshape(x, {count}), index, 0)};
}

// The elements at the mask, in order, are replaced by the source's first ones.
Values MaskedScatter(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* source = call.Tensor("source");
  const Shape shape = ShapeOf(x);
  const int64_t count = source->type().num_elements();
  Value* mask = b.Reshape(b.BroadcastTo(call.Tensor("mask"), shape),
                          {x->type().num_elements()});
  Value* number = b.CumulativeSum(b.Cast(mask, DType::kI64), 0);
  // Where the mask is off, any element will do.
  Value* index = b.Minimum(b.Maximum(b.Minus(number, 1.0), 0.0),
                           static_cast<double>(count - 1));
  Value* taken = b.Take(b.Reshape(source, {count}), index, 0);
  return {b.Reshape(b.Select(mask, b.Cast(taken, x->type().dtype),
                             b.Reshape(x, {x->type().num_elements()})),
                    shape)};
}

// The other dimensions of both broadcast.
Values TakeAlongDim(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Value* index = call.Tensor("indices");
  if (!call.Has("dim")) {
    x = b.Reshape(x, {x->type().num_elements()});
    index = b.Reshape(index, {index->type().num_elements()});
  }
  const auto dim =
      static_cast<size_t>(call.Has("dim") ? DimArgument(call, x, "dim") : 0);
  if (RankOf(index) != RankOf(x)) {
    call.Throw("indices: expected the rank of " + ToString(x->type()));
  }
  index = Normalized(call, index, ShapeOf(x)[dim]);
  Shape of_x = ShapeOf(x);
  Shape of_index = ShapeOf(index);
  for (size_t d = 0; d < of_x.size(); ++d) {
    if (d == dim) continue;
    of_x[d] = of_index[d] = std::max(of_x[d], of_index[d]);
  }
  return {b.TakeAlong(b.BroadcastTo(x, of_x), b.BroadcastTo(index, of_index),
                      static_cast<int64_t>(dim))};
}

// Replaces the rows at an index by a number.
Values IndexFill(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t dim = DimArgument(call, x, "dim");
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  Value* index = Normalized(call, call.Tensor("index"), extent);
  const int64_t count = index->type().num_elements();
  const Shape pairs{extent, count};
  Value* equal = b.Compare("eq", b.Iota(DType::kI64, pairs, 0),
                           b.Broadcast(b.Reshape(index, {count}), pairs, {1}));
  Value* hits = b.ReduceSum(b.Cast(equal, DType::kI32), {1});
  Value* hit = b.Broadcast(b.Compare("gt", hits, 0.0), ShapeOf(x), {dim});
  return {b.Select(hit, b.ScalarLike(x, call.Number("value")), x)};
}

Values IndexSelect(AtenCall& call) {
  Value* x = call.Tensor("self");
  Value* index = call.Tensor("index");
  CheckIndex(call, index);
  if (RankOf(index) != 1) call.Throw("index: expected a vector");
  return {call.b().Take(x, index, DimArgument(call, x, "dim"))};
}

// x[i, :, j, ..] as operands of Builder::Gather.
struct Indexing {
  Values indices;  // of the result's shape
  Ints dims;
  Shape shape;  // of the result
};

// The indices are broadcast together. If they are adjacent, their dimensions
// replace the indexed ones; otherwise their dimensions come first.
Indexing IndexingOf(AtenCall& call, const Value* x) {
  Builder& b = call.b();
  const Values given = call.OptionalTensors("indices");
  const size_t rank = ShapeOf(x).size();
  Values indices;
  Ints at;
  for (size_t d = 0; d < given.size() && d < rank; ++d) {
    if (given[d] == nullptr) continue;
    at.push_back(static_cast<int64_t>(d));
    indices.push_back(Normalized(call, given[d], ShapeOf(x)[d]));
  }
  if (given.size() > rank || indices.empty()) {
    call.Throw(
        fmt::format("{} indices of {}", given.size(), ToString(x->type())));
  }
  Value* all = indices[0];
  for (Value* index : indices) all = b.Plus(all, index);
  const Shape together = ShapeOf(all);  // for its shape only
  const auto added = static_cast<int64_t>(together.size());
  const bool adjacent =
      at.back() - at.front() + 1 == static_cast<int64_t>(at.size());
  const int64_t first = adjacent ? at.front() : 0;
  Shape shape;
  Ints dims(rank, -1);
  for (size_t d = 0; d < rank; ++d) {
    if (static_cast<int64_t>(shape.size()) == first) {
      shape.insert(shape.end(), together.begin(), together.end());
    }
    if (std::find(at.begin(), at.end(), d) != at.end()) continue;
    dims[d] = static_cast<int64_t>(shape.size());
    shape.push_back(ShapeOf(x)[d]);
  }
  if (static_cast<int64_t>(shape.size()) == first) {
    shape.insert(shape.end(), together.begin(), together.end());
  }
  Ints index_dims(static_cast<size_t>(added));
  std::iota(index_dims.begin(), index_dims.end(), first);
  for (Value*& index : indices) {
    index = b.Broadcast(b.BroadcastTo(index, together), shape, index_dims);
  }
  return {std::move(indices), std::move(dims), std::move(shape)};
}

Values Index(AtenCall& call) {
  Value* x = call.Tensor("self");
  const Indexing at = IndexingOf(call, x);
  return {call.b().Gather(x, at.indices, at.dims)};
}

// self[indices] = values, or += with accumulate. A mask takes one value.
Values IndexPut(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* values = b.Cast(call.Tensor("values"), self->type().dtype);
  const bool accumulate = call.Bool("accumulate", false);
  call.Bool("unsafe", false);
  const Values given = call.OptionalTensors("indices");
  if (given.size() == 1 && given[0] != nullptr &&
      given[0]->type().dtype == DType::kBool) {
    if (values->type().num_elements() != 1 || accumulate ||
        RankOf(given[0]) > RankOf(self)) {
      call.Throw("a mask: expected one value, got " + ToString(values->type()));
    }
    Ints dims(static_cast<size_t>(RankOf(given[0])));
    std::iota(dims.begin(), dims.end(), 0);
    Value* mask = b.Broadcast(given[0], ShapeOf(self), dims);
    return {b.Select(mask, b.Reshape(values, {}), self)};
  }
  const Indexing at = IndexingOf(call, self);
  return {Updated(b, self, b.BroadcastTo(values, at.shape), accumulate,
                  [&](Value* x) {
                    return b.ScatterAdd(x, at.indices, ShapeOf(self), at.dims);
                  })};
}

// Adds alpha times the rows of a source, or copies them.
template <bool kAdds>
Values IndexUpdate(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* index = call.Tensor("index");
  Value* source = b.Cast(call.Tensor("source"), self->type().dtype);
  CheckIndex(call, index);
  const auto dim = static_cast<size_t>(DimArgument(call, self, "dim"));
  index = b.Reshape(index, {index->type().num_elements()});
  if (const double alpha = kAdds ? call.Number("alpha", 1) : 1; alpha != 1) {
    source = b.Times(source, alpha);
  }
  Ints dims(ShapeOf(self).size());
  std::iota(dims.begin(), dims.end(), 0);
  dims[dim] = -1;
  Value* rows =
      b.Broadcast(index, ShapeOf(source), {static_cast<int64_t>(dim)});
  return {Updated(b, self, source, kAdds, [&](Value* x) {
    return b.ScatterAdd(x, {rows}, ShapeOf(self), dims);
  })};
}

// The row `padding_idx` has no gradient.
Values Embedding(AtenCall& call) {
  Builder& b = call.b();
  Value* table = call.Tensor("weight");
  Value* index = call.Tensor("indices");
  CheckIndex(call, index);
  if (RankOf(table) != 2) {
    call.Throw("weight: expected [V,E], got " + ToString(table->type()));
  }
  Value* rows = b.Take(table, index, 0);
  const int64_t padding = call.Int("padding_idx", -1);
  if (padding == -1) return {rows};
  const auto fixed =
      static_cast<double>(padding < 0 ? padding + ShapeOf(table)[0] : padding);
  index = b.Cast(index, DType::kI64);
  Ints dims(ShapeOf(index).size());
  std::iota(dims.begin(), dims.end(), 0);
  Value* pads = b.Broadcast(b.Compare("eq", index, fixed), ShapeOf(rows), dims);
  return {b.Select(pads, b.StopGradient(rows), rows)};
}

// Reads all rolled dimensions at once.
Values Roll(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const Ints shifts = call.Ints("shifts");
  const Ints dims = call.Ints("dims");
  if (shifts.size() != dims.size()) {
    call.Throw("expected as many shifts as dims");
  }
  Ints total(ShapeOf(x).size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = static_cast<size_t>(DimOf(call, dims[i], RankOf(x)));
    const int64_t extent = ShapeOf(x)[dim];
    total[dim] = (total[dim] + shifts[i] % extent + extent) % extent;
  }
  Values indices;
  Ints read(total.size());
  std::iota(read.begin(), read.end(), 0);
  for (size_t d = 0; d < total.size(); ++d) {
    if (total[d] == 0) continue;
    const int64_t extent = ShapeOf(x)[d];
    std::vector<double> positions;
    for (int64_t i = 0; i < extent; ++i) {
      positions.push_back(
          static_cast<double>((i - total[d] + extent) % extent));
    }
    indices.push_back(
        b.Broadcast(b.Constant(DType::kI32, {extent}, std::move(positions)),
                    ShapeOf(x), {static_cast<int64_t>(d)}));
    read[d] = -1;
  }
  if (indices.empty()) return {x};
  return {b.Gather(x, indices, read)};
}

Value* Flipped(AtenCall& call, Value* x, size_t dim) {
  const int64_t extent = ShapeOf(x)[dim];
  return Rearranged(call, x, dim, extent,
                    [&](int64_t i) { return extent - 1 - i; });
}

Values Flip(AtenCall& call) {
  Value* x = call.Tensor("self");
  const Ints dims = call.Ints("dims");
  if (dims.size() > ShapeOf(x).size()) call.Throw("dims: too many");
  for (const int64_t dim : dims) {
    x = Flipped(call, x, static_cast<size_t>(DimOf(call, dim, RankOf(x))));
  }
  return {x};
}

template <size_t kDim>
Values FlipDim(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (ShapeOf(x).size() <= kDim) call.Throw("expected more dimensions");
  return {Flipped(call, x, kDim)};
}

// Rotates the plane of two dimensions k times from the first to the second.
Values Rotate90(AtenCall& call) {
  Value* x = call.Tensor("self");
  Ints dims = call.Ints("dims", {0, 1});
  if (dims.size() != 2) call.Throw("dims: expected two");
  for (int64_t& dim : dims) dim = DimOf(call, dim, RankOf(x));
  if (dims[0] == dims[1]) call.Throw("dims: expected two different ones");
  const int64_t turns = (call.Int("k", 1) % 4 + 4) % 4;
  const auto first = static_cast<size_t>(dims[0]);
  const auto second = static_cast<size_t>(dims[1]);
  if (turns == 2) return {Flipped(call, Flipped(call, x, first), second)};
  if (turns == 0) return {x};
  Ints permutation(ShapeOf(x).size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::swap(permutation[first], permutation[second]);
  return {call.b().Transpose(Flipped(call, x, turns == 1 ? second : first),
                             std::move(permutation))};
}

// Pairs of low and high padding, last dimension first.
Values PadByElements(AtenCall& call, const std::string& mode) {
  Value* x = call.Tensor("self");
  const Ints pad = call.Ints(call.Has("pad") ? "pad" : "padding");
  if (pad.size() % 2 != 0 || pad.size() > 2 * ShapeOf(x).size()) {
    call.Throw("pad: expected two extents for each of the last dimensions");
  }
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = ShapeOf(x).size() - 1 - i;
    const int64_t extent = ShapeOf(x)[dim];
    const int64_t low = pad[2 * i];
    const int64_t high = pad[2 * i + 1];
    const int64_t most = mode == "reflect"    ? extent - 1
                         : mode == "circular" ? extent
                                              : ir::kMaxElements;
    if (low < 0 || high < 0 || std::max(low, high) > most) {
      call.Throw(fmt::format("pad {} and {} of an extent of {} by mode {}", low,
                             high, extent, mode));
    }
    if (low == 0 && high == 0) continue;
    x = Rearranged(call, x, dim, low + extent + high, [&](int64_t to) {
      const int64_t at = to - low;
      if (mode == "circular") return (at + extent) % extent;
      if (mode == "replicate") return std::clamp<int64_t>(at, 0, extent - 1);
      return at < 0 ? -at : at >= extent ? 2 * (extent - 1) - at : at;
    });
  }
  return {x};
}
Values ReflectionPad(AtenCall& call) { return PadByElements(call, "reflect"); }
Values ReplicationPad(AtenCall& call) {
  return PadByElements(call, "replicate");
}

Values CumulativeSum(AtenCall& call) {
  Value* x = call.Tensor("self");
  const bool integers = !ir::IsFloat(x->type().dtype);
  x = call.b().Cast(x, call.DType(integers ? DType::kI64 : x->type().dtype));
  return {call.b().CumulativeSum(x, DimArgument(call, x, "dim"))};
}

template <Value* (Builder::*find)(Value*, int64_t, bool, bool, ir::Where)>
Values ArgExtremum(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const bool keep = call.Bool("keepdim", false);
  if (call.Has("dim")) {
    return {(b.*find)(x, DimArgument(call, x, "dim"), keep, false, {})};
  }
  Value* flat = b.Reshape(x, {x->type().num_elements()});
  Value* index = (b.*find)(flat, 0, false, false, {});
  return {keep ? b.Reshape(index, Shape(ShapeOf(x).size(), 1)) : index};
}

// The extremum along a dimension and its index.
template <Value* (Builder::*find)(Value*, int64_t, bool, bool, ir::Where)>
Values ExtremumAndIndex(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t dim = DimArgument(call, x, "dim");
  Value* index = (b.*find)(x, dim, /*keepdim=*/true, false, {});
  Value* found = b.TakeAlong(x, index, dim);
  if (call.Bool("keepdim", false)) return {found, index};
  Shape shape = ShapeOf(x);
  shape.erase(shape.begin() + dim);
  return {b.Reshape(found, shape), b.Reshape(index, shape)};
}

constexpr AtenOp kIndexedOps[] = {
    {"argmax.default", ArgExtremum<&Builder::ArgMax>},
    {"argmin.default", ArgExtremum<&Builder::ArgMin>},
    {"cumsum.default", CumulativeSum},
    {"_embedding_bag.default", EmbeddingBag<false>},
    {"embedding.default", Embedding},
    {"embedding_bag.default", EmbeddingBag<false>},
    {"embedding_bag.padding_idx", EmbeddingBag<true>},
    {"flip.default", Flip},
    {"fliplr.default", FlipDim<1>},
    {"flipud.default", FlipDim<0>},
    {"gather.default", Gather},
    {"index.Tensor", Index},
    {"index_add.default", IndexUpdate<true>},
    {"index_copy.default", IndexUpdate<false>},
    {"index_fill.int_Scalar", IndexFill},
    {"index_put.default", IndexPut},
    {"index_select.default", IndexSelect},
    {"masked_scatter.default", MaskedScatter},
    {"max.dim", ExtremumAndIndex<&Builder::ArgMax>},
    {"min.dim", ExtremumAndIndex<&Builder::ArgMin>},
    {"reflection_pad1d.default", ReflectionPad},
    {"reflection_pad2d.default", ReflectionPad},
    {"reflection_pad3d.default", ReflectionPad},
    {"replication_pad1d.default", ReplicationPad},
    {"replication_pad2d.default", ReplicationPad},
    {"replication_pad3d.default", ReplicationPad},
    {"roll.default", Roll},
    {"rot90.default", Rotate90},
    {"scatter.src", Scatter<false>},
    {"scatter.value", Scatter<false>},
    {"scatter_add.default", Scatter<true>},
    {"scatter_reduce.two", ScatterReduce},
    {"take.default", TakeFlat},
    {"take_along_dim.default", TakeAlongDim},
};

}  // namespace

std::vector<Value*> AtenPadByElements(AtenCall& call, const std::string& mode) {
  if (mode != "reflect" && mode != "replicate" && mode != "circular") {
    call.Throw("mode " + mode +
               ": expected constant, reflect, replicate or circular");
  }
  return PadByElements(call, mode);
}

std::span<const AtenOp> AtenIndexedOps() { return kIndexedOps; }

}  // namespace fusor::models
