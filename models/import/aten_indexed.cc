// Operators that access elements by index, cumulative sums.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
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
  Value* index;  // of the updates, along `dim`
  size_t dim;
  std::function<Value*(Value*)> add;   // adds updates to a zero tensor
  std::function<Value*(Value*)> take;  // reads self's element of each update
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
  const Ints zeros(ShapeOf(index).size(), 0);
  if (ShapeOf(updates) != ShapeOf(index)) {
    updates = b.Slice(updates, zeros, ShapeOf(index));
  }
  Ints dims(zeros.size());
  std::iota(dims.begin(), dims.end(), 0);
  dims[dim] = -1;
  Shape part = ShapeOf(index);
  part[dim] = ShapeOf(self)[dim];
  Ints high;
  for (size_t d = 0; d < part.size(); ++d) {
    high.push_back(ShapeOf(self)[d] - part[d]);
  }
  return {self,
          updates,
          index,
          dim,
          [=, &b](Value* x) {
            Value* sums = b.ScatterAdd(x, {index}, part, dims);
            return high == zeros ? sums : b.Pad(sums, zeros, high, zeros, 0);
          },
          [=, &b](Value* x) {
            if (high != zeros) x = b.Slice(x, zeros, part);
            return b.TakeAlong(x, index, static_cast<int64_t>(dim));
          }};
}

// The same for a vector of indices, one per row of the source.
Scattering RowsOf(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  Value* index = call.Tensor("index");
  Value* source = b.Cast(call.Tensor("source"), self->type().dtype);
  CheckIndex(call, index);
  const int64_t dim = DimArgument(call, self, "dim");
  index = b.Reshape(index, {index->type().num_elements()});
  Ints dims(ShapeOf(self).size());
  std::iota(dims.begin(), dims.end(), 0);
  dims[static_cast<size_t>(dim)] = -1;
  Value* rows = b.Broadcast(index, ShapeOf(source), {dim});
  return {self,
          source,
          rows,
          static_cast<size_t>(dim),
          [=, &b](Value* x) {
            return b.ScatterAdd(x, {rows}, ShapeOf(self), dims);
          },
          [=, &b](Value* x) { return b.Take(x, index, dim); }};
}

// Adds updates, a tensor or a number, to self, or replaces its elements.
template <bool kAdds>
Values Scatter(AtenCall& call) {
  const Scattering s = ScatteringOf(call);
  return {Updated(call.b(), s.self, s.updates, kAdds, s.add)};
}

// Returns the number of updates of each element.
Value* CountsOf(Builder& b, const Scattering& s) {
  const DType dtype = s.self->type().dtype;
  const DType counting = ir::IsFloat(dtype) ? dtype : DType::kI64;
  Value* ones = b.Constant(counting, ShapeOf(s.updates), {1});
  return b.StopGradient(s.add(ones));
}

// Returns whether each index is each of `extent` positions: [.., positions,
// indices, ..], where dimension `dim` of the index was.
Value* HitsOf(AtenCall& call, Value* index, size_t dim, int64_t extent) {
  Builder& b = call.b();
  Shape pair = ShapeOf(index);
  constexpr int64_t kMostPairs = 1 << 28;
  if (extent > kMostPairs / pair[dim]) {
    call.Throw(
        fmt::format("{} indices of {} elements: expected at most {} "
                    "pairs of them",
                    pair[dim], extent, kMostPairs));
  }
  pair.insert(pair.begin() + static_cast<long>(dim), extent);
  Ints dims(pair.size());
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + static_cast<long>(dim));
  return b.Compare("eq", b.Broadcast(b.Cast(index, DType::kI64), pair, dims),
                   b.Iota(DType::kI64, pair, static_cast<int64_t>(dim)));
}

// Reduces the updates of each element; those without any are undefined.
// Quadratic in the extent, because the IR's scatter only adds.
Value* ReducedUpdates(AtenCall& call, const Scattering& s, Value* updates,
                      const char* kind, Value* neutral) {
  Builder& b = call.b();
  Value* hits = HitsOf(call, s.index, s.dim, ShapeOf(s.self)[s.dim]);
  const auto dim = static_cast<int64_t>(s.dim);
  Ints dims(ShapeOf(hits).size());
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + dim);
  Value* own =
      b.Select(hits, b.Broadcast(updates, ShapeOf(hits), dims), neutral);
  Value* y = b.Add("reduce", {own},
                   {{"kind", std::string(kind)}, {"dims", Ints{dim + 1}}})
                 ->output();
  Ints high;
  for (size_t d = 0; d < ShapeOf(y).size(); ++d) {
    high.push_back(ShapeOf(s.self)[d] - ShapeOf(y)[d]);
  }
  const Ints zeros(high.size(), 0);
  return high == zeros ? y : b.Pad(y, zeros, high, zeros, 0);
}

