// Complex numbers and Fourier transforms.
//
// A complex tensor is a real one whose last dimension has the real and the
// imaginary part, as view_as_real returns it.

#include <algorithm>
#include <cmath>
#include <string>

#include "models/functions.h"
#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

Value* Zeros(Builder& b, const Value* like) {
  return b.Zeros({like->type().dtype, ShapeOf(like), {}});
}

// `im` may be null.
Value* Pairs(Builder& b, Value* re, Value* im) {
  if (im == nullptr) im = Zeros(b, re);
  Shape shape = ShapeOf(re);
  shape.push_back(1);
  return b.Concat({b.Reshape(re, shape), b.Reshape(im, shape)},
                  std::ssize(shape) - 1);
}

// Returns the argument as floats of 32 or 64 bits.
Complex Read(AtenCall& call, std::string_view name) {
  const auto wide = [&](Value* x) {
    const bool narrow =
        ir::DTypeSize(x->type().dtype) < 4 || !ir::IsFloat(x->type().dtype);
    return narrow ? call.b().Cast(x, DType::kF32) : x;
  };
  Value* x = wide(call.Tensor(name));
  if (!call.IsComplex(name)) return {x, nullptr};
  return {PartOf(call.b(), x, AtenPart::kReal),
          PartOf(call.b(), x, AtenPart::kImaginary)};
}

Complex ReadComplex(AtenCall& call, std::string_view name) {
  if (!call.IsComplex(name)) call.Throw("expected complex numbers");
  return Read(call, name);
}

// --- Operators of real numbers -----------------------------------------------

Values Built(AtenCall& call, std::vector<AtenPart> parts) {
  call.ReadParts(std::move(parts));
  Values results = FindAtenOp(call.op())->build(call);
  call.ReadParts({});
  return results;
}

Values JoinedAll(Builder& b, const Values& re, const Values& im) {
  Values results;
  for (size_t i = 0; i < re.size(); ++i) {
    results.push_back(Pairs(b, re[i], im[i]));
  }
  return results;
}

// Applies a linear operator of real numbers to both parts.
Values PartByPart(AtenCall& call) {
  return JoinedAll(call.b(), Built(call, {AtenPart::kReal}),
                   Built(call, {AtenPart::kImaginary}));
}

// Applies an operator of real numbers that is linear in its first and in its
// second tensor.
Values ProductOfParts(AtenCall& call) {
  Builder& b = call.b();
  const std::vector<bool> is_complex = call.ComplexTensors();
  if (is_complex.size() < 2) return PartByPart(call);
  if (is_complex.size() > 2) {
    call.Throw("complex numbers: expected two tensors at most");
  }
  if (!is_complex[0] || !is_complex[1]) {
    const auto parts = [&](AtenPart part) {
      return Built(call, {is_complex[0] ? part : AtenPart::kWhole,
                          is_complex[1] ? part : AtenPart::kWhole});
    };
    return JoinedAll(b, parts(AtenPart::kReal), parts(AtenPart::kImaginary));
  }
  const auto product = [&](AtenPart first, AtenPart second) {
    return Built(call, {first, second})[0];
  };
  constexpr AtenPart kRe = AtenPart::kReal, kIm = AtenPart::kImaginary;
  return {Pairs(b, b.Minus(product(kRe, kRe), product(kIm, kIm)),
                b.Plus(product(kRe, kIm), product(kIm, kRe)))};
}

// Adds or subtracts a tensor, or a number, which is real.
Values SumOfParts(AtenCall& call) {
  if (call.IsTensor("other")) return PartByPart(call);
  Value* re = Built(call, {AtenPart::kReal})[0];
  return {Pairs(call.b(), re, Read(call, "self").im)};
}

Values QuotientOfParts(AtenCall& call) {
  Builder& b = call.b();
  if (!call.IsTensor("other") || !call.IsComplex("other"))
    return ProductOfParts(call);
  // Multiplies by the conjugate over the square of the absolute value.
  Complex x = Read(call, "self");
  const Complex y = Read(call, "other");
  if (x.im == nullptr) x.im = Zeros(b, x.re);
  Value* square = b.Plus(b.Times(y.re, y.re), b.Times(y.im, y.im));
  Value* re = b.Plus(b.Times(x.re, y.re), b.Times(x.im, y.im));
  Value* im = b.Minus(b.Times(x.im, y.re), b.Times(x.re, y.im));
  return {Pairs(b, b.Divide(re, square), b.Divide(im, square))};
}

