// Builder's pooling: averages and maxima of windows of any rank, as pools of
// images, one dimension or two after another.

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Ints = std::vector<int64_t>;

constexpr int64_t kMostExtent = 1 << 20;

// The windows along one dimension.
struct Axis {
  int64_t dim = 0;
  int64_t in = 0;   // elements
  int64_t out = 0;  // windows
  int64_t window = 1, stride = 1, dilation = 1;
  int64_t pad = 0, far_pad = 0;

  int64_t reach() const { return (window - 1) * dilation + 1; }
  // Elements of the last window behind the last of x; negative if it ends
  // before.
  int64_t overhang() const { return (out - 1) * stride + reach() - pad - in; }
};

// One axis per spatial dimension. `call` begins the messages of errors.
std::vector<Axis> AxesOf(const std::string& call, const Shape& x,
                         const PoolOptions& o) {
  const size_t rank = o.window.size();
  FUSOR_CHECK(rank >= 1 && x.size() == rank + 2 && o.stride.size() == rank &&
                  o.pad.size() == rank && o.far_pad.size() == rank &&
                  o.dilation.size() == rank,
              kGraph, "{}: expected [N,C,..] and windows [{}] of its rank",
              call, fmt::join(o.window, ","));
  std::vector<Axis> axes;
  for (size_t i = 0; i < rank; ++i) {
    Axis a{.dim = static_cast<int64_t>(2 + i),
           .in = x[2 + i],
           .window = o.window[i],
           .stride = o.stride[i],
           .dilation = o.dilation[i],
           .pad = o.pad[i],
           .far_pad = o.far_pad[i]};
    const auto fits = [](int64_t least,
                         std::initializer_list<int64_t> extents) {
      return std::ranges::all_of(extents, [&](int64_t extent) {
        return least <= extent && extent <= kMostExtent;
      });
    };
    FUSOR_CHECK(fits(1, {a.window, a.stride, a.dilation}) &&
                    fits(0, {a.pad, a.far_pad}),
                kGraph,
                "{}: window {}, stride {}, dilation {}, padding {} and {}",
                call, a.window, a.stride, a.dilation, a.pad, a.far_pad);
    const int64_t room =
        a.in + a.pad + a.far_pad - a.reach() + (o.ceil_mode ? a.stride - 1 : 0);
    FUSOR_CHECK(room >= 0, kGraph, "{}: a window of {} does not fit", call,
                a.reach());
    a.out = room / a.stride + 1;
    // The last window starts inside x or the padding before it.
    if (o.ceil_mode && (a.out - 1) * a.stride >= a.in + a.pad) --a.out;
    axes.push_back(a);
  }
  return axes;
}

// Limits the nodes and constants that are built for windows one by one.
void CheckTaps(const std::string& call, int64_t taps, int64_t windows) {
  constexpr int64_t kMost = 1024;
  constexpr int64_t kMostInAll = 1 << 24;
  FUSOR_CHECK(taps <= kMost && taps * windows <= kMostInAll, kGraph,
              "{}: expected windows of at most {} elements, {} in all, got {} "
              "of {}",
              call, kMost, kMostInAll, windows, taps);
}

// Views x as images [N,C,H,W] with rows `dim`.
Value* AsImages(Builder& b, Value* x, int64_t dim) {
  const Shape& s = x->type().shape;
  const auto rows = s.begin() + dim;
  return b.Reshape(x, {s[0], NumElements(Shape(s.begin() + 1, rows)), *rows,
                       NumElements(Shape(rows + 1, s.end()))});
}

// The reverse for a result; `like` has the other extents.
Value* FromImages(Builder& b, Value* images, Shape like,
                  const std::vector<Axis>& axes) {
  for (const Axis& a : axes) like[static_cast<size_t>(a.dim)] = a.out;
  return b.Reshape(images, std::move(like));
}

// Returns true if the pooling op itself can pad.
bool OpPads(const Axis& a) {
  const int64_t room = a.in + 2 * a.pad - a.window;
  return a.pad <= a.window / 2 && room >= 0 && room / a.stride + 1 == a.out;
}
bool OpPads(const std::vector<Axis>& axes) {
  return std::ranges::all_of(axes, [](const Axis& a) { return OpPads(a); });
}

