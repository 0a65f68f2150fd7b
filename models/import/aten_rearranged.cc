// Rearrangements of elements that consist of others: shuffles, windows,
// diagonals, stacks, reversals.

#include <algorithm>
#include <cstdlib>
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

using Ints64 = std::vector<int64_t>;
using Values = std::vector<Value*>;

void CheckRank(AtenCall& call, const Value* x, int64_t least) {
  if (RankOf(x) >= least) return;
  call.Throw(fmt::format("expected rank {} or more, got {}", least,
                         ToString(x->type())));
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

// Reshapes x to `parts`, permutes them, and reshapes to `shape`.
Value* Shuffled(Builder& b, Value* x, const Shape& parts, Ints64 permutation,
                const Shape& shape) {
  return b.Reshape(b.Transpose(b.Reshape(x, parts), std::move(permutation)),
                   shape);
}

// [.., C r r, H, W] <-> [.., C, H r, W r]
template <bool kToPixels>
Values PixelShuffle(AtenCall& call) {
  Value* x = call.Tensor("self");
  CheckRank(call, x, 3);
  const int64_t r = call.Int(kToPixels ? "upscale_factor" : "downscale_factor");
  Shape shape = ShapeOf(x);
  const size_t at = shape.size() - 3;
  int64_t& c = shape[at];
  int64_t& h = shape[at + 1];
  int64_t& w = shape[at + 2];
  const bool fits =
      r > 0 && (kToPixels ? c % (r * r) == 0 : h % r == 0 && w % r == 0);
  if (!fits) call.Throw(fmt::format("factor {} of {}", r, ToString(x->type())));
  const int64_t n = x->type().num_elements() / (c * h * w);
  if (kToPixels) {
    c /= r * r;
    const Shape parts{n, c, r, r, h, w};
    h *= r;
    w *= r;
    return {Shuffled(call.b(), x, parts, {0, 1, 4, 2, 5, 3}, shape)};
  }
  h /= r;
  w /= r;
  const Shape parts{n, c, h, r, w, r};
  c *= r * r;
  return {Shuffled(call.b(), x, parts, {0, 1, 3, 5, 2, 4}, shape)};
}

Values ChannelShuffle(AtenCall& call) {
  Value* x = call.Tensor("self");
  CheckRank(call, x, 2);
  const int64_t groups = call.Int("groups");
  const Shape& shape = ShapeOf(x);
  if (groups < 1 || shape[1] % groups != 0) {
    call.Throw(fmt::format("{} groups of {}", groups, ToString(x->type())));
  }
  const int64_t rest = x->type().num_elements() / (shape[0] * shape[1]);
  return {Shuffled(call.b(), x, {shape[0], groups, shape[1] / groups, rest},
                   {0, 2, 1, 3}, shape)};
}

// --- Windows -----------------------------------------------------------------

// Returns [window, count] with the positions of `count` windows' elements.
Value* WindowIndex(Builder& b, int64_t window, int64_t count, int64_t stride,
                   int64_t dilation) {
  std::vector<double> positions;
  for (int64_t k = 0; k < window; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      positions.push_back(static_cast<double>(k * dilation + i * stride));
    }
  }
  return b.Constant(DType::kI32, {window, count}, std::move(positions));
}

// The windows of one dimension become a dimension, their elements the last one.
Values Unfold(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t dim = DimArgument(call, x, "dimension");
  const int64_t size = call.Int("size");
  const int64_t step = call.Int("step");
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(dim)];
  if (size < 1 || size > extent || step < 1) {
    call.Throw(fmt::format("windows of {}, step {}, of {}", size, step,
                           ToString(x->type())));
  }
  const int64_t count = (extent - size) / step + 1;
  Value* y = b.Take(x, WindowIndex(b, size, count, step, 1), dim);
  Ints64 order;
  for (int64_t d = 0; d < RankOf(y); ++d) {
    if (d != dim) order.push_back(d);
  }
  order.push_back(dim);
  return {b.Transpose(y, order)};
}

