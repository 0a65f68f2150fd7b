#include <algorithm>
#include <cmath>
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

using Values = std::vector<Value*>;

// Replaces a -1 by the extent that the number of elements implies.
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
  if (call.Has("other")) {
    return {call.b().Reshape(x, ShapeOf(call.Tensor("other")))};
  }
  const char* name = call.Has("shape") ? "shape" : "size";
  return {call.b().Reshape(x, Inferred(call, x, call.Ints(name)))};
}

Values Flatten(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (RankOf(x) == 0) return {call.b().Reshape(x, {1})};
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
  return {call.b().Reshape(x, shape)};
}

Values Unflatten(AtenCall& call) {
  Value* x = call.Tensor("self");
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim"));
  const std::vector<int64_t> sizes = call.Ints("sizes");
  Shape shape = ShapeOf(x);
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
  if (call.Has("dim0") || call.Has("axis0")) {
    const int64_t a =
        DimOf(call, call.Int(call.Has("dim0") ? "dim0" : "axis0"), rank);
    const int64_t b =
        DimOf(call, call.Int(call.Has("dim1") ? "dim1" : "axis1"), rank);
    if (rank > 0) {
      std::swap(order[static_cast<size_t>(a)], order[static_cast<size_t>(b)]);
    }
  } else {
    std::ranges::reverse(order);
  }
  return order;
}
Values Permute(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {call.b().Transpose(x, PermutationOf(call, RankOf(x)))};
}
Value* WritePermuted(AtenCall& call, Value* base, Value* part, size_t) {
  return call.b().Transpose(
      part, ir::InversePermutation(PermutationOf(call, RankOf(base))));
}

Values Same(AtenCall& call) { return {call.Tensor("self")}; }
Value* WriteSame(AtenCall&, Value*, Value* part, size_t) { return part; }

Values Detach(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {x->type().num_elements() == 0 ? x : call.b().StopGradient(x)};
}

// A range of one dimension.
struct Range {
  size_t dim;
  int64_t start;
  int64_t end;
  int64_t step = 1;
};