// --- Parts -------------------------------------------------------------------

// For view_as_real, view_as_complex and copies.
Values SamePairs(AtenCall& call) { return {call.Tensor("self")}; }

// To or from complex numbers. A real dtype drops the imaginary part.
Values ConvertComplex(AtenCall& call) {
  Builder& b = call.b();
  for (const char* ignored : {"copy", "non_blocking"}) call.Has(ignored);
  const Complex x = Read(call, "self");
  Value* re = b.Cast(x.re, call.DType(x.re->type().dtype));
  const bool is_complex =
      call.Has("dtype") ? IsTorchComplex(call.Int("dtype")) : x.im != nullptr;
  if (!is_complex) return {re};
  Value* im = x.im == nullptr ? nullptr : b.Cast(x.im, re->type().dtype);
  return {Pairs(b, re, im)};
}

// Accepts real numbers, too.
// Pads with zeros or elements.
Values PadParts(AtenCall& call) {
  if (call.Has("value") && call.Number("value") != 0) {
    call.Throw("value: expected 0 for complex numbers");
  }
  return PartByPart(call);
}

Values RealPart(AtenCall& call) { return {Read(call, "self").re}; }
Values ImaginaryPart(AtenCall& call) { return {ReadComplex(call, "self").im}; }

Values Conjugate(AtenCall& call) {
  if (!call.IsComplex("self")) return SamePairs(call);
  const Complex x = Read(call, "self");
  return {Pairs(call.b(), x.re, call.b().Neg(x.im))};
}

Values FromParts(AtenCall& call) {
  Builder& b = call.b();
  Value* re = Read(call, "real").re;
  Value* im = Read(call, "imag").re;
  const Shape shape = ShapeOf(b.Plus(re, im));
  return {Pairs(b, b.BroadcastTo(re, shape), b.BroadcastTo(im, shape))};
}

Values FromPolar(AtenCall& call) {
  Builder& b = call.b();
  Value* radius = Read(call, "abs").re;
  Value* angle = Read(call, "angle").re;
  return {
      Pairs(b, b.Times(radius, b.Cos(angle)), b.Times(radius, b.Sin(angle)))};
}

Values AbsoluteValue(AtenCall& call) {
  if (!call.IsComplex("self")) call.Throw("expected complex numbers");
  Value* pairs = call.Tensor("self");
  return {NormOf(call.b(), pairs, 2, {RankOf(pairs) - 1}, /*keep=*/false)};
}

Values Angle(AtenCall& call) {
  const Complex x = Read(call, "self");
  Value* im = x.im == nullptr ? Zeros(call.b(), x.re) : x.im;
  return {ArcTangent2(call.b(), im, x.re)};
}

Values ComplexExponential(AtenCall& call) {
  Builder& b = call.b();
  const Complex x = ReadComplex(call, "self");
  Value* radius = b.Exp(x.re);
  return {Pairs(b, b.Times(radius, b.Cos(x.im)), b.Times(radius, b.Sin(x.im)))};
}

// --- Fourier transforms ------------------------------------------------------

Complex ResizedParts(Builder& b, const Complex& x, int64_t dim,
                     int64_t extent) {
  return {Resized(b, x.re, dim, extent),
          x.im == nullptr ? nullptr : Resized(b, x.im, dim, extent)};
}

enum class Fourier { kComplex, kToHalf, kFromHalf };

// The dimensions that a call transforms and their extents, of the real end.
struct FourierExtents {
  std::vector<int64_t> dims, extents;
};