// The arguments of im2col and col2im, two of each, and the number of windows.
struct Windows {
  Ints64 kernel, dilation, padding, stride, count;
};
Windows WindowsOf(AtenCall& call, const Ints64& image) {
  Windows w{Repeated(call.Ints("kernel_size"), 2),
            Repeated(call.Ints("dilation", {1}), 2),
            Repeated(call.Ints("padding", {0}), 2),
            Repeated(call.Ints("stride", {1}), 2),
            {}};
  for (const Ints64& two : {w.kernel, w.dilation, w.padding, w.stride}) {
    if (two.size() != 2) call.Throw("expected one or two extents");
  }
  for (size_t d = 0; d < 2; ++d) {
    const int64_t span = w.dilation[d] * (w.kernel[d] - 1) + 1;
    const int64_t padded = image[d] + 2 * w.padding[d];
    if (w.kernel[d] < 1 || w.dilation[d] < 1 || w.padding[d] < 0 ||
        w.stride[d] < 1 || span > padded) {
      call.Throw(
          fmt::format("a window of {} in an extent of {}", span, padded));
    }
    w.count.push_back((padded - span) / w.stride[d] + 1);
  }
  return w;
}

// [N,C,H,W] -> [N, C kh kw, windows]
Values ImageToColumns(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const bool batched = RankOf(x) == 4;
  if (!batched && RankOf(x) != 3) {
    call.Throw("expected [N,C,H,W], got " + ToString(x->type()));
  }
  Shape shape = ShapeOf(x);
  if (!batched) shape.insert(shape.begin(), 1);
  const Windows w = WindowsOf(call, {shape[2], shape[3]});
  const Ints64 pad{0, 0, w.padding[0], w.padding[1]};
  x = b.Pad(b.Reshape(x, shape), pad, pad, {0, 0, 0, 0}, 0);
  for (size_t d = 0; d < 2; ++d) {
    x = b.Take(
        x, WindowIndex(b, w.kernel[d], w.count[d], w.stride[d], w.dilation[d]),
        d == 0 ? 2 : 4);
  }
  Shape columns{shape[0], shape[1] * w.kernel[0] * w.kernel[1],
                w.count[0] * w.count[1]};
  if (!batched) columns.erase(columns.begin());
  return {b.Reshape(b.Transpose(x, {0, 1, 2, 4, 3, 5}), columns)};
}

// Adds overlapping windows: the transpose of ImageToColumns.
Values ColumnsToImage(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const Ints64 image = Repeated(call.Ints("output_size"), 2);
  if (image.size() != 2) call.Throw("output_size: expected two extents");
  const Windows w = WindowsOf(call, image);
  const bool batched = RankOf(x) == 3;
  const int64_t points = w.kernel[0] * w.kernel[1];
  const int64_t windows = w.count[0] * w.count[1];
  if ((!batched && RankOf(x) != 2) || ShapeOf(x).back() != windows ||
      ShapeOf(x)[batched ? 1 : 0] % points != 0) {
    call.Throw(fmt::format("expected [N, C {}, {}], got {}", points, windows,
                           ToString(x->type())));
  }
  const int64_t n = batched ? ShapeOf(x)[0] : 1;
  const int64_t c = ShapeOf(x)[batched ? 1 : 0] / points;
  x = b.Reshape(x, {n, c, w.kernel[0], w.kernel[1], w.count[0], w.count[1]});
  x = b.Transpose(x, {0, 1, 2, 4, 3, 5});
  const int64_t height = image[0] + 2 * w.padding[0];
  const int64_t width = image[1] + 2 * w.padding[1];
  const auto index = [&](size_t d, Ints64 dims) {
    return b.Broadcast(
        WindowIndex(b, w.kernel[d], w.count[d], w.stride[d], w.dilation[d]),
        ShapeOf(x), std::move(dims));
  };
  x = b.ScatterAdd(x, {index(1, {4, 5})},
                   {n, c, w.kernel[0], w.count[0], width}, {0, 1, 2, 3, -1});
  x = b.ScatterAdd(x, {index(0, {2, 3})}, {n, c, height, width}, {0, 1, -1, 4});
  x = b.Slice(x, {0, 0, w.padding[0], w.padding[1]},
              {n, c, w.padding[0] + image[0], w.padding[1] + image[1]});
  if (batched) return {x};
  return {b.Reshape(x, {c, image[0], image[1]})};
}

