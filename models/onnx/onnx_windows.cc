// Convolution and pooling.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMostExtent = 1 << 20;

// The geometry that convolutions and pooling share, per spatial dimension.
struct Window {
  Ints kernel, stride, low, high, dilation;
  std::string auto_pad;
};

Ints Extents(OnnxCall& call, const char* name, size_t count, int64_t fallback) {
  const Ints extents = call.Ints(name, Ints(count, fallback));
  const bool fit =
      std::all_of(extents.begin(), extents.end(), [&](int64_t extent) {
        return fallback <= extent && extent < kMostExtent;
      });
  if (extents.size() != count || !fit) {
    call.Throw(fmt::format("attribute {}: expected {} extents", name, count));
  }
  return extents;
}

// x is [N,C,..]. If `kernel` is {}, uses the attribute.
Window WindowOf(OnnxCall& call, const Value* x, Ints kernel) {
  if (RankOf(x) < 3) {
    call.Throw("expected [N,C,..], got " + ToString(x->type()));
  }
  const size_t rank = ShapeOf(x).size() - 2;
  Window w;
  w.auto_pad =
      call.Choice("auto_pad", {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"});
  w.kernel = call.Ints("kernel_shape", kernel);
  const bool fit = std::all_of(
      w.kernel.begin(), w.kernel.end(),
      [](int64_t extent) { return 1 <= extent && extent < kMostExtent; });
  if (w.kernel.size() != rank || !fit ||
      (!kernel.empty() && kernel != w.kernel)) {
    call.Throw(fmt::format("kernel_shape [{}] of {}", fmt::join(w.kernel, ","),
                           ToString(x->type())));
  }
  w.stride = Extents(call, "strides", rank, 1);
  w.dilation = Extents(call, "dilations", rank, 1);
  const Ints pads = Extents(call, "pads", 2 * rank, 0);
  w.low.assign(pads.begin(), pads.begin() + static_cast<long>(rank));
  w.high.assign(pads.begin() + static_cast<long>(rank), pads.end());
  return w;
}

int64_t Reach(const Window& w, size_t i) {
  return (w.kernel[i] - 1) * w.dilation[i] + 1;
}

// Sets the padding that SAME_* stands for: ceil(extent / stride) windows.
void PadSame(Window& w, const Shape& x) {
  if (!w.auto_pad.starts_with("SAME")) return;
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    const int64_t out = (x[2 + i] + w.stride[i] - 1) / w.stride[i];
    const int64_t all =
        std::max<int64_t>((out - 1) * w.stride[i] + Reach(w, i) - x[2 + i], 0);
    w.high[i] = w.auto_pad == "SAME_UPPER" ? all - all / 2 : all / 2;
    w.low[i] = all - w.high[i];
  }
}

// Adds a height of 1 to a value of rank 3, and to a window.
Value* Widened(Builder& b, Value* x) {
  const Shape& s = ShapeOf(x);
  return b.Reshape(x, {s[0], s[1], 1, s[2]});
}
Value* Narrowed(Builder& b, Value* y) {
  const Shape& s = ShapeOf(y);
  return b.Reshape(y, {s[0], s[1], s[3]});
}
void Widen(Window& w) {
  w.kernel.insert(w.kernel.begin(), 1);
  w.stride.insert(w.stride.begin(), 1);
  w.dilation.insert(w.dilation.begin(), 1);
  w.low.insert(w.low.begin(), 0);
  w.high.insert(w.high.begin(), 0);
}

// --- Convolution -------------------------------------------------------------

ir::Conv2dOptions ConvOptions(const Window& w, int64_t groups) {
  return {.stride_h = w.stride[0],
          .stride_w = w.stride[1],
          .pad_h = w.low[0],
          .pad_w = w.low[1],
          .far_pad_h = w.high[0],
          .far_pad_w = w.high[1],
          .dilation_h = w.dilation[0],
          .dilation_w = w.dilation[1],
          .groups = groups};
}

ir::Conv3dOptions Conv3dOptions(const Window& w, int64_t groups) {
  const auto three = [](const Ints& v) {
    return std::array<int64_t, 3>{v[0], v[1], v[2]};
  };
  return {.stride = three(w.stride),
          .pad = three(w.low),
          .far_pad = three(w.high),
          .dilation = three(w.dilation),
          .groups = groups};
}

Window ConvWindow(OnnxCall& call, const Value* x, const Value* weight) {
  if (RankOf(x) != RankOf(weight) || RankOf(x) < 3 || RankOf(x) > 5) {
    call.Throw(
        fmt::format("{} and {}: expected [N,C,..] and [O,I,..] of rank 3 to 5",
                    ToString(x->type()), ToString(weight->type())));
  }
  return WindowOf(call, x,
                  {ShapeOf(weight).begin() + 2, ShapeOf(weight).end()});
}

OnnxResults Convolution(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* weight = call.Tensor(1);
  Value* bias = call.OptionalTensor(2);
  const int64_t groups = call.Int("group", 1);
  Window w = ConvWindow(call, x, weight);
  PadSame(w, ShapeOf(x));
  if (RankOf(x) == 5) {
    return {b.Conv3d(x, weight, bias, Conv3dOptions(w, groups))};
  }
  if (RankOf(x) == 4)
    return {b.Conv2d(x, weight, bias, ConvOptions(w, groups))};
  Widen(w);
  return {Narrowed(b, b.Conv2d(Widened(b, x), Widened(b, weight), bias,
                               ConvOptions(w, groups)))};
}

// weight [I,O/groups,..].
OnnxResults ConvTranspose(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Value* weight = call.Tensor(1);
  Value* bias = call.OptionalTensor(2);
  const int64_t groups = call.Int("group", 1);
  Window w = ConvWindow(call, x, weight);
  const size_t rank = w.kernel.size();
  Ints extra = Extents(call, "output_padding", rank, 0);
  const Ints shape = call.Ints("output_shape");
  const bool same = w.auto_pad.starts_with("SAME");
  for (size_t i = 0; i < rank && (same || !shape.empty()); ++i) {
    const int64_t extent = ShapeOf(x)[2 + i];
    const int64_t out = shape.empty() ? extent * w.stride[i]
                                      : shape.at(shape.size() - rank + i);
    const int64_t all =
        (extent - 1) * w.stride[i] + extra[i] + Reach(w, i) - out;
    if (out < 1 || out > ir::kMaxElements) call.Throw("attribute output_shape");
    extra[i] += std::max<int64_t>(-all, 0);
    const int64_t cut = std::max<int64_t>(all, 0);
    w.low[i] = w.auto_pad == "SAME_UPPER" ? cut / 2 : cut - cut / 2;
    w.high[i] = cut - w.low[i];
  }
  if (rank == 3) {
    return {b.ConvTranspose3d(x, weight, bias, Conv3dOptions(w, groups),
                              {extra[0], extra[1], extra[2]})};
  }
  const bool line = rank == 1;
  if (line) {
    x = Widened(b, x);
    weight = Widened(b, weight);
    Widen(w);
    extra.insert(extra.begin(), 0);
  }
  Value* y = b.ConvTranspose2d(x, weight, bias, ConvOptions(w, groups),
                               extra[0], extra[1]);
  return {line ? Narrowed(b, y) : y};
}

// --- Pooling -----------------------------------------------------------------

ir::PoolOptions PoolOf(OnnxCall& call, const Value* x) {
  Window w = WindowOf(call, x, {});
  PadSame(w, ShapeOf(x));
  return {.window = std::move(w.kernel),
          .stride = std::move(w.stride),
          .pad = std::move(w.low),
          .far_pad = std::move(w.high),
          .dilation = std::move(w.dilation),
          .ceil_mode = call.Flag("ceil_mode", false)};
}

// Returns the flat position in x of positions in row-major images.
Value* FlatPosition(OnnxCall& call, Value* position, const Shape& x,
                    bool column_major) {
  Builder& b = call.b();
  const Shape shape = ShapeOf(position);
  const auto times = [&](Value* value, int64_t factor) {
    return b.Times(value, static_cast<double>(factor));
  };
  const int64_t plane = ir::NumElements(Shape(x.begin() + 2, x.end()));
  Value* flat = times(b.Iota(DType::kI64, shape, 0), x[1] * plane);
  flat = b.Plus(flat, times(b.Iota(DType::kI64, shape, 1), plane));
  if (!column_major) return b.Plus(flat, position);
  int64_t behind = plane;
  int64_t before = 1;
  for (size_t i = 2; i < x.size(); ++i) {
    behind /= x[i];
    Value* at = b.FloorDivide(position, static_cast<double>(behind));
    at = b.Remainder(at, static_cast<double>(x[i]));
    flat = b.Plus(flat, times(at, before));
    before *= x[i];
  }
  return flat;
}

OnnxResults MaxPool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const ir::PoolOptions options = PoolOf(call, x);
  const bool column_major = call.Flag("storage_order", false);
  const ir::MaxPoolResult result =
      call.b().MaxPool(x, options, /*with_index=*/call.IsUsed(1));
  if (!call.IsUsed(1)) return {result.y};
  return {result.y, FlatPosition(call, result.index, ShapeOf(x), column_major)};
}