template <int kDims>
FourierExtents FourierExtentsOf(AtenCall& call, const Complex& x,
                                Fourier kind) {
  const int64_t rank = RankOf(x.re);
  FourierExtents found;
  std::vector<int64_t> given;
  if constexpr (kDims == 1) {
    found.dims = {call.Int("dim", -1)};
    if (call.Has("n")) given = {call.Int("n")};
  } else {
    given = call.Ints("s");
    found.dims = call.Ints("dim", kDims == 2 ? std::vector<int64_t>{-2, -1}
                                             : std::vector<int64_t>{});
    const int64_t all = given.empty() ? rank : std::ssize(given);
    if (found.dims.empty()) {
      for (int64_t d = rank - all; d < rank; ++d) found.dims.push_back(d);
    }
  }
  if (found.dims.empty()) call.Throw("expected a dimension, got none");
  if (!given.empty() && given.size() != found.dims.size()) {
    call.Throw(fmt::format("{} extents of {} dimensions", given.size(),
                           found.dims.size()));
  }
  for (size_t i = 0; i < found.dims.size(); ++i) {
    found.dims[i] = DimOf(call, found.dims[i], rank);
    int64_t extent = ShapeOf(x.re)[static_cast<size_t>(found.dims[i])];
    if (kind == Fourier::kFromHalf && i + 1 == found.dims.size()) {
      extent = 2 * (extent - 1);
    }
    if (!given.empty() && given[i] >= 0) extent = given[i];
    if (extent < 1 || extent > kMostFourierPoints) {
      call.Throw(fmt::format("{} points: expected 1 to {}", extent,
                             kMostFourierPoints));
    }
    found.extents.push_back(extent);
  }
  return found;
}

// Returns by what a transform of `points` is divided.
double Divisor(AtenCall& call, bool inverse, double points) {
  const std::string norm = call.Text("norm", "backward");
  if (norm == "ortho") return std::sqrt(points);
  if (norm != "backward" && norm != "forward") {
    call.Throw(
        fmt::format("norm {}: expected backward, forward or ortho", norm));
  }
  return (norm == "backward") == inverse ? points : 1;
}

template <int kDims, Fourier kind, bool inverse>
Values FourierOf(AtenCall& call) {
  Builder& b = call.b();
  Complex x = Read(call, "self");
  const auto [dims, extents] = FourierExtentsOf<kDims>(call, x, kind);
  double points = 1;
  for (const int64_t extent : extents) points *= static_cast<double>(extent);
  const double factor = 1 / Divisor(call, inverse, points);
  const size_t last = dims.size() - 1;
  // Real numbers are at the last dimension's end: the first step of a forward
  // transform, and the last one of an inverse.
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t at = kind == Fourier::kToHalf ? last - i : i;
    const bool real = kind != Fourier::kComplex && at == last;
    const int64_t n = extents[at];
    if (real && kind == Fourier::kFromHalf) {
      x = ResizedParts(b, x, dims[at], n / 2 + 1);
      if (x.im == nullptr) x.im = Zeros(b, x.re);
      // The transform of Hermitian numbers is the inverse of the conjugate.
      if (!inverse) x.im = b.Neg(x.im);
      return {b.Times(RealFourierInverse(b, x, dims[at], n), factor)};
    }
    x = FourierTransform(b, ResizedParts(b, x, dims[at], n), dims[at],
                         real ? n / 2 + 1 : n, inverse);
  }
  return {Pairs(b, b.Times(x.re, factor), b.Times(x.im, factor))};
}

// The arguments of a transform of windows.
struct ShortWindows {
  int64_t n, hop;
  Value* window;  // [n]
};
ShortWindows ShortWindowsOf(AtenCall& call, DType dtype) {
  Builder& b = call.b();
  const int64_t n = call.Int("n_fft");
  const int64_t hop = call.Int("hop_length", n / 4);
  const int64_t width = call.Int("win_length", n);
  if (n < 1 || n > kMostFourierPoints || hop < 1 || width < 1 || width > n) {
    call.Throw(
        fmt::format("windows of {} in {} points, {} apart", width, n, hop));
  }
  Value* window = call.OptionalTensor("window");
  if (window == nullptr) window = b.Constant(dtype, {width}, {1});
  if (ShapeOf(window) != Shape{width}) {
    call.Throw(fmt::format("window: expected [{}], got {}", width,
                           ToString(window->type())));
  }
  const int64_t low = (n - width) / 2;
  return {n, hop,
          b.Pad(b.Cast(window, dtype), {low}, {n - width - low}, {0}, 0)};
}

// Returns [n, count] with the positions of the elements of `count` windows.
Value* PositionsOf(Builder& b, const ShortWindows& w, int64_t count) {
  const Shape shape{w.n, count};
  return b.Plus(
      b.Iota(DType::kI32, shape, 0),
      b.Times(b.Iota(DType::kI32, shape, 1), static_cast<double>(w.hop)));
}