// Pads x just enough that all windows are inside.
Value* Padded(Builder& b, Value* x, const std::vector<Axis>& axes,
              double value) {
  const Ints zeros(x->type().rank(), 0);
  Ints low = zeros, high = zeros;
  for (const Axis& a : axes) {
    low[static_cast<size_t>(a.dim)] = a.pad;
    high[static_cast<size_t>(a.dim)] = std::max<int64_t>(a.overhang(), 0);
  }
  if (low == zeros && high == zeros) return x;
  return b.Pad(x, low, high, zeros, value);
}

// Options of the op for images with these rows and, perhaps, columns. Without
// `pads` x is padded already.
Pool2dOptions ImageOptions(const std::vector<Axis>& axes, bool pads) {
  const Axis& rows = axes[0];
  const Axis columns = axes.size() > 1 ? axes[1] : Axis{};
  return {.window_h = rows.window,
          .window_w = columns.window,
          .stride_h = rows.stride,
          .stride_w = columns.stride,
          .pad_h = pads ? rows.pad : 0,
          .pad_w = pads ? columns.pad : 0};
}

// Reads x along `dim` at `positions`.
Value* At(Builder& b, Value* x, int64_t dim, const Ints& positions) {
  const auto count = static_cast<int64_t>(positions.size());
  const int64_t first = positions[0];
  const int64_t step = count > 1 ? positions[1] - first : 1;
  bool even = step >= 1;
  for (int64_t i = 1; i < count; ++i) {
    even = even && positions[i] - positions[i - 1] == step;
  }
  const auto at = static_cast<size_t>(dim);
  Shape limit = x->type().shape;
  if (!even) {
    return b.Take(
        x,
        b.Constant(DType::kI32, {count}, {positions.begin(), positions.end()}),
        dim);
  }
  if (count == limit[at] && step == 1) return x;
  Ints start(limit.size(), 0), stride(limit.size(), 1);
  start[at] = first;
  limit[at] = positions.back() + 1;
  stride[at] = step;
  return b.Slice(x, start, limit, stride);
}

// The elements of one window: first, first + dilation, ..
struct Window {
  int64_t first;
  int64_t count;
};

// Returns the elements of each window from `low` to `end`.
std::vector<Window> WindowsOf(const std::string& call, const Axis& a,
                              int64_t low, int64_t end) {
  FUSOR_CHECK(a.out <= kMostExtent, kGraph,
              "{}: expected at most {} windows, got {}", call, kMostExtent,
              a.out);
  std::vector<Window> windows;
  for (int64_t o = 0; o < a.out; ++o) {
    const int64_t start = o * a.stride - a.pad;
    const int64_t before = std::max<int64_t>(low - start, 0);
    const int64_t skipped = (before + a.dilation - 1) / a.dilation;
    const int64_t room = std::max<int64_t>(end - start, 0);
    const int64_t count =
        std::min(a.window, (room + a.dilation - 1) / a.dilation) - skipped;
    FUSOR_CHECK(count > 0, kGraph, "{}: a window has no elements", call);
    windows.push_back({start + skipped * a.dilation, count});
  }
  return windows;
}

// Splits the axes into those that the op pools together, last first: an image's
// rows and columns, then single dimensions.
std::vector<std::vector<Axis>> Steps(const std::vector<Axis>& axes,
                                     bool pairs) {
  std::vector<std::vector<Axis>> steps;
  size_t end = axes.size();
  if (pairs && end >= 2) {
    steps.push_back({axes[end - 2], axes[end - 1]});
    end -= 2;
  }
  while (end-- > 0) steps.push_back({axes[end]});
  return steps;
}

bool ChangesNothing(const std::vector<Axis>& axes) {
  return std::ranges::all_of(axes, [](const Axis& a) {
    return a.window == 1 && a.stride == 1 && a.out == a.in;
  });
}