OnnxResults AveragePool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  ir::PoolOptions options = PoolOf(call, x);
  options.count_include_pad = call.Flag("count_include_pad", false);
  return {call.b().AvgPool(x, options)};
}

// (sum |x|^p)^(1/p)
Value* PowerMean(OnnxCall& call, Value* sum, double power) {
  return power == 1   ? sum
         : power == 2 ? call.b().Sqrt(sum)
                      : call.b().Pow(sum, 1 / power);
}
Value* Power(OnnxCall& call, Value* x, double power) {
  Builder& b = call.b();
  return power == 1   ? b.Abs(x)
         : power == 2 ? b.Times(x, x)
                      : b.Pow(b.Abs(x), power);
}
OnnxResults LpPool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  ir::PoolOptions options = PoolOf(call, x);
  options.divisor = 1;
  const auto power = static_cast<double>(call.Int("p", 2));
  if (power < 1) call.Throw("attribute p: expected 1 or more");
  Value* sum = call.b().AvgPool(Power(call, x, power), options);
  return {PowerMean(call, sum, power)};
}

// The dimensions behind the channels.
Ints SpatialAxes(OnnxCall& call, const Value* x) {
  if (RankOf(x) < 3) {
    call.Throw("expected [N,C,..], got " + ToString(x->type()));
  }
  Ints axes = AllAxes(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + 2);
  return axes;
}
OnnxResults GlobalAveragePool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().ReduceMean(x, SpatialAxes(call, x), /*keepdim=*/true)};
}
OnnxResults GlobalMaxPool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().ReduceMax(x, SpatialAxes(call, x), /*keepdim=*/true)};
}
OnnxResults GlobalLpPool(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const auto power = static_cast<double>(call.Int("p", 2));
  if (power < 1) call.Throw("attribute p: expected 1 or more");
  Value* sum = call.b().ReduceSum(Power(call, x, power), SpatialAxes(call, x),
                                  /*keepdim=*/true);
  return {PowerMean(call, sum, power)};
}