// Transforms windows of a signal [L] or [B, L] -> [.., frequencies, windows].
Values ShortTransforms(AtenCall& call) {
  Builder& b = call.b();
  const Complex x = Read(call, "self");
  const ShortWindows w = ShortWindowsOf(call, x.re->type().dtype);
  const int64_t n = w.n;
  const int64_t length = RankOf(x.re) == 0 ? 0 : ShapeOf(x.re).back();
  if (length < n) {
    call.Throw(fmt::format("windows of {} in {}", n, ToString(x.re->type())));
  }
  call.Bool("return_complex", false);  // or real pairs, which are the same
  Value* index = PositionsOf(b, w, (length - n) / w.hop + 1);
  Value* window = b.Reshape(w.window, {n, 1});
  const int64_t dim = RankOf(x.re) - 1;
  const auto windows = [&](Value* part) {
    return part == nullptr ? nullptr
                           : b.Times(b.Take(part, index, dim), window);
  };
  const bool half = call.Bool("onesided", x.im == nullptr);
  Complex y = FourierTransform(b, {windows(x.re), windows(x.im)}, dim,
                               half ? n / 2 + 1 : n, /*inverse=*/false);
  const double factor = call.Bool("normalized", false)
                            ? 1 / std::sqrt(static_cast<double>(n))
                            : 1;
  return {Pairs(b, b.Times(y.re, factor), b.Times(y.im, factor))};
}

// Adds the inverse transforms [n/2 + 1, windows] of overlapping windows, and
// divides by the sum of the squares of the windows.
Values InverseShortTransforms(AtenCall& call) {
  Builder& b = call.b();
  Complex x = ReadComplex(call, "self");
  const DType dtype = x.re->type().dtype;
  const ShortWindows w = ShortWindowsOf(call, dtype);
  const int64_t rank = RankOf(x.re);
  if ((rank != 2 && rank != 3) || w.hop > w.n) {
    call.Throw(fmt::format("windows of {}, {} apart, of {}", w.n, w.hop,
                           ToString(x.re->type())));
  }
  const Shape given = ShapeOf(x.re);
  const int64_t count = given.back();
  const bool half =
      call.Bool("onesided", given[static_cast<size_t>(rank - 2)] != w.n);
  const bool centered = call.Bool("center", true);
  if (call.Bool("return_complex", false) ||
      given[static_cast<size_t>(rank - 2)] != (half ? w.n / 2 + 1 : w.n)) {
    call.Throw(fmt::format("expected a real signal and {} frequencies, got {}",
                           half ? w.n / 2 + 1 : w.n, ToString(x.re->type())));
  }
  const Shape shape{rank == 3 ? given[0] : 1,
                    given[static_cast<size_t>(rank - 2)], count};
  x = {b.Reshape(x.re, shape), b.Reshape(x.im, shape)};
  Value* frames = half ? RealFourierInverse(b, x, 1, w.n)
                       : FourierTransform(b, x, 1, w.n, /*inverse=*/true).re;
  const double points = static_cast<double>(w.n);
  frames = b.Times(
      frames,
      1 / (call.Bool("normalized", false) ? std::sqrt(points) : points));
  Value* window = b.Broadcast(w.window, ShapeOf(frames), {1});
  const int64_t whole = w.n + w.hop * (count - 1);
  const Shape line{shape[0], whole};
  Value* index = b.Broadcast(PositionsOf(b, w, count), ShapeOf(frames), {1, 2});
  const auto add = [&](Value* of) {
    return b.ScatterAdd(of, {index}, line, {0, -1});
  };
  Value* sum = add(b.Times(frames, window));
  Value* squares = add(b.Times(window, window));
  const int64_t from = centered ? w.n / 2 : 0;
  const int64_t length = call.Int("length", whole - (centered ? 2 * from : 0));
  const int64_t end = from + std::min(whole - from, length);
  if (length < 1 || length > ir::kMaxElements || end <= from) {
    call.Throw(fmt::format("length {} of {}", length, whole));
  }
  const auto part = [&](Value* of) {
    return b.Slice(of, {0, from}, {shape[0], end});
  };
  Value* y = Resized(b, b.Divide(part(sum), part(squares)), 1, length);
  return {rank == 3 ? y : b.Reshape(y, {length})};
}