// --- Diagonals ---------------------------------------------------------------

// Returns the order of dimensions of x with two of them at the end.
Ints64 LastOrder(const Value* x, int64_t first, int64_t second) {
  Ints64 order;
  for (int64_t d = 0; d < RankOf(x); ++d) {
    if (d != first && d != second) order.push_back(d);
  }
  order.push_back(first);
  order.push_back(second);
  return order;
}
Value* WithLast(Builder& b, Value* x, int64_t first, int64_t second) {
  return b.Transpose(x, LastOrder(x, first, second));
}

template <int64_t kFirst, int64_t kSecond>
Values Diagonal(AtenCall& call) {
  const bool linalg = call.Has("A");
  Value* x = call.Tensor(linalg ? "A" : "self");
  CheckRank(call, x, 2);
  const int64_t first = DimArgument(call, x, "dim1", kFirst);
  const int64_t second = DimArgument(call, x, "dim2", kSecond);
  if (first == second) call.Throw("dim1 and dim2: expected two dimensions");
  return {LastDiagonal(call, WithLast(call.b(), x, first, second),
                       call.Int("offset", 0))};
}

// Replaces the diagonal of two dimensions of x.
Value* WithDiagonal(AtenCall& call, Value* x, Value* diagonal) {
  Builder& b = call.b();
  CheckRank(call, x, 2);
  const int64_t offset = call.Int("offset", 0);
  const int64_t first = DimArgument(call, x, "dim1", 0);
  const int64_t second = DimArgument(call, x, "dim2", 1);
  if (first == second) call.Throw("dim1 and dim2: expected two dimensions");
  const Ints64 order = LastOrder(x, first, second);
  Value* last = b.Transpose(x, order);
  const Shape shape = ShapeOf(last);
  if (ShapeOf(diagonal) != ShapeOf(LastDiagonal(call, last, offset))) {
    call.Throw(fmt::format("a diagonal of {} for {}",
                           ToString(diagonal->type()), ToString(x->type())));
  }
  const int64_t rank = RankOf(x);
  const Shape matrix(shape.end() - 2, shape.end());
  Value* row = b.Iota(DType::kI64, matrix, 0);
  Value* hit = b.Compare("eq", b.Iota(DType::kI64, matrix, 1),
                         b.Plus(row, static_cast<double>(offset)));
  // The diagonal's element of each row, or any one.
  const int64_t count = ShapeOf(diagonal).back();
  Value* rows = Rearranged(
      call, diagonal, static_cast<size_t>(rank - 2), matrix[0], [&](int64_t i) {
        const int64_t at = i + std::min<int64_t>(offset, 0);
        return std::clamp<int64_t>(at, 0, count - 1);
      });
  Ints64 dims(static_cast<size_t>(rank - 1));
  std::iota(dims.begin(), dims.end(), 0);
  Value* y = b.Select(b.Broadcast(hit, shape, {rank - 2, rank - 1}),
                      b.Broadcast(rows, shape, dims), last);
  return b.Transpose(y, ir::InversePermutation(order));
}

Values DiagonalScatter(AtenCall& call) {
  Value* self = call.Tensor("self");
  Value* source = call.b().Cast(call.Tensor("src"), self->type().dtype);
  return {WithDiagonal(call, self, source)};
}
Value* WriteDiagonal(AtenCall& call, Value* base, Value* part, size_t) {
  return WithDiagonal(call, base, part);
}