Value* Part(AtenCall& call, Value* x, const Range& range) {
  const Shape& shape = ShapeOf(x);
  if (range.start == range.end) {
    ir::TensorType type{x->type().dtype, shape, {}};
    type.shape[range.dim] = 0;
    return EmptyPart(call.b(), std::move(type));
  }
  if (range.start < 0 || range.start > range.end ||
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
// Returns `base` with `part` at the positions of a range with a step.
Value* Interleaved(Builder& b, Value* base, Value* part, const Range& range) {
  const int64_t extent = ShapeOf(base)[range.dim];
  std::vector<double> positions, written;
  for (int64_t i = 0; i < extent; ++i) {
    const int64_t from = i - range.start;
    const bool inside = from >= 0 && i < range.end && from % range.step == 0;
    positions.push_back(inside ? static_cast<double>(from / range.step) : 0);
    written.push_back(inside ? 1 : 0);
  }
  const auto dim = static_cast<int64_t>(range.dim);
  Value* taken =
      b.Take(part, b.Constant(DType::kI32, {extent}, positions), dim);
  Value* mask = b.BroadcastAlong(b.Constant(DType::kBool, {extent}, written),
                                 base->type(), dim);
  return b.Select(mask, taken, base);
}

// Returns `base` with `part` in place of a range.
Value* Replaced(AtenCall& call, Value* base, Value* part, const Range& range) {
  if (range.start == range.end) return base;
  const int64_t extent = ShapeOf(base)[range.dim];
  if (range.step != 1) return Interleaved(call.b(), base, part, range);
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
          std::min(call.Int("step", 1), extent)};
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
  const int64_t index = DimOf(call, call.Int("index"), ShapeOf(x)[dim]);
  return {dim, index, index + 1};
}
Range NarrowRange(AtenCall& call, const Value* x) {
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim"));
  const int64_t extent = ShapeOf(x)[dim];
  const int64_t start = DimOf(call, call.Int("start"), extent);
  return {dim, start,
          start + std::clamp<int64_t>(call.Int("length"), 0, extent - start)};
}
Values Narrow(AtenCall& call) {
  Value* x = call.Tensor("self");
  return {Part(call, x, NarrowRange(call, x))};
}
Value* WriteNarrow(AtenCall& call, Value* base, Value* part, size_t) {
  return Replaced(call, base, part, NarrowRange(call, base));
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
      const int64_t chunks = std::clamp<int64_t>(call.Int("chunks"), 1, extent);
      size = (extent + chunks - 1) / chunks;
    } else if (call.Has("split_size")) {
      size = std::clamp<int64_t>(call.Int("split_size"), 1, extent);
    }
    constexpr int64_t kMostParts = 4096;
    if (extent / size > kMostParts) call.Throw("too many parts");
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

// The dimension that tensor_split (-1), vsplit, hsplit or dsplit cuts. hsplit
// cuts a vector's only dimension.
template <int64_t kDim>
size_t SectionDim(AtenCall& call, const Value* x) {
  if (kDim < 0) return static_cast<size_t>(DimArgument(call, x, "dim", 0));
  const int64_t rank = RankOf(x);
  const int64_t dim = kDim == 1 && rank == 1 ? 0 : kDim;
  if (dim >= rank || (kDim == 0 && rank < 2)) {
    call.Throw("expected more dimensions, got " + ToString(x->type()));
  }
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  const int64_t sections = call.Int("sections", 1);
  if (sections < 1 || extent % sections != 0) {
    call.Throw(
        fmt::format("{} equal sections of {}", sections, ToString(x->type())));
  }
  return static_cast<size_t>(dim);
}

// Cuts at indices, or into sections of which the first ones are greater.
template <int64_t kDim>
std::vector<Range> SectionRanges(AtenCall& call, const Value* x) {
  const size_t dim = SectionDim<kDim>(call, x);
  const int64_t extent = ShapeOf(x)[dim];
  std::vector<int64_t> ends;
  if (call.Has("indices")) {
    for (int64_t end : call.Ints("indices")) {
      ends.push_back(end < 0 ? end + extent : end);
    }
    ends.push_back(extent);
  } else {
    const int64_t sections = call.Int("sections");
    if (sections < 1 || sections > extent) {
      call.Throw(
          fmt::format("{} sections of {}", sections, ToString(x->type())));
    }
    for (int64_t i = 1; i <= sections; ++i) {
      ends.push_back(extent / sections * i + std::min(i, extent % sections));
    }
  }
  std::vector<Range> ranges;
  int64_t from = 0;
  for (const int64_t end : ends) {
    if (end <= from || end > extent) call.Throw("a part without elements");
    ranges.push_back({dim, from, end});
    from = end;
  }
  return ranges;
}
template <int64_t kDim>
Values Sections(AtenCall& call) {
  Value* x = call.Tensor("self");
  Values parts;
  for (const Range& range : SectionRanges<kDim>(call, x)) {
    parts.push_back(Part(call, x, range));
  }
  return parts;
}
template <int64_t kDim>
Value* WriteSection(AtenCall& call, Value* base, Value* part, size_t index) {
  return Replaced(call, base, part, SectionRanges<kDim>(call, base).at(index));
}

// Returns "self" with a part replaced by "src".
template <auto kWrite>
Values Scattered(AtenCall& call) {
  return {kWrite(call, call.Tensor("self"), call.Tensor("src"), 0)};
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

// Vectors, of which each becomes a dimension.
Values Meshgrid(AtenCall& call) {
  Builder& b = call.b();
  const Values given = call.Tensors("tensors");
  const std::string order = call.Text("indexing", "ij");
  if (order != "ij" && order != "xy") {
    call.Throw("indexing " + order + ": expected ij or xy");
  }
  std::vector<int64_t> dims(given.size());
  std::iota(dims.begin(), dims.end(), 0);
  if (order == "xy" && dims.size() > 1) std::swap(dims[0], dims[1]);
  Shape shape(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (RankOf(given[i]) > 1) {
      call.Throw("expected vectors, got " + ToString(given[i]->type()));
    }
    shape[static_cast<size_t>(dims[i])] = given[i]->type().num_elements();
  }
  Values grids;
  for (size_t i = 0; i < given.size(); ++i) {
    Value* vector = b.Reshape(given[i], {given[i]->type().num_elements()});
    grids.push_back(b.Broadcast(vector, shape, {dims[i]}));
  }
  return grids;
}

// Broadcasts all tensors to their common shape (numpy's rule).
Values BroadcastTensors(AtenCall& call) {
  Values tensors = call.Tensors("tensors");
  Shape common;
  for (const Value* tensor : tensors) {
    const Shape& shape = ShapeOf(tensor);
    if (shape.size() > common.size()) {
      common.insert(common.begin(), shape.size() - common.size(), 1);
    }
    const size_t added = common.size() - shape.size();
    for (size_t i = 0; i < shape.size(); ++i) {
      if (common[added + i] == 1) common[added + i] = shape[i];
    }
  }
  for (Value*& tensor : tensors) {
    tensor = call.b().BroadcastTo(tensor, common);
  }
  return tensors;
}

// Operands without elements add nothing, whatever their rank.
Values Cat(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  std::erase_if(parts, [](const Value* part) {
    return part->type().num_elements() == 0;
  });
  if (parts.empty()) call.Throw("tensors without elements");
  ToCommonDType(call.b(), parts);
  return {call.b().Concat(parts, call.Int("dim", 0))};
}

Values Stack(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  const int64_t dim = DimOf(call, call.Int("dim", 0), RankOf(parts[0]) + 1);
  for (Value*& part : parts) {
    Shape shape = ShapeOf(part);
    shape.insert(shape.begin() + dim, 1);
    part = call.b().Reshape(part, shape);
  }
  ToCommonDType(call.b(), parts);
  return {call.b().Concat(parts, dim)};
}

// Pairs of low and high padding, last dimension first. Negative ones crop.
Values Pad(AtenCall& call) {
  Value* x = call.Tensor("self");
  const double value = call.Number("value", 0);
  if (const std::string mode = call.Text("mode", "constant");
      mode != "constant") {
    return AtenPadByElements(call, mode);
  }
  const std::vector<int64_t> pad = call.Ints("pad");
  const auto rank = static_cast<size_t>(RankOf(x));
  const bool small = std::all_of(pad.begin(), pad.end(), [](int64_t extent) {
    return -ir::kMaxElements <= extent && extent <= ir::kMaxElements;
  });
  if (!small || pad.size() % 2 != 0 || pad.size() > 2 * rank) {
    call.Throw("pad: expected two extents for each of the last dimensions");
  }
  const std::vector<int64_t> zeros(rank, 0);
  std::vector<int64_t> low = zeros, high = zeros, start = zeros;
  Shape limit = ShapeOf(x);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = rank - 1 - i;
    low[dim] = std::max<int64_t>(pad[2 * i], 0);
    high[dim] = std::max<int64_t>(pad[2 * i + 1], 0);
    start[dim] = std::max<int64_t>(-pad[2 * i], 0);
    limit[dim] += low[dim] + std::min(pad[2 * i + 1], high[dim]);
  }
  if (low != zeros || high != zeros) {
    x = call.b().Pad(x, low, high, zeros, value);
  }
  if (limit == ShapeOf(x) && start == zeros) return {x};
  return {call.b().Slice(x, start, limit)};
}

Values Repeat(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const bool tiles = call.Has("dims");  // may have fewer
  std::vector<int64_t> repeats = call.Ints(tiles ? "dims" : "repeats");
  if (tiles && repeats.size() < ShapeOf(x).size()) {
    repeats.insert(repeats.begin(), ShapeOf(x).size() - repeats.size(), 1);
  }
  if (repeats.size() < ShapeOf(x).size()) call.Throw("repeats: too few");
  Shape shape(repeats.size() - ShapeOf(x).size(), 1);
  shape.insert(shape.end(), ShapeOf(x).begin(), ShapeOf(x).end());
  // [a, b] -> [1, a, 1, b] -> [r, a, s, b] -> [r a, s b].
  Shape apart, wide, merged;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (repeats[i] < 1) call.Throw("repeats: expected 1 or more");
    apart.insert(apart.end(), {1, shape[i]});
    wide.insert(wide.end(), {repeats[i], shape[i]});
    merged.push_back(ir::NumElements({repeats[i], shape[i]}));
  }
  return {b.Reshape(b.BroadcastTo(b.Reshape(x, apart), wide), merged)};
}

