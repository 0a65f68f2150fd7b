// Builder's access by index: composites of gather, scatter_add and reductions.

#include <algorithm>
#include <numeric>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {

using Ints = std::vector<int64_t>;

Value* Builder::Gather(Value* x, std::vector<Value*> indices, Ints dims,
                       Where at) {
  const Layer layer(*this, at);
  CheckValues("gather", {x}, at);
  for (const Value* index : indices) CheckValues("gather", {index}, at);
  if (indices.size() > 1) BroadcastTogether("gather", indices);
  indices.insert(indices.begin(), x);
  return Add(OpKind::kGather, std::move(indices), {{"dims", std::move(dims)}})
      ->output();
}

Value* Builder::Take(Value* x, Value* index, int64_t dim, Where at) {
  const Layer layer(*this, at);
  CheckValues("take", {x, index}, at);
  const auto rank = static_cast<int64_t>(x->type().rank());
  const auto added = static_cast<int64_t>(index->type().rank());
  dim = CheckDim("take", dim, x->type().rank(), at);
  Shape shape = x->type().shape;
  shape.erase(shape.begin() + dim);
  shape.insert(shape.begin() + dim, index->type().shape.begin(),
               index->type().shape.end());
  Ints dims;
  for (int64_t d = 0; d < rank; ++d) {
    dims.push_back(d < dim ? d : d == dim ? -1 : d - 1 + added);
  }
  Ints index_dims(static_cast<size_t>(added));
  std::iota(index_dims.begin(), index_dims.end(), dim);
  index = Broadcast(index, std::move(shape), std::move(index_dims));
  return Gather(x, {index}, std::move(dims));
}

Value* Builder::TakeAlong(Value* x, Value* index, int64_t dim, Where at) {
  const Layer layer(*this, at);
  CheckValues("take_along", {x, index}, at);
  dim = CheckDim("take_along", dim, x->type().rank(), at);
  CheckRank("take_along index", index, x->type().rank(), at);
  Ints dims(x->type().rank());
  std::iota(dims.begin(), dims.end(), 0);
  dims[dim] = -1;
  return Gather(x, {index}, std::move(dims));
}

// Keeps an index that only broadcasts compact, so that it is not stored in the
// shape of the updates.
Value* Builder::ScatterAdd(Value* updates, std::vector<Value*> indices,
                           Shape shape, Ints dims, Where at) {
  const Layer layer(*this, at);
  CheckValues("scatter_add", {updates}, at);
  const Shape& loop = updates->type().shape;
  Ints index_dims;
  for (Value*& index : indices) {
    CheckValues("scatter_add", {index}, at);
    FUSOR_CHECK(index->type().rank() <= loop.size(), kGraph,
                "scatter_add({}){}: an index {}", ToString(updates->type()),
                AtLocation(Here(at)), ToString(index->type()));
    const size_t first = loop.size() - index->type().rank();
    Shape squeezed;
    for (size_t d = 0; d < index->type().rank(); ++d) {
      if (index->type().shape[d] != loop[first + d] &&
          index->type().shape[d] == 1) {
        continue;
      }
      squeezed.push_back(index->type().shape[d]);
      index_dims.push_back(static_cast<int64_t>(first + d));
    }
    index = Reshape(index, squeezed);
  }
  indices.insert(indices.begin(), updates);
  return Add(OpKind::kScatterAdd, std::move(indices),
             {{"shape", std::move(shape)},
              {"dims", std::move(dims)},
              {"index_dims", std::move(index_dims)}})
      ->output();
}

Value* Builder::IndexOfHit(Value* hits, int64_t dim, bool keepdim, bool last) {
  const Shape& shape = hits->type().shape;
  Value* index = Iota(DType::kI64, shape, dim);
  const double none = last ? -1 : static_cast<double>(shape[dim]);
  Value* found = Select(hits, index, ScalarLike(index, none));
  return last ? ReduceMax(found, {dim}, keepdim)
              : ReduceMin(found, {dim}, keepdim);
}

// A NaN makes the extremum NaN, which equals nothing.
Value* Builder::ArgMax(Value* x, int64_t dim, bool keepdim, bool last,
                       Where at) {
  const Layer layer(*this, at);
  CheckValues("argmax", {x}, at);
  dim = CheckDim("argmax", dim, x->type().rank(), at);
  Value* hits = Compare("eq", x, Spread(ReduceMax(x, {dim}), x, {dim}));
  if (IsFloat(x->type().dtype)) hits = Or(hits, Compare("ne", x, x));
  return IndexOfHit(hits, dim, keepdim, last);
}

Value* Builder::ArgMin(Value* x, int64_t dim, bool keepdim, bool last,
                       Where at) {
  const Layer layer(*this, at);
  CheckValues("argmin", {x}, at);
  dim = CheckDim("argmin", dim, x->type().rank(), at);
  Value* hits = Compare("eq", x, Spread(ReduceMin(x, {dim}), x, {dim}));
  if (IsFloat(x->type().dtype)) hits = Or(hits, Compare("ne", x, x));
  return IndexOfHit(hits, dim, keepdim, last);
}

Value* Builder::CumulativeSum(Value* x, int64_t dim, bool exclusive,
                              bool reverse, Where at) {
  const Layer layer(*this, at);
  CheckValues("cumsum", {x}, at);
  dim = CheckDim("cumsum", dim, x->type().rank(), at);
  return Add(OpKind::kCumulativeSum, {x},
             {{"dim", dim}, {"exclusive", exclusive}, {"reverse", reverse}})
      ->output();
}

}  // namespace fusor::ir