// Returns matrices with the last dimension as their diagonal.
Value* Embedded(Builder& b, Value* x, int64_t offset) {
  const int64_t count = ShapeOf(x).back();
  const int64_t size = count + std::abs(offset);
  const Shape square{size, size};
  Value* places = b.Compare(
      "eq", b.Iota(DType::kI64, square, 1),
      b.Plus(b.Iota(DType::kI64, square, 0), static_cast<double>(offset)));
  // Element i is in column i, or i + offset; the rest is 0.
  Ints64 low(ShapeOf(x).size(), 0);
  Ints64 high = low;
  low.back() = std::max<int64_t>(offset, 0);
  high.back() = std::max<int64_t>(-offset, 0);
  x = b.Pad(x, low, high, Ints64(low.size(), 0), 0);
  Shape shape = ShapeOf(x);
  shape.push_back(size);
  Ints64 dims(shape.size() - 2);
  std::iota(dims.begin(), dims.end(), 0);
  dims.push_back(static_cast<int64_t>(shape.size()) - 1);
  shape[shape.size() - 2] = size;
  Value* wide = b.Broadcast(x, shape, dims);
  const auto last = static_cast<int64_t>(shape.size());
  return b.Select(b.Broadcast(places, shape, {last - 2, last - 1}), wide,
                  b.ScalarLike(wide, 0));
}

Values DiagonalEmbedding(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  CheckRank(call, x, 1);
  Value* y = Embedded(b, x, call.Int("offset", 0));
  const int64_t first = DimArgument(call, y, "dim1", -2);
  const int64_t second = DimArgument(call, y, "dim2", -1);
  if (first == second) call.Throw("dim1 and dim2: expected two dimensions");
  Ints64 order(ShapeOf(y).size());
  int64_t next = 0;
  for (int64_t d = 0; d < RankOf(y); ++d) {
    order[static_cast<size_t>(d)] = d == first    ? RankOf(y) - 2
                                    : d == second ? RankOf(y) - 1
                                                  : next++;
  }
  return {b.Transpose(y, order)};
}

Values Diag(AtenCall& call) {
  Value* x = call.Tensor("self");
  const int64_t offset = call.Int("diagonal", 0);
  if (RankOf(x) == 1) return {Embedded(call.b(), x, offset)};
  if (RankOf(x) != 2) call.Throw("expected a vector or a matrix");
  return {LastDiagonal(call, x, offset)};
}

Values DiagonalOfFlat(AtenCall& call) {
  Value* x = call.Tensor("self");
  x = call.b().Reshape(x, {x->type().num_elements()});
  return {Embedded(call.b(), x, call.Int("offset", 0))};
}

Values Trace(AtenCall& call) {
  Value* x = call.Tensor("self");
  if (RankOf(x) != 2) call.Throw("expected a matrix");
  return {call.b().ReduceSum(LastDiagonal(call, x, 0), {0})};
}

// --- Reversals and padding ---------------------------------------------------

// Reads all rolled dimensions at once.
Values Roll(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const Ints64 shifts = call.Ints("shifts");
  const Ints64 dims = call.Ints("dims");
  if (shifts.size() != dims.size()) {
    call.Throw("expected as many shifts as dims");
  }
  Ints64 total(ShapeOf(x).size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto dim = static_cast<size_t>(DimOf(call, dims[i], RankOf(x)));
    const int64_t extent = ShapeOf(x)[dim];
    total[dim] = (total[dim] + shifts[i] % extent + extent) % extent;
  }
  Values indices;
  Ints64 read(total.size());
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
  const Ints64 dims = call.Ints("dims");
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
  Ints64 dims = call.Ints("dims", {0, 1});
  if (dims.size() != 2) call.Throw("dims: expected two");
  for (int64_t& dim : dims) dim = DimOf(call, dim, RankOf(x));
  if (dims[0] == dims[1]) call.Throw("dims: expected two different ones");
  const int64_t turns = (call.Int("k", 1) % 4 + 4) % 4;
  const auto first = static_cast<size_t>(dims[0]);
  const auto second = static_cast<size_t>(dims[1]);
  if (turns == 2) return {Flipped(call, Flipped(call, x, first), second)};
  if (turns == 0) return {x};
  Ints64 permutation(ShapeOf(x).size());
  std::iota(permutation.begin(), permutation.end(), 0);
  std::swap(permutation[first], permutation[second]);
  return {call.b().Transpose(Flipped(call, x, turns == 1 ? second : first),
                             std::move(permutation))};
}