// A line [N,C,L] is an image of height 1.
Value* LineAsImage(Builder& b, Value* x) {
  const Shape& s = x->type().shape;
  return b.Reshape(x, {s[0], s[1], 1, s[2]});
}
Value* ImageAsLine(Builder& b, Value* y) {
  const Shape& s = y->type().shape;
  return b.Reshape(y, {s[0], s[1], s[3]});
}
PoolOptions LineAsImage(PoolOptions o) {
  for (Ints* extents : {&o.window, &o.stride, &o.dilation}) {
    extents->insert(extents->begin(), 1);
  }
  for (Ints* extents : {&o.pad, &o.far_pad}) {
    extents->insert(extents->begin(), 0);
  }
  return o;
}
bool IsLine(const Value* x, size_t extents) {
  return x->type().rank() == 3 && extents == 1;
}

// --- Maxima ------------------------------------------------------------------

bool Divides(int64_t in, int64_t out) { return in % out == 0; }

// As in PyTorch, windows go from floor(i*H/h) to ceil((i+1)*H/h).
std::vector<Window> AdaptiveWindows(int64_t in, int64_t out) {
  std::vector<Window> windows;
  for (int64_t i = 0; i < out; ++i) {
    const int64_t first = i * in / out;
    windows.push_back({first, ((i + 1) * in + out - 1) / out - first});
  }
  return windows;
}

// Replaces maxima by greater elements; a NaN counts as greater than any number.
// Indices may be null.
void TakeGreater(Builder& b, MaxPoolResult& best, Value* y, Value* index) {
  if (best.y == nullptr) {
    best = {y, index};
    return;
  }
  Value* greater = b.Compare("gt", y, best.y);
  if (IsFloat(y->type().dtype)) greater = b.Or(greater, b.Compare("ne", y, y));
  best.y = b.Select(greater, y, best.y);
  if (index != nullptr) best.index = b.Select(greater, index, best.index);
}

// Returns the maxima of windows along `dim` of x.y. x.index has the positions
// of x.y in the image so far, null if all are 0; neighbours along `dim` are
// `scale` apart.
MaxPoolResult MaxAlong(Builder& b, const std::string& call,
                       const MaxPoolResult& x, int64_t dim,
                       const std::vector<Window>& windows, int64_t step,
                       int64_t scale, bool with_index) {
  int64_t taps = 0;
  for (const Window& window : windows) taps = std::max(taps, window.count);
  CheckTaps(call, taps, std::ssize(windows));
  MaxPoolResult best{};
  for (int64_t tap = 0; tap < taps; ++tap) {
    // Shorter windows repeat their last element.
    Ints at;
    for (const Window& window : windows) {
      at.push_back(window.first + std::min(tap, window.count - 1) * step);
    }
    Value* y = At(b, x.y, dim, at);
    Value* index = nullptr;
    if (with_index) {
      std::vector<double> offsets;
      for (const int64_t position : at) {
        offsets.push_back(static_cast<double>(position * scale));
      }
      Value* along = b.Constant(DType::kI64, {std::ssize(windows)}, offsets);
      index = b.BroadcastAlong(along, y->type(), dim);
      if (x.index != nullptr) index = b.Plus(index, At(b, x.index, dim, at));
    }
    TakeGreater(b, best, y, index);
  }
  return best;
}

// Returns true if the op can compute maxima of such windows.
bool HasMaxOp(const std::vector<Axis>& axes, DType dtype) {
  constexpr int64_t kMost = 256;
  int64_t elements = 1;
  for (const Axis& a : axes) {
    if (a.dilation != 1 || a.window > kMost) return false;
    elements *= a.window;
  }
  return elements <= kMost && IsFloat(dtype);
}

// Returns the op's position in each window, u8, as a position in the image.
Value* ImageIndex(Builder& b, Value* position, const Axis& rows,
                  const Axis& columns) {
  const Shape& shape = position->type().shape;
  position = b.Cast(position, DType::kI64);
  const auto width = static_cast<double>(columns.window);
  const auto along = [&](const Axis& a, int64_t dim, Value* in_window) {
    Value* start =
        b.Times(b.Iota(DType::kI64, shape, dim), static_cast<double>(a.stride));
    return b.Plus(in_window, b.Minus(start, static_cast<double>(a.pad)));
  };
  Value* row = along(rows, 2, b.FloorDivide(position, width));
  Value* column = along(columns, 3, b.Remainder(position, width));
  return b.Plus(b.Times(row, static_cast<double>(columns.in)), column);
}