// Returns the greatest or least update of each element, and of the element
// itself. As in PyTorch, equal ones share the gradient.
Value* ScatteredExtremum(AtenCall& call, const Scattering& s, bool greatest,
                         bool with_self) {
  Builder& b = call.b();
  Value* updates = s.updates;
  Ints all(ShapeOf(updates).size());
  std::iota(all.begin(), all.end(), 0);
  // No integer is infinite, but one of them is the other extremum.
  const double infinity = std::numeric_limits<double>::infinity();
  const bool floats = ir::IsFloat(s.self->type().dtype);
  Value* neutral =
      floats
          ? b.Scalar(s.self->type().dtype, greatest ? -infinity : infinity)
          : (greatest ? b.ReduceMin(updates, all) : b.ReduceMax(updates, all));
  Value* hit = b.Compare("gt", CountsOf(b, s), 0.0);
  Value* y =
      ReducedUpdates(call, s, updates, greatest ? "max" : "min", neutral);
  if (with_self) y = greatest ? b.Maximum(s.self, y) : b.Minimum(s.self, y);
  y = b.Select(hit, y, s.self);
  if (!floats) return y;
  return b.CustomGradient(y, {s.self, updates}, [&](Value* dy) {
    const DType dtype = y->type().dtype;
    Value* own = b.Compare("eq", s.self, y);
    if (!with_self) own = b.And(own, b.Not(hit));
    own = b.Cast(own, dtype);
    Value* others = b.Cast(b.Compare("eq", updates, s.take(y)), dtype);
    Value* share = b.Divide(dy, b.Plus(own, s.add(others)));
    return Values{b.Times(own, share), b.Times(others, s.take(share))};
  });
}

// Returns the product of the updates of each element, and of the element
// itself. Zeros are counted, not multiplied, so that the gradient, the product
// of the other factors, is a quotient of the product.
Value* ScatteredProduct(AtenCall& call, const Scattering& s, bool with_self) {
  Builder& b = call.b();
  const DType dtype = s.self->type().dtype;
  struct Factor {
    Value* none;     // 1 if it is zero, else 0
    Value* divisor;  // 1 if it is zero
  };
  const auto factor = [&](Value* x) {
    Value* none = b.Compare("eq", x, 0.0);
    return Factor{b.Cast(none, dtype), b.Select(none, b.ScalarLike(x, 1), x)};
  };
  const Factor own = factor(s.self);
  const Factor update = factor(s.updates);
  Value* hit = b.Compare("gt", CountsOf(b, s), 0.0);
  Value* product =
      ReducedUpdates(call, s, update.divisor, "prod", b.Scalar(dtype, 1));
  product = b.Select(hit, product, b.ScalarLike(product, 1));
  Value* zeros = s.add(update.none);
  if (with_self) {
    product = b.Times(product, own.divisor);
    zeros = b.Plus(zeros, own.none);
  }
  Value* whole = b.Cast(b.Compare("eq", zeros, 0.0), dtype);
  Value* y = b.Select(hit, b.Times(product, whole), s.self);
  if (!ir::IsFloat(dtype)) return y;
  return b.CustomGradient(y, {s.self, s.updates}, [&](Value* dy) {
    Value* shared = b.Times(dy, product);
    const auto of = [&](const Factor& x, Value* dp, Value* count) {
      Value* others = b.Compare("gt", b.Minus(count, x.none), 0.0);
      return b.Select(others, b.ScalarLike(dp, 0), b.Divide(dp, x.divisor));
    };
    return Values{with_self ? of(own, shared, zeros)
                            : b.Select(hit, b.ScalarLike(dy, 0), dy),
                  of(update, s.take(shared), s.take(zeros))};
  });
}

// Reduces the updates of each element, and the element itself.
template <Scattering (*operands)(AtenCall&)>
Values ScatterReduce(AtenCall& call) {
  Builder& b = call.b();
  const Scattering s = operands(call);
  const std::string reduce = call.Text("reduce", "");
  const bool with_self = call.Bool("include_self", true);
  if (reduce == "amax" || reduce == "amin") {
    return {ScatteredExtremum(call, s, reduce == "amax", with_self)};
  }
  if (reduce == "prod" || reduce == "multiply") {
    return {ScatteredProduct(call, s, with_self)};
  }
  const bool mean = reduce == "mean";
  if (!mean && reduce != "sum" && reduce != "add") {
    call.Throw("reduce " + reduce + ": expected sum, mean, prod, amax or amin");
  }
  if (mean && !with_self) {
    return {Updated(b, s.self, s.updates, false, s.add)};
  }
  Value* sums = s.add(s.updates);
  if (!mean && with_self) return {b.Plus(s.self, sums)};
  Value* counts = CountsOf(b, s);
  if (!mean) return {b.Select(b.Compare("gt", counts, 0.0), sums, s.self)};
  const DType dtype = s.self->type().dtype;
  Value* all = b.Plus(s.self, sums);
  Value* number = b.Cast(b.Plus(counts, 1.0), dtype);
  return {ir::IsFloat(dtype) ? b.Divide(all, number)
                             : b.FloorDivide(all, number)};
}