// Puts each element at its flat position in a result of zeros.
OnnxResults MaxUnpool(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const Window w = WindowOf(call, x, {});
  const Shape& s = ShapeOf(x);
  Shape natural{s[0], s[1]};
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    natural.push_back((s[2 + i] - 1) * w.stride[i] - w.low[i] - w.high[i] +
                      w.kernel[i]);
  }
  const Shape shape = call.Has(2) ? Shape(call.KnownInts(2)) : natural;
  if (shape.size() != s.size()) call.Throw("output_shape: expected the rank");
  // Positions refer to the default output shape.
  const int64_t count = x->type().num_elements();
  Value* flat =
      b.ScatterAdd(b.Reshape(x, {count}), {b.Reshape(call.Tensor(1), {count})},
                   {ir::NumElements(natural)}, {-1});
  Value* y = b.Reshape(flat, natural);
  const Ints zeros(s.size(), 0);
  Ints high;
  for (size_t i = 0; i < shape.size(); ++i) {
    high.push_back(shape[i] - natural[i]);
    if (high[i] < 0) call.Throw("output_shape: expected a larger one");
  }
  return {high == zeros ? y : b.Pad(y, zeros, high, zeros, 0)};
}

// Adds the columns of blocks [N,C prod(block),L] at their positions in an
// image.
OnnxResults ColumnsToImage(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const Ints image = call.KnownInts(1);
  const Ints block = call.KnownInts(2);
  const size_t rank = image.size();
  const Ints stride = Extents(call, "strides", rank, 1);
  const Ints dilation = Extents(call, "dilations", rank, 1);
  const Ints pads = Extents(call, "pads", 2 * rank, 0);
  if (rank == 0 || block.size() != rank || RankOf(x) != 3) {
    call.Throw(fmt::format("blocks of [{}] of an image [{}] in {}",
                           fmt::join(block, ","), fmt::join(image, ","),
                           ToString(x->type())));
  }
  Shape split{ShapeOf(x)[0], 0};
  Shape result{ShapeOf(x)[0], 0};
  Ints dims{0, 1};
  Ints out;
  for (size_t i = 0; i < rank; ++i) {
    if (block[i] < 1 || block[i] > kMostExtent || image[i] < 1 ||
        image[i] > ir::kMaxElements) {
      call.Throw("expected extents of 1 or more");
    }
    const int64_t span =
        image[i] + pads[i] + pads[rank + i] - dilation[i] * (block[i] - 1) - 1;
    if (span < 0) call.Throw("a block does not fit the image");
    out.push_back(span / stride[i] + 1);
  }
  const int64_t elements = ir::NumElements(Shape(block));
  split[1] = result[1] = ShapeOf(x)[1] / elements;
  if (ShapeOf(x)[1] % elements != 0 ||
      ShapeOf(x)[2] != ir::NumElements(Shape(out))) {
    call.Throw(fmt::format("{} for {} blocks of {} elements",
                           ToString(x->type()), ir::NumElements(Shape(out)),
                           elements));
  }
  split.insert(split.end(), block.begin(), block.end());
  split.insert(split.end(), out.begin(), out.end());
  std::vector<Value*> indices;
  for (size_t i = 0; i < rank; ++i) {
    const auto in_block = static_cast<int64_t>(2 + i);
    const auto of_block = static_cast<int64_t>(2 + rank + i);
    Value* at = b.Plus(b.Times(b.Iota(DType::kI64, split, in_block),
                               static_cast<double>(dilation[i])),
                       b.Times(b.Iota(DType::kI64, split, of_block),
                               static_cast<double>(stride[i])));
    indices.push_back(b.Minus(at, static_cast<double>(pads[i])));
    result.push_back(image[i]);
    dims.push_back(-1);
  }
  return {b.ScatterAdd(b.Reshape(x, split), indices, result, dims)};
}