MaxPoolResult MaxOfImages(Builder& b, Value* x, const std::vector<Axis>& axes,
                          bool with_index) {
  const bool pads = OpPads(axes);
  const Shape shape = x->type().shape;
  if (!pads) {
    x = Padded(b, x, axes, -std::numeric_limits<double>::infinity());
  }
  Value* y = b.MaxPool2d(AsImages(b, x, axes[0].dim), ImageOptions(axes, pads));
  MaxPoolResult result{FromImages(b, y, shape, axes), nullptr};
  if (with_index) {
    Value* index = ImageIndex(b, y->producer()->output(1), axes[0], axes[1]);
    result.index = FromImages(b, index, shape, axes);
  }
  return result;
}

// Returns how far apart neighbours along `dim` are in a row-major image.
int64_t ScaleOf(const Shape& x, int64_t dim) {
  return NumElements(Shape(x.begin() + dim + 1, x.end()));
}

}  // namespace

MaxPoolResult Builder::MaxPool(Value* x, const PoolOptions& options,
                               bool with_index, Where at) {
  const Layer layer(*this, at);
  CheckValues("max_pool", {x}, at);
  if (IsLine(x, options.window.size())) {
    const MaxPoolResult image =
        MaxPool(LineAsImage(*this, x), LineAsImage(options), with_index);
    return {ImageAsLine(*this, image.y),
            with_index ? ImageAsLine(*this, image.index) : nullptr};
  }
  const std::string call =
      fmt::format("max_pool({}){}", ToString(x->type()), AtLocation(Here(at)));
  const Shape shape = x->type().shape;
  const DType dtype = x->type().dtype;
  const std::vector<Axis> axes = AxesOf(call, shape, options);
  const bool pairs =
      axes.size() > 1 && HasMaxOp({axes.end() - 2, axes.end()}, dtype);
  MaxPoolResult result{x, nullptr};
  for (const std::vector<Axis>& step : Steps(axes, pairs)) {
    const Axis& a = step[0];
    if (HasMaxOp(step, dtype) && (!with_index || step.size() == 2)) {
      if (!with_index && ChangesNothing(step)) continue;
      result = MaxOfImages(*this, result.y, step, with_index);
    } else {
      result = MaxAlong(*this, call, result, a.dim, WindowsOf(call, a, 0, a.in),
                        a.dilation, ScaleOf(shape, a.dim), with_index);
    }
  }
  return result;
}

// Equal windows become a pool.
MaxPoolResult Builder::AdaptiveMaxPool(Value* x, const Shape& out,
                                       bool with_index, Where at) {
  const Layer layer(*this, at);
  CheckValues("adaptive_max_pool", {x}, at);
  const std::string call = fmt::format(
      "adaptive_max_pool({}){}", ToString(x->type()), AtLocation(Here(at)));
  const Shape shape = x->type().shape;
  FUSOR_CHECK(!out.empty() && shape.size() == out.size() + 2, kGraph,
              "{}: expected [N,C,..] and extents [{}] of its rank", call,
              fmt::join(out, ","));
  PoolOptions equal{.pad = Ints(out.size(), 0),
                    .far_pad = Ints(out.size(), 0),
                    .dilation = Ints(out.size(), 1)};
  for (size_t i = 0; i < out.size(); ++i) {
    FUSOR_CHECK(out[i] >= 1 && out[i] <= kMostExtent, kGraph,
                "{}: expected 1 to {} windows, got {}", call, kMostExtent,
                out[i]);
    if (Divides(shape[2 + i], out[i])) {
      equal.window.push_back(shape[2 + i] / out[i]);
    }
  }
  if (equal.window.size() == out.size()) {
    equal.stride = equal.window;
    return MaxPool(x, equal, with_index);
  }
  MaxPoolResult result{x, nullptr};
  for (size_t i = out.size(); i-- > 0;) {
    const auto dim = static_cast<int64_t>(2 + i);
    result = MaxAlong(*this, call, result, dim,
                      AdaptiveWindows(shape[2 + i], out[i]), 1,
                      ScaleOf(shape, dim), with_index);
  }
  return result;
}