// Differences of neighbours along a dimension.
Values Diff(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const auto dim = static_cast<size_t>(DimArgument(call, x, "dim", -1));
  Values parts;
  for (const char* name : {"prepend", "self", "append"}) {
    if (call.Has(name)) parts.push_back(call.Tensor(name));
  }
  x = b.Concat(parts, static_cast<int64_t>(dim));
  for (int64_t n = std::min<int64_t>(call.Int("n", 1), 16); n > 0; --n) {
    const int64_t extent = ShapeOf(x)[dim];
    Value* later = Part(call, x, {dim, 1, extent});
    Value* earlier = Part(call, x, {dim, 0, extent - 1});
    x = x->type().dtype == DType::kBool ? b.Compare("ne", later, earlier)
                                        : b.Minus(later, earlier);
  }
  return {x};
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

using enum AtenMemory;

constexpr AtenOp kShapesOps[] = {
    // Views
    {"alias.default", Same, kView, WriteSame},
    {"resolve_conj.default", Same, kView, WriteSame},
    {"resolve_neg.default", Same, kView, WriteSame},
    {"positive.default", Same, kView, WriteSame},
    {"chunk.default", Split, kView, WriteSplit},
    {"contiguous.default", Same, kMaybeView, WriteSame},
    {"detach.default", Detach, kView},
    {"dsplit.array", Sections<2>, kView, WriteSection<2>},
    {"dsplit.int", Sections<2>, kView, WriteSection<2>},
    {"broadcast_tensors.default", BroadcastTensors, kMaybeView},
    {"broadcast_to.default", Expand, kView},
    {"expand.default", Expand, kView},
    {"expand_as.default", Expand, kView},
    {"flatten.using_ints", Flatten, kMaybeView, WriteReshaped},
    {"hsplit.array", Sections<1>, kView, WriteSection<1>},
    {"hsplit.int", Sections<1>, kView, WriteSection<1>},
    {"narrow.default", Narrow, kView, WriteNarrow},
    {"numpy_T.default", Permute, kView, WritePermuted},
    {"permute.default", Permute, kView, WritePermuted},
    {"ravel.default", Flatten, kMaybeView, WriteReshaped},
    {"reshape.default", View, kMaybeView, WriteReshaped},
    {"reshape_as.default", View, kMaybeView, WriteReshaped},
    {"select.int", Select, kView, WriteSelect},
    {"slice.Tensor", Slice, kView, WriteSlice},
    {"split.Tensor", Split, kView, WriteSplit},
    {"split_with_sizes.default", Split, kView, WriteSplit},
    {"squeeze.default", Squeeze, kView, WriteReshaped},
    {"squeeze.dim", Squeeze, kView, WriteReshaped},
    {"squeeze.dims", Squeeze, kView, WriteReshaped},
    {"swapaxes.default", Permute, kView, WritePermuted},
    {"swapdims.default", Permute, kView, WritePermuted},
    {"t.default", Permute, kView, WritePermuted},
    {"tensor_split.indices", Sections<-1>, kView, WriteSection<-1>},
    {"tensor_split.sections", Sections<-1>, kView, WriteSection<-1>},
    {"transpose.int", Permute, kView, WritePermuted},
    {"unbind.int", Unbind, kView},
    {"unflatten.int", Unflatten, kView, WriteReshaped},
    {"unsqueeze.default", Unsqueeze, kView, WriteReshaped},
    {"view.default", View, kView, WriteReshaped},
    {"view_as.default", View, kView, WriteReshaped},
    {"vsplit.array", Sections<0>, kView, WriteSection<0>},
    {"vsplit.int", Sections<0>, kView, WriteSection<0>},
    {"_unsafe_view.default", View},
    // Data movement
    {"alias_copy.default", Same},
    {"detach_copy.default", Detach},
    {"expand_copy.default", Expand},
    {"meshgrid.default", Meshgrid},
    {"meshgrid.indexing", Meshgrid},
    {"narrow_copy.default", Narrow},
    {"permute_copy.default", Permute},
    {"select_copy.int", Select},
    {"slice_copy.Tensor", Slice},
    {"split_copy.Tensor", Split},
    {"split_with_sizes_copy.default", Split},
    {"squeeze_copy.default", Squeeze},
    {"squeeze_copy.dim", Squeeze},
    {"squeeze_copy.dims", Squeeze},
    {"t_copy.default", Permute},
    {"transpose_copy.int", Permute},
    {"unbind_copy.int", Unbind},
    {"unsafe_chunk.default", Split},
    {"unsafe_split.Tensor", Split},
    {"unsafe_split_with_sizes.default", Split},
    {"unsqueeze_copy.default", Unsqueeze},
    {"view_copy.default", View},
    {"_to_copy.default", Convert},
    {"cat.default", Cat},
    {"clone.default", Same},
    {"conj_physical.default", Same},
    {"constant_pad_nd.default", Pad},
    {"copy.default", Copy},
    {"diff.default", Diff},
    {"lift_fresh_copy.default", Same},
    {"pad.default", Pad},
    {"repeat.default", Repeat},
    {"select_scatter.default", Scattered<WriteSelect>},
    {"slice_scatter.default", Scattered<WriteSlice>},
    {"stack.default", Stack},
    {"tile.default", Repeat},
    {"to.device", Convert, kMaybeView},
    {"to.dtype", Convert, kMaybeView},
    {"to.dtype_layout", Convert, kMaybeView},
    {"tril.default", Triangle<true>},
    {"triu.default", Triangle<false>},
    {"type_as.default", Convert, kMaybeView},
    {"fill.Scalar", Fill},
    {"fill.Tensor", Fill},
};

}  // namespace

std::span<const AtenOp> AtenShapeOps() { return kShapesOps; }

}  // namespace fusor::models