// Pairs of low and high padding, last dimension first.
Values PadByElements(AtenCall& call, const std::string& mode) {
  Value* x = call.Tensor("self");
  const Ints64 pad = call.Ints(call.Has("pad") ? "pad" : "padding");
  if (pad.size() % 2 != 0 || pad.size() > 2 * ShapeOf(x).size()) {
    call.Throw("pad: expected two extents for each of the last dimensions");
  }
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t dim = ShapeOf(x).size() - 1 - i;
    const int64_t extent = ShapeOf(x)[dim];
    // Clamped, so that sums do not overflow: either limit is refused below.
    const auto padding = [&](size_t at) {
      return std::clamp(pad[at], -ir::kMaxElements - 1, ir::kMaxElements + 1);
    };
    const int64_t low = padding(2 * i), high = padding(2 * i + 1);
    // Negative padding crops. What is left repeats.
    const int64_t first = std::max<int64_t>(-low, 0);
    const int64_t left = extent - first + std::min<int64_t>(high, 0);
    const int64_t most = mode == "reflect"    ? extent - 1
                         : mode == "circular" ? left
                                              : ir::kMaxElements;
    const int64_t least = mode == "replicate" ? -ir::kMaxElements : 1 - extent;
    if (std::max(low, high) > most || std::min(low, high) < least ||
        low + extent + high < 1) {
      call.Throw(fmt::format("pad {} and {} of an extent of {} by mode {}", low,
                             high, extent, mode));
    }
    if (low == 0 && high == 0) continue;
    x = Rearranged(call, x, dim, low + extent + high, [&](int64_t to) {
      const int64_t at = to - low;
      if (mode == "circular") {
        return first + ((at - first) % left + left) % left;
      }
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

// --- Stacks, splits and repetitions ------------------------------------------

// Adds dimensions of extent 1 up to rank kRank, as torch.atleast_Nd does.
template <int64_t kRank>
Value* AtLeast(Builder& b, Value* x) {
  Shape shape = ShapeOf(x);
  if (shape.empty() && kRank > 0) shape = {1};
  if (shape.size() == 1 && kRank > 1) shape.insert(shape.begin(), 1);
  if (shape.size() == 2 && kRank > 2) shape.push_back(1);
  return b.Reshape(x, shape);
}
template <int64_t kRank>
Values AtLeastRank(AtenCall& call) {
  return {AtLeast<kRank>(call.b(), call.Tensor("self"))};
}

Values Joined(AtenCall& call, Values parts, int64_t dim) {
  ToCommonDType(call.b(), parts);
  return {call.b().Concat(std::move(parts), dim)};
}
template <int64_t kRank>
Values StackAlong(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  for (Value*& part : parts) part = AtLeast<kRank>(call.b(), part);
  // hstack joins vectors along their only dimension.
  const int64_t dim = kRank == 1   ? std::min<int64_t>(RankOf(parts[0]) - 1, 1)
                      : kRank == 2 ? 0
                                   : 2;
  return Joined(call, std::move(parts), dim);
}
// Vectors become columns.
Values ColumnStack(AtenCall& call) {
  Values parts = call.Tensors("tensors");
  for (Value*& part : parts) {
    if (RankOf(part) < 2) {
      part = call.b().Reshape(part, {part->type().num_elements(), 1});
    }
  }
  return Joined(call, std::move(parts), 1);
}

// Matrices along a diagonal, zeros elsewhere.
Values BlockDiagonal(AtenCall& call) {
  Builder& b = call.b();
  Values parts = call.Tensors("tensors");
  int64_t width = 0;
  for (Value*& part : parts) {
    part = AtLeast<2>(b, part);
    if (RankOf(part) != 2) call.Throw("expected matrices");
    width += ShapeOf(part)[1];
  }
  int64_t left = 0;
  for (Value*& part : parts) {
    const int64_t own = ShapeOf(part)[1];
    part = b.Pad(part, {0, left}, {0, width - left - own}, {0, 0}, 0);
    left += own;
  }
  return Joined(call, std::move(parts), 0);
}

Values RepeatInterleave(AtenCall& call) {
  Value* x = call.Tensor("self");
  const int64_t repeats = call.Int("repeats");
  if (call.Has("output_size")) call.Int("output_size");  // as computed here
  const bool flat = !call.Has("dim");
  if (flat) x = call.b().Reshape(x, {x->type().num_elements()});
  return {
      RepeatElements(call, x, flat ? 0 : DimArgument(call, x, "dim"), repeats)};
}

Values MoveDim(AtenCall& call) {
  Value* x = call.Tensor("self");
  Ints64 from = call.Ints("source");
  Ints64 to = call.Ints("destination");
  if (from.size() != to.size()) call.Throw("expected as many destinations");
  for (int64_t& dim : from) dim = DimOf(call, dim, RankOf(x));
  for (int64_t& dim : to) dim = DimOf(call, dim, RankOf(x));
  Ints64 order(ShapeOf(x).size(), -1);
  for (size_t i = 0; i < from.size(); ++i) {
    order[static_cast<size_t>(to[i])] = from[i];
  }
  int64_t next = 0;
  for (int64_t& dim : order) {
    if (dim >= 0) continue;
    while (std::find(from.begin(), from.end(), next) != from.end()) ++next;
    dim = next++;
  }
  return {call.b().Transpose(x, order)};
}

Values MatrixTranspose(AtenCall& call) {
  Value* x = call.Tensor("self");
  CheckRank(call, x, 2);
  return {WithLast(call.b(), x, RankOf(x) - 1, RankOf(x) - 2)};
}
Value* WriteMatrixTranspose(AtenCall& call, Value*, Value* part, size_t) {
  return WithLast(call.b(), part, RankOf(part) - 1, RankOf(part) - 2);
}

// The tuples of elements of vectors, one per row.
Values CartesianProduct(AtenCall& call) {
  Builder& b = call.b();
  const Values given = call.Tensors("tensors");
  if (given.size() == 1) return given;
  Shape shape;
  for (const Value* vector : given) {
    if (RankOf(vector) != 1) {
      call.Throw("expected vectors, got " + ToString(vector->type()));
    }
    shape.push_back(ShapeOf(vector)[0]);
  }
  const int64_t count = ir::NumElements(shape);
  Values columns;
  for (size_t i = 0; i < given.size(); ++i) {
    Value* grid = b.Broadcast(given[i], shape, {static_cast<int64_t>(i)});
    columns.push_back(b.Reshape(grid, {count, 1}));
  }
  return Joined(call, std::move(columns), 1);
}

// The subsets of r elements of a vector, in order, one per row.
Values Combinations(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const int64_t r = call.Int("r", 2);
  const bool repeated = call.Bool("with_replacement", false);
  const int64_t extent = x->type().num_elements();
  constexpr int64_t kMost = 1 << 22;
  if (RankOf(x) != 1 || r < 1 || r > kMost || (!repeated && r > extent)) {
    call.Throw(fmt::format("{} of {}", r, ToString(x->type())));
  }
  std::vector<double> indices;
  Ints64 subset(static_cast<size_t>(r));
  if (!repeated) std::iota(subset.begin(), subset.end(), 0);
  for (bool more = true; more;) {
    indices.insert(indices.end(), subset.begin(), subset.end());
    if (std::ssize(indices) > kMost) call.Throw("too many subsets");
    // Advances the last index that can.
    more = false;
    for (size_t i = subset.size(); i-- > 0 && !more;) {
      const auto after = static_cast<int64_t>(subset.size() - 1 - i);
      more = subset[i] + 1 < extent - (repeated ? 0 : after);
      if (!more) continue;
      ++subset[i];
      for (size_t j = i + 1; j < subset.size(); ++j) {
        subset[j] = subset[j - 1] + (repeated ? 0 : 1);
      }
    }
  }
  const int64_t count = std::ssize(indices) / r;
  return {
      b.Take(x, b.Constant(DType::kI32, {count, r}, std::move(indices)), 0)};
}

// The powers 0 to N - 1 of each element, as a new last dimension.
Value* Powers(AtenCall& call, Value* x, int64_t count, bool increasing) {
  Builder& b = call.b();
  constexpr int64_t kMost = 1024;
  if (count < 1 || count > kMost) {
    call.Throw(fmt::format("{} powers: expected 1 to {}", count, kMost));
  }
  Shape column = ShapeOf(x);
  column.push_back(1);
  x = b.Reshape(x, column);
  Values powers{b.Constant(x->type().dtype, column, {1})};
  while (std::ssize(powers) < count) {
    powers.push_back(b.Times(powers.back(), x));
  }
  if (!increasing) std::reverse(powers.begin(), powers.end());
  return b.Concat(powers, RankOf(x) - 1);
}
template <bool kIncreasing>
Values Vandermonde(AtenCall& call) {
  Value* x = call.Tensor("x");
  CheckRank(call, x, 1);
  if (x->type().dtype == DType::kBool) x = call.b().Cast(x, DType::kI64);
  const int64_t count = call.Int("N", ShapeOf(x).back());
  return {
      Powers(call, x, count, kIncreasing || call.Bool("increasing", false))};
}

// Moves frequency 0 to the middle, or back.
template <bool kBack>
Values ShiftFrequencies(AtenCall& call) {
  Value* x = call.Tensor("self");
  for (const int64_t given : ReducedDims(call, x)) {
    const auto dim = static_cast<size_t>(DimOf(call, given, RankOf(x)));
    const int64_t extent = ShapeOf(x)[dim];
    const int64_t shift = kBack ? extent / 2 : (extent + 1) / 2;
    x = Rearranged(call, x, dim, extent,
                   [&](int64_t i) { return (i + shift) % extent; });
  }
  return {x};
}

// Sums over the dimensions that broadcasting from `size` would add or widen.
Values SumToSize(AtenCall& call) {
  Value* x = call.Tensor("self");
  const Shape size = call.Ints("size");
  const size_t added = ShapeOf(x).size() - size.size();
  if (size.size() > ShapeOf(x).size()) call.Throw("size: too many dimensions");
  Ints64 dims;
  for (size_t d = 0; d < ShapeOf(x).size(); ++d) {
    if (d < added || (size[d - added] == 1 && ShapeOf(x)[d] != 1)) {
      dims.push_back(static_cast<int64_t>(d));
    }
  }
  Value* y = call.b().Reshape(call.b().ReduceSum(x, dims, true), size);
  return {y};
}

using enum AtenMemory;

constexpr AtenOp kRearrangedOps[] = {
    {"atleast_1d.default", AtLeastRank<1>},
    {"atleast_2d.default", AtLeastRank<2>},
    {"atleast_3d.default", AtLeastRank<3>},
    {"block_diag.default", BlockDiagonal},
    {"cartesian_prod.default", CartesianProduct},
    {"channel_shuffle.default", ChannelShuffle},
    {"col2im.default", ColumnsToImage},
    {"column_stack.default", ColumnStack},
    {"combinations.default", Combinations},
    {"diag_embed.default", DiagonalEmbedding},
    {"diag.default", Diag},
    {"diagflat.default", DiagonalOfFlat},
    {"diagonal.default", Diagonal<0, 1>, kView, WriteDiagonal},
    {"diagonal_copy.default", Diagonal<0, 1>},
    {"diagonal_scatter.default", DiagonalScatter},
    {"dstack.default", StackAlong<3>},
    {"fft_fftshift.default", ShiftFrequencies<false>},
    {"fft_ifftshift.default", ShiftFrequencies<true>},
    {"flip.default", Flip},
    {"fliplr.default", FlipDim<1>},
    {"flipud.default", FlipDim<0>},
    {"hstack.default", StackAlong<1>},
    {"im2col.default", ImageToColumns},
    {"linalg_diagonal.default", Diagonal<-2, -1>},
    {"linalg_vander.default", Vandermonde<true>},
    {"mT.default", MatrixTranspose, kView, WriteMatrixTranspose},
    {"moveaxis.int", MoveDim, kView},
    {"moveaxis.intlist", MoveDim, kView},
    {"movedim.int", MoveDim, kView},
    {"movedim.intlist", MoveDim, kView},
    {"pixel_shuffle.default", PixelShuffle<true>},
    {"pixel_unshuffle.default", PixelShuffle<false>},
    {"reflection_pad1d.default", ReflectionPad},
    {"reflection_pad2d.default", ReflectionPad},
    {"reflection_pad3d.default", ReflectionPad},
    {"repeat_interleave.self_int", RepeatInterleave},
    {"replication_pad1d.default", ReplicationPad},
    {"replication_pad2d.default", ReplicationPad},
    {"replication_pad3d.default", ReplicationPad},
    {"roll.default", Roll},
    {"rot90.default", Rotate90},
    {"sum_to_size.default", SumToSize},
    {"trace.default", Trace},
    {"unfold.default", Unfold, kView},
    {"unfold_copy.default", Unfold},
    {"vander.default", Vandermonde<false>},
    {"vstack.default", StackAlong<2>},
};

}  // namespace

Value* LastDiagonal(AtenCall& call, Value* x, int64_t offset) {
  Builder& b = call.b();
  Shape shape = ShapeOf(x);
  const int64_t columns = shape.back();
  const int64_t rows = shape[shape.size() - 2];
  const int64_t row = std::max<int64_t>(-offset, 0);
  const int64_t column = std::max<int64_t>(offset, 0);
  const int64_t count = std::min(rows - row, columns - column);
  if (count < 1) {
    call.Throw(fmt::format("diagonal {} of {} has no elements", offset,
                           ToString(x->type())));
  }
  std::vector<double> positions;
  for (int64_t i = 0; i < count; ++i) {
    positions.push_back(static_cast<double>((row + i) * columns + column + i));
  }
  shape.pop_back();
  shape.back() = rows * columns;
  return b.Take(b.Reshape(x, shape),
                b.Constant(DType::kI32, {count}, std::move(positions)),
                RankOf(x) - 2);
}

Value* RepeatElements(AtenCall& call, Value* x, int64_t dim, int64_t repeats) {
  Builder& b = call.b();
  const auto at = static_cast<size_t>(dim);
  const Shape own = ShapeOf(x);
  if (repeats < 1 || repeats > ir::kMaxElements / own.at(at)) {
    call.Throw(fmt::format("{} repeats", repeats));
  }
  Shape shape = own;
  shape.insert(shape.begin() + dim + 1, repeats);
  Ints64 dims;
  for (int64_t d = 0; d < RankOf(x); ++d) dims.push_back(d > dim ? d + 1 : d);
  x = b.Broadcast(x, shape, dims);
  shape = own;
  shape[at] *= repeats;
  return b.Reshape(x, shape);
}

std::vector<Value*> AtenPadByElements(AtenCall& call, const std::string& mode) {
  if (mode != "reflect" && mode != "replicate" && mode != "circular") {
    call.Throw("mode " + mode +
               ": expected constant, reflect, replicate or circular");
  }
  return PadByElements(call, mode);
}

std::span<const AtenOp> AtenRearrangedOps() { return kRearrangedOps; }

}  // namespace fusor::models