namespace {

// Returns the first elements of `out` windows along `dim` of x, i64. They are
// at random distances; the last window ends with the dimension.
Value* FractionalStarts(Builder& b, Value* sample, Shape x, int64_t dim,
                        int64_t window, int64_t out) {
  const auto most = static_cast<double>(x[dim] - window);
  x[dim] = out;
  const auto last = static_cast<double>(out - 1);
  const double distance = out == 1 ? 0 : most / last;
  sample = b.Broadcast(b.Reshape(sample, {x[0], x[1]}), x, {0, 1});
  Value* number = b.Cast(b.Iota(DType::kI64, x, dim), sample->type().dtype);
  Value* start = b.Minus(b.Floor(b.Times(b.Plus(number, sample), distance)),
                         b.Floor(b.Times(sample, distance)));
  start =
      b.Select(b.Compare("lt", number, last), start, b.ScalarLike(start, most));
  return b.Cast(start, DType::kI64);
}

}  // namespace

MaxPoolResult Builder::FractionalMaxPool(Value* x, Value* samples,
                                         const std::vector<int64_t>& window,
                                         const Shape& out, Where at) {
  const Layer layer(*this, at);
  CheckValues("fractional_max_pool", {x, samples}, at);
  const std::string call = fmt::format(
      "fractional_max_pool({}){}", ToString(x->type()), AtLocation(Here(at)));
  const Shape shape = x->type().shape;
  const auto rank = std::ssize(out);
  Shape drawn{rank};
  if (std::ssize(shape) == rank + 2) drawn = {shape[0], shape[1], rank};
  FUSOR_CHECK(
      rank >= 1 && std::ssize(window) == rank && samples->type().shape == drawn,
      kGraph,
      "{}: expected [N,C,..], windows [{}], extents [{}] and samples "
      "of its rank, got {}",
      call, fmt::join(window, ","), fmt::join(out, ","),
      ToString(samples->type()));
  MaxPoolResult result{x, nullptr};
  for (int64_t i = rank - 1; i >= 0; --i) {
    const int64_t dim = i + 2;
    FUSOR_CHECK(window[i] >= 1 && window[i] <= shape[dim] && out[i] >= 1 &&
                    out[i] <= kMostExtent,
                kGraph, "{}: a window of {}, {} times", call, window[i],
                out[i]);
    CheckTaps(call, window[i], 1);
    Value* sample = Slice(samples, {0, 0, i}, {shape[0], shape[1], i + 1});
    Value* start = FractionalStarts(*this, sample, result.y->type().shape, dim,
                                    window[i], out[i]);
    Ints dims(shape.size());
    std::iota(dims.begin(), dims.end(), 0);
    dims[dim] = -1;
    MaxPoolResult best{};
    for (int64_t tap = 0; tap < window[i]; ++tap) {
      Value* position = Plus(start, static_cast<double>(tap));
      Value* y = Gather(result.y, {position}, dims);
      Value* index = Times(position, static_cast<double>(ScaleOf(shape, dim)));
      if (result.index != nullptr) {
        index = Plus(index, Gather(result.index, {position}, dims));
      }
      TakeGreater(*this, best, y, index);
    }
    result = best;
  }
  return result;
}

// --- Averages ----------------------------------------------------------------

