// Fourier transforms, as products with matrices, and windows.

#include <algorithm>
#include <cmath>
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

// The largest window, and the elements of all frames.
constexpr int64_t kMostElements = 1 << 22;

// x [..,1 or 2] with real and imaginary parts; transforms `axis`, which is cut
// or padded to `length` elements.
struct Transform {
  int64_t axis, length;
  bool inverse, onesided;
};

Value* Transformed(OnnxCall& call, Value* x, const Transform& t) {
  Builder& b = call.b();
  const int64_t rank = RankOf(x);
  const int64_t parts = ShapeOf(x).back();
  if ((parts != 1 && parts != 2) || t.axis == rank - 1 || t.length < 1 ||
      t.length > kMostFourierPoints) {
    call.Throw(fmt::format(
        "{} elements of axis {} of {}: expected [..,1 or 2], transformed to "
        "{} elements at most",
        t.length, t.axis, ToString(x->type()), kMostFourierPoints));
  }
  const bool real_result = t.inverse && t.onesided;
  const int64_t half = t.length / 2 + 1;
  x = Resized(b, x, t.axis, real_result ? half : t.length);
  const auto part = [&](int64_t i) {
    Shape shape = ShapeOf(x);
    shape.pop_back();
    return b.Reshape(Strided(call, x, rank - 1, i, 1, 1), shape);
  };
  const Complex given{part(0), parts == 2 ? part(1) : nullptr};
  const auto placed = [&](Value* y) {
    if (t.inverse) y = b.Divide(y, static_cast<double>(t.length));
    Shape shape = ShapeOf(y);
    shape.push_back(1);
    return b.Reshape(y, shape);
  };
  if (real_result) {
    const Complex both{given.re,
                       parts == 2 ? given.im : b.Zeros(given.re->type())};
    return placed(RealFourierInverse(b, both, t.axis, t.length));
  }
  const Complex y = FourierTransform(
      b, given, t.axis, t.onesided && !t.inverse ? half : t.length, t.inverse);
  return b.Concat({placed(y.re), placed(y.im)}, rank - 1);
}

OnnxResults Dft(OnnxCall& call) {
  Value* x = call.Tensor(0);
  constexpr int64_t kAxisIsOperand = 20;
  const int64_t named = call.opset() < kAxisIsOperand ? call.Int("axis", 1)
                        : call.Has(2)                 ? call.KnownInt(2)
                                                      : -2;
  Transform t{AxisOf(call, named, RankOf(x)), 0, call.Flag("inverse", false),
              call.Flag("onesided", false)};
  t.length = ShapeOf(x)[static_cast<size_t>(t.axis)];
  if (t.inverse && t.onesided) t.length = 2 * (t.length - 1);
  if (call.Has(1)) t.length = call.KnownInt(1);
  return {Transformed(call, x, t)};
}

// Transforms frames [W] of a signal [B,T,1 or 2] -> [B,frames,K,2].
OnnxResults ShortTimeTransform(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t step = call.KnownInt(1);
  Value* window = call.OptionalTensor(2);
  if (RankOf(x) != 3 || (window != nullptr && RankOf(window) != 1)) {
    call.Throw("expected [B,T,1 or 2], got " + ToString(x->type()));
  }
  const Shape s = ShapeOf(x);
  int64_t width = window == nullptr ? s[1] : ShapeOf(window)[0];
  if (call.Has(3)) width = call.KnownInt(3);
  if (step < 1 || width < 1 || width > s[1]) {
    call.Throw(fmt::format("frames of {} every {} of {}", width, step,
                           ToString(x->type())));
  }
  const int64_t frames = 1 + (s[1] - width) / step;
  if (frames > kMostElements / width) call.Throw("too many frames");
  Ints positions;
  for (int64_t f = 0; f < frames; ++f) {
    for (int64_t i = 0; i < width; ++i) positions.push_back(f * step + i);
  }
  x = b.Reshape(TakeAt(call, x, 1, positions), {s[0], frames, width, s[2]});
  if (window != nullptr) {
    x = b.Times(x, b.BroadcastAlong(window, x->type(), 2));
  }
  return {Transformed(call, x, {2, width, false, call.Flag("onesided", true)})};
}

// Returns a sum of cosines with 0, 1 and 2 periods over the window.
OnnxResults CosineWindow(OnnxCall& call, double constant, double one,
                         double two) {
  const int64_t size = call.KnownInt(0);
  const bool periodic = call.Flag("periodic", true);
  const DType dtype = call.DType("output_datatype", DType::kF32);
  if (size < 1 || size > kMostElements) {
    call.Throw(fmt::format("size {}: expected 1 to {}", size, kMostElements));
  }
  const auto turn = static_cast<double>(periodic ? size : size - 1);
  std::vector<double> values;
  for (int64_t i = 0; i < size; ++i) {
    const double angle = 2 * M_PI * static_cast<double>(i) / turn;
    values.push_back(constant + one * std::cos(angle) +
                     two * std::cos(2 * angle));
  }
  return {call.b().Constant(dtype, {size}, std::move(values))};
}
OnnxResults HannWindow(OnnxCall& call) {
  return CosineWindow(call, 0.5, -0.5, 0);
}
OnnxResults HammingWindow(OnnxCall& call) {
  return CosineWindow(call, 25.0 / 46, -21.0 / 46, 0);
}
OnnxResults BlackmanWindow(OnnxCall& call) {
  return CosineWindow(call, 0.42, -0.5, 0.08);
}

constexpr OnnxOp kSignalOps[] = {
    {"BlackmanWindow", BlackmanWindow}, {"DFT", Dft},
    {"HammingWindow", HammingWindow},   {"HannWindow", HannWindow},
    {"STFT", ShortTimeTransform},
};

}  // namespace

std::span<const OnnxOp> OnnxSignalOps() { return kSignalOps; }

}  // namespace fusor::models