// Divides each element by a power of the sum of squares of `size` channels
// around it.
OnnxResults LocalResponseNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t size = call.Int("size");
  const double alpha = call.Float("alpha", 1e-4);
  constexpr int64_t kMost = 1024;
  if (RankOf(x) < 2 || size < 1 || size > kMost) {
    call.Throw(fmt::format("size {} of {}", size, ToString(x->type())));
  }
  const Ints zeros(ShapeOf(x).size(), 0);
  Ints low = zeros, high = zeros;
  low[1] = (size - 1) / 2;
  high[1] = size - 1 - low[1];
  Value* squares = b.Pad(b.Times(x, x), low, high, zeros, 0);
  Value* sum = nullptr;
  for (int64_t i = 0; i < size; ++i) {
    Value* part = Strided(call, squares, 1, i, ShapeOf(x)[1], 1);
    sum = sum == nullptr ? part : b.Plus(sum, part);
  }
  Value* base = b.Plus(b.Times(sum, alpha / static_cast<double>(size)),
                       call.Float("bias", 1));
  return {b.Divide(x, b.Pow(base, call.Float("beta", 0.75)))};
}

constexpr OnnxOp kWindowsOps[] = {
    {"AveragePool", AveragePool},
    {"Col2Im", ColumnsToImage},
    {"Conv", Convolution, "-wb"},
    {"ConvTranspose", ConvTranspose, "-wb"},
    {"GlobalAveragePool", GlobalAveragePool},
    {"GlobalLpPool", GlobalLpPool},
    {"GlobalMaxPool", GlobalMaxPool},
    {"LRN", LocalResponseNorm},
    {"LpPool", LpPool},
    {"MaxPool", MaxPool},
    {"MaxUnpool", MaxUnpool},
};

}  // namespace

std::span<const OnnxOp> OnnxWindowOps() { return kWindowsOps; }

}  // namespace fusor::models