namespace {

// Multiplies sums that were divided by the size of a window, so that they are
// divided by the number of its elements in x or, perhaps, in its padding.
Value* Corrected(Builder& b, const std::string& call, Value* y, const Axis& a,
                 bool include_pad) {
  const int64_t low = include_pad ? -a.pad : 0;
  const int64_t end = a.in + (include_pad ? a.far_pad : 0);
  if ((low == -a.pad || a.pad == 0) && a.overhang() <= end - a.in) return y;
  std::vector<double> factors;
  for (const Window& window : WindowsOf(call, a, low, end)) {
    factors.push_back(static_cast<double>(a.window) /
                      static_cast<double>(window.count));
  }
  Value* vector = b.Constant(y->type().dtype, {a.out}, std::move(factors));
  return b.Times(y, b.BroadcastAlong(vector, y->type(), a.dim));
}

// The mean of windows with gaps.
Value* DilatedMean(Builder& b, const std::string& call, Value* x,
                   const Axis& a) {
  CheckTaps(call, a.window, a.out);
  x = Padded(b, x, {a}, 0);
  Value* sum = nullptr;
  for (int64_t k = 0; k < a.window; ++k) {
    Ints at;
    for (int64_t o = 0; o < a.out; ++o) {
      at.push_back(o * a.stride + k * a.dilation);
    }
    Value* part = At(b, x, a.dim, at);
    sum = sum == nullptr ? part : b.Plus(sum, part);
  }
  return b.Divide(sum, static_cast<double>(a.window));
}

}  // namespace

// A mean over several dimensions is the mean over one of the means over the
// others, as long as each is divided by its own number of elements.
Value* Builder::AvgPool(Value* x, const PoolOptions& options, Where at) {
  const Layer layer(*this, at);
  CheckValues("avg_pool", {x}, at);
  if (IsLine(x, options.window.size())) {
    return ImageAsLine(*this,
                       AvgPool(LineAsImage(*this, x), LineAsImage(options)));
  }
  const std::string call =
      fmt::format("avg_pool({}){}", ToString(x->type()), AtLocation(Here(at)));
  FUSOR_CHECK(IsFloat(x->type().dtype), kGraph, "{}: expected floats", call);
  const std::vector<Axis> axes = AxesOf(call, x->type().shape, options);
  const bool divides = options.divisor != 0;
  const bool pairs = axes.size() > 1 && axes[axes.size() - 2].dilation == 1 &&
                     axes.back().dilation == 1;
  double elements = 1;  // of a window
  Value* y = x;
  for (const std::vector<Axis>& step : Steps(axes, pairs)) {
    for (const Axis& a : step) elements *= static_cast<double>(a.window);
    if (ChangesNothing(step)) continue;
    const bool pads = OpPads(step);
    // The op counts by itself.
    bool counted = pads && !options.count_include_pad && !divides;
    if (step[0].dilation != 1) {
      y = DilatedMean(*this, call, y, step[0]);
      counted = false;
    } else {
      const Shape shape = y->type().shape;
      if (!pads) y = Padded(*this, y, step, 0);
      Pool2dOptions image = ImageOptions(step, pads);
      image.count_include_pad = !counted;
      y = AvgPool2d(AsImages(*this, y, step[0].dim), image);
      y = FromImages(*this, y, shape, step);
    }
    if (counted || divides) continue;
    for (const Axis& a : step) {
      y = Corrected(*this, call, y, a, options.count_include_pad);
    }
  }
  return divides ? Times(y, elements / options.divisor) : y;
}

Value* Builder::GlobalAvgPool(Value* x, Where at) {
  const Layer layer(*this, at);
  CheckValues("global_avg_pool", {x}, at);
  CheckRank("global_avg_pool", x, 4, at);
  return ReduceMean(x, {2, 3});
}

namespace {

// Returns the [in_h*in_w, out_h*out_w] matrix of PyTorch's adaptive windows.
std::vector<double> AdaptiveMatrix(int64_t in_h, int64_t in_w, int64_t out_h,
                                   int64_t out_w) {
  std::vector<double> matrix(in_h * in_w * out_h * out_w, 0);
  for (int64_t i = 0; i < out_h; ++i) {
    const int64_t h0 = i * in_h / out_h;
    const int64_t h1 = ((i + 1) * in_h + out_h - 1) / out_h;
    for (int64_t j = 0; j < out_w; ++j) {
      const int64_t w0 = j * in_w / out_w;
      const int64_t w1 = ((j + 1) * in_w + out_w - 1) / out_w;
      const double share = 1.0 / static_cast<double>((h1 - h0) * (w1 - w0));
      for (int64_t h = h0; h < h1; ++h) {
        for (int64_t w = w0; w < w1; ++w) {
          matrix[(h * in_w + w) * out_h * out_w + i * out_w + j] = share;
        }
      }
    }
  }
  return matrix;
}

}  // namespace