// The greatest elements of the rows [N,E] of each bag, the first of equal ones;
// 0 without rows. `kept` [N,1] is 0 for rows that do not count.
Value* GreatestOfBags(AtenCall& call, Value* rows, Value* bag, Value* kept,
                      int64_t bags) {
  Builder& b = call.b();
  Value* hits = HitsOf(call, bag, 0, bags);  // [bags,N,1]
  hits = b.And(hits, b.Compare("ne", kept, 0.0));
  const Shape shape{bags, ShapeOf(rows)[0], ShapeOf(rows)[1]};
  Value* found = b.ReduceMax(b.Cast(hits, rows->type().dtype), {1});
  hits = b.BroadcastTo(hits, shape);
  Value* none = b.ScalarLike(rows, -std::numeric_limits<double>::infinity());
  Value* row = b.ArgMax(b.Select(hits, b.Broadcast(rows, shape, {1, 2}),
                                 b.Broadcast(none, shape, {1, 2})),
                        1);
  Value* y = b.Gather(rows, {row}, {-1, 1});
  return b.Select(b.Compare("gt", found, 0.0), y, b.ScalarLike(y, 0));
}

// The sums, means or maxima of the rows of each bag: bag i is the elements of
// the index from offset i to the next one. Without kCountsFromEnd, a negative
// padding index is none.
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
  if (mode == kMax) {
    Value* rows = b.Take(table, index, 0);
    return {GreatestOfBags(call, rows, bag, share, bags), nullptr, nullptr,
            nullptr};
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
  Value* value =
      call.IsTensor("value")
          ? b.Cast(b.Reshape(call.Tensor("value"), {}), x->type().dtype)
          : b.Scalar(x->type().dtype, call.Number("value"));
  return {b.Select(hit, b.BroadcastTo(value, ShapeOf(x)), x)};
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
  const Scattering s = RowsOf(call);
  Value* source = s.updates;
  if (const double alpha = kAdds ? call.Number("alpha", 1) : 1; alpha != 1) {
    source = b.Times(source, alpha);
  }
  return {Updated(b, s.self, source, kAdds, s.add)};
}

// Replaces elements of the flat tensor, or adds to them.
Values PutFlat(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  const int64_t count = self->type().num_elements();
  Value* index = Normalized(call, call.Tensor("index"), count);
  index = b.Reshape(index, {index->type().num_elements()});
  Value* source = b.Cast(call.Tensor("source"), self->type().dtype);
  source = b.Reshape(source, {source->type().num_elements()});
  Value* y = Updated(
      b, b.Reshape(self, {count}), source, call.Bool("accumulate", false),
      [&](Value* x) { return b.ScatterAdd(x, {index}, {count}, {-1}); });
  return {b.Reshape(y, ShapeOf(self))};
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
    {"gather.default", Gather},
    {"index.Tensor", Index},
    {"index_add.default", IndexUpdate<true>},
    {"index_copy.default", IndexUpdate<false>},
    {"index_fill.int_Scalar", IndexFill},
    {"index_fill.int_Tensor", IndexFill},
    {"index_put.default", IndexPut},
    {"index_reduce.default", ScatterReduce<RowsOf>},
    {"index_select.default", IndexSelect},
    {"masked_scatter.default", MaskedScatter},
    {"max.dim", ExtremumAndIndex<&Builder::ArgMax>},
    {"min.dim", ExtremumAndIndex<&Builder::ArgMin>},
    {"put.default", PutFlat},
    {"scatter.reduce", ScatterReduce<ScatteringOf>},
    {"scatter.src", Scatter<false>},
    {"scatter.value", Scatter<false>},
    {"scatter.value_reduce", ScatterReduce<ScatteringOf>},
    {"scatter_add.default", Scatter<true>},
    {"scatter_reduce.two", ScatterReduce<ScatteringOf>},
    {"take.default", TakeFlat},
    {"take_along_dim.default", TakeAlongDim},
};

}  // namespace

std::span<const AtenOp> AtenIndexedOps() { return kIndexedOps; }

}  // namespace fusor::models