constexpr AtenOp kOps[] = {
    {"_conj.default", Conjugate},
    {"_to_copy.default", ConvertComplex},
    {"abs.default", AbsoluteValue},
    {"add.Tensor", SumOfParts},
    {"angle.default", Angle},
    {"bmm.default", ProductOfParts},
    {"cat.default", PartByPart},
    {"chunk.default", PartByPart},
    {"clone.default", SamePairs},
    {"complex.default", FromParts},
    {"conj.default", Conjugate},
    {"conj_physical.default", Conjugate},
    {"contiguous.default", SamePairs},
    {"constant_pad_nd.default", PadParts},
    {"detach.default", PartByPart},
    {"div.Tensor", QuotientOfParts},
    {"einsum.default", ProductOfParts},
    {"exp.default", ComplexExponential},
    {"expand.default", PartByPart},
    {"fft_fft2.default", FourierOf<2, Fourier::kComplex, false>},
    {"fft_fft.default", FourierOf<1, Fourier::kComplex, false>},
    {"fft_fftn.default", FourierOf<0, Fourier::kComplex, false>},
    {"fft_fftshift.default", PartByPart},
    {"fft_hfft2.default", FourierOf<2, Fourier::kFromHalf, false>},
    {"fft_hfft.default", FourierOf<1, Fourier::kFromHalf, false>},
    {"fft_hfftn.default", FourierOf<0, Fourier::kFromHalf, false>},
    {"fft_ifft2.default", FourierOf<2, Fourier::kComplex, true>},
    {"fft_ifft.default", FourierOf<1, Fourier::kComplex, true>},
    {"fft_ifftn.default", FourierOf<0, Fourier::kComplex, true>},
    {"fft_ifftshift.default", PartByPart},
    {"fft_ihfft2.default", FourierOf<2, Fourier::kToHalf, true>},
    {"fft_ihfft.default", FourierOf<1, Fourier::kToHalf, true>},
    {"fft_ihfftn.default", FourierOf<0, Fourier::kToHalf, true>},
    {"fft_irfft2.default", FourierOf<2, Fourier::kFromHalf, true>},
    {"fft_irfft.default", FourierOf<1, Fourier::kFromHalf, true>},
    {"fft_irfftn.default", FourierOf<0, Fourier::kFromHalf, true>},
    {"fft_rfft2.default", FourierOf<2, Fourier::kToHalf, false>},
    {"fft_rfft.default", FourierOf<1, Fourier::kToHalf, false>},
    {"fft_rfftn.default", FourierOf<0, Fourier::kToHalf, false>},
    {"flatten.using_ints", PartByPart},
    {"flip.default", PartByPart},
    {"imag.default", ImaginaryPart},
    {"index_select.default", PartByPart},
    {"istft.default", InverseShortTransforms},
    {"matmul.default", ProductOfParts},
    {"mean.default", PartByPart},
    {"mean.dim", PartByPart},
    {"mm.default", ProductOfParts},
    {"movedim.int", PartByPart},
    {"mT.default", PartByPart},
    {"mul.Tensor", ProductOfParts},
    {"narrow.default", PartByPart},
    {"neg.default", PartByPart},
    {"numpy_T.default", PartByPart},
    {"pad.default", PadParts},
    {"permute.default", PartByPart},
    {"polar.default", FromPolar},
    {"real.default", RealPart},
    {"repeat.default", PartByPart},
    {"reshape.default", PartByPart},
    {"resolve_conj.default", SamePairs},
    {"roll.default", PartByPart},
    {"select.int", PartByPart},
    {"slice.Tensor", PartByPart},
    {"split.Tensor", PartByPart},
    {"split_with_sizes.default", PartByPart},
    {"squeeze.default", PartByPart},
    {"squeeze.dim", PartByPart},
    {"squeeze.dims", PartByPart},
    {"stack.default", PartByPart},
    {"stft.default", ShortTransforms},
    {"sub.Tensor", SumOfParts},
    {"sum.default", PartByPart},
    {"sum.dim_IntList", PartByPart},
    {"t.default", PartByPart},
    {"to.dtype", ConvertComplex},
    {"transpose.int", PartByPart},
    {"unbind.int", PartByPart},
    {"unflatten.int", PartByPart},
    {"unsqueeze.default", PartByPart},
    {"view.default", PartByPart},
    {"view_as_complex.default", SamePairs},
    {"view_as_real.default", SamePairs}};

}  // namespace

const AtenOp* FindComplexAtenOp(std::string_view name) {
  for (const AtenOp& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace fusor::models