// Equal windows become an average pool. Overlapping windows become a matmul
// with a constant matrix over the pixels, which is small in practice.
Value* Builder::AdaptiveAvgPool2d(Value* x, int64_t out_h, int64_t out_w,
                                  Where at) {
  const Layer layer(*this, at);
  CheckValues("adaptive_avg_pool", {x}, at);
  CheckRank("adaptive_avg_pool", x, 4, at);
  FUSOR_CHECK(out_h >= 1 && out_w >= 1, kGraph,
              "adaptive_avg_pool({}){}: expected a result of 1 or more pixels "
              "each way, got {} x {}",
              ToString(x->type()), AtLocation(Here(at)), out_h, out_w);
  const Shape& s = x->type().shape;
  if (s[2] == out_h && s[3] == out_w) return x;
  if (Divides(s[2], out_h) && Divides(s[3], out_w)) {
    const int64_t h = s[2] / out_h;
    const int64_t w = s[3] / out_w;
    return AvgPool2d(
        x, {.window_h = h, .window_w = w, .stride_h = h, .stride_w = w});
  }
  const int64_t in = NumElements({s[2], s[3]});
  const int64_t out = NumElements({out_h, out_w});
  constexpr int64_t kMaxMatrix = int64_t{1} << 26;
  FUSOR_CHECK(NumElements({in, out}) <= kMaxMatrix, kGraph,
              "adaptive_avg_pool({}){}: {} x {} windows that overlap: expected "
              "at most {} pairs of a pixel and a window",
              ToString(x->type()), AtLocation(Here(at)), out_h, out_w,
              kMaxMatrix);
  Value* matrix = Constant(x->type().dtype, {in, out},
                           AdaptiveMatrix(s[2], s[3], out_h, out_w));
  Value* y = Matmul(Reshape(x, {s[0] * s[1], in}), matrix);
  return Reshape(y, {s[0], s[1], out_h, out_w});
}

// Averages the last two dimensions, then one after another.
Value* Builder::AdaptiveAvgPool(Value* x, const Shape& out, Where at) {
  const Layer layer(*this, at);
  CheckValues("adaptive_avg_pool", {x}, at);
  Shape shape = x->type().shape;
  FUSOR_CHECK(
      !out.empty() && shape.size() == out.size() + 2 &&
          std::ranges::all_of(out, [](int64_t extent) { return extent >= 1; }),
      kGraph,
      "adaptive_avg_pool({}){}: expected [N,C,..] and extents [{}] of its rank",
      ToString(x->type()), AtLocation(Here(at)), fmt::join(out, ","));
  if (out.size() == 1) {
    return ImageAsLine(*this,
                       AdaptiveAvgPool2d(LineAsImage(*this, x), 1, out[0]));
  }
  for (size_t i = out.size() - 1; i-- > 0;) {
    const bool last = i + 2 == out.size();
    Value* y = AsImages(*this, x, static_cast<int64_t>(2 + i));
    const Shape images = y->type().shape;
    if (last || Divides(images[2], out[i])) {
      y = AdaptiveAvgPool2d(y, out[i], last ? out[i + 1] : images[3]);
    } else {
      // As lines of single elements.
      y = Transpose(y, {0, 1, 3, 2});
      y = Reshape(y, {images[0], images[1] * images[3], images[2], 1});
      y = AdaptiveAvgPool2d(y, out[i], 1);
      y = Reshape(y, {images[0], images[1], images[3], out[i]});
      y = Transpose(y, {0, 1, 3, 2});
    }
    if (last) shape[3 + i] = out[i + 1];
    shape[2 + i] = out[i];
    x = Reshape(y, shape);
  }
  return x;
}

}  // namespace fusor::ir
