// Tensors that are made of numbers: constants, sequences, windows and random
// numbers, of which dropout is a user.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "models/functions.h"
#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value*>;

// Returns a tensor whose elements, if any, have this value.
Value* Constant(AtenCall& call, ir::DType dtype, const Shape& shape,
                double value) {
  if (std::ranges::find(shape, 0) != shape.end()) {
    return EmptyPart(call.b(), {dtype, shape, {}});
  }
  return call.b().Constant(dtype, shape, {value});
}

template <const char* size_or_like, int value>
Values Filled(AtenCall& call) {
  const std::string_view kind = size_or_like;
  DType dtype = DType::kF32;
  Shape shape;
  if (kind != "size") {
    dtype = call.Tensor("self")->type().dtype;
    shape = ShapeOf(call.Tensor("self"));
  }
  if (kind != "like") shape = call.Ints("size");
  return {Constant(call, call.DType(dtype), shape, value)};
}
constexpr char kSize[] = "size";    // a size, f32
constexpr char kLike[] = "like";    // shape and dtype of self
constexpr char kDType[] = "dtype";  // a size, dtype of self

Values Full(AtenCall& call) {
  const bool like = call.Has("self");
  DType dtype = like ? call.Tensor("self")->type().dtype : DType::kF32;
  const Shape shape =
      call.Has("size") ? call.Ints("size") : ShapeOf(call.Tensor("self"));
  return {Constant(call, call.DType(dtype), shape, call.Number("fill_value"))};
}

Values Linspace(AtenCall& call) {
  Builder& b = call.b();
  const int64_t steps = call.Int("steps");
  if (steps < 1) call.Throw("steps: expected 1 or more");
  const double start = call.Number("start");
  const double end = call.Number("end");
  const DType dtype = call.DType(DType::kF32);
  const double step =
      steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  if (!ir::IsFloat(dtype)) call.Throw("dtype: expected a float");
  return {b.Plus(b.Times(b.Iota(dtype, {steps}, 0), step), start)};
}

// Returns a vector of `count` numbers that are known here.
Value* Sequence(AtenCall& call, int64_t count,
                const std::function<double(int64_t)>& element) {
  constexpr int64_t kMost = 1 << 22;
  if (count < 1 || count > kMost) {
    call.Throw(fmt::format("{} elements: expected 1 to {}", count, kMost));
  }
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(element(i));
  const DType dtype = call.DType(DType::kF32);
  if (!ir::IsFloat(dtype)) call.Throw("dtype: expected a float");
  return call.b().Constant(dtype, {count}, std::move(values));
}

Values Logspace(AtenCall& call) {
  const int64_t steps = call.Int("steps");
  const double start = call.Number("start");
  const double end = call.Number("end");
  const double base = call.Number("base", 10);
  return {Sequence(call, steps, [&](int64_t i) {
    const double share =
        steps > 1 ? static_cast<double>(i) / static_cast<double>(steps - 1) : 0;
    return std::pow(base, start + (end - start) * share);
  })};
}

// The frequencies of the elements of a Fourier transform; the first half only
// for that of real numbers.
template <bool kHalf>
Values Frequencies(AtenCall& call) {
  const int64_t n = call.Int("n");
  const double unit = call.Number("d", 1) * static_cast<double>(n);
  return {Sequence(call, kHalf ? n / 2 + 1 : n, [&](int64_t i) {
    return static_cast<double>(kHalf || i < (n + 1) / 2 ? i : i - n) / unit;
  })};
}

// A window is a function of the position, from 0 to 1. A periodic one has one
// element more, which is dropped.
Values Window(AtenCall& call, const std::function<double(double)>& function) {
  const int64_t n = call.Int("window_length");
  const int64_t steps = call.Bool("periodic", true) ? n : n - 1;
  return {Sequence(call, n, [&](int64_t i) {
    return n == 1
               ? 1
               : function(static_cast<double>(i) / static_cast<double>(steps));
  })};
}
Values CosineWindow(AtenCall& call, double a, double b, double c = 0) {
  return Window(call, [=](double at) {
    return a - b * std::cos(2 * M_PI * at) + c * std::cos(4 * M_PI * at);
  });
}
Values HannWindow(AtenCall& call) { return CosineWindow(call, 0.5, 0.5); }
Values HammingWindow(AtenCall& call) {
  return CosineWindow(call, call.Number("alpha", 0.54),
                      call.Number("beta", 0.46));
}
Values BlackmanWindow(AtenCall& call) {
  return CosineWindow(call, 0.42, 0.5, 0.08);
}
Values BartlettWindow(AtenCall& call) {
  return Window(call, [](double at) { return 1 - std::abs(2 * at - 1); });
}
Values KaiserWindow(AtenCall& call) {
  const double beta = call.Number("beta", 12);
  // std::cyl_bessel_i() is slow and throws for other numbers.
  constexpr double kMost = 600;
  if (!(std::abs(beta) <= kMost)) {
    call.Throw(fmt::format("beta {}: expected at most {}", beta, kMost));
  }
  const double whole = std::cyl_bessel_i(0.0, std::abs(beta));
  return Window(call, [=](double at) {
    const double side = std::sqrt(std::max(0.0, 4 * at * (1 - at)));
    return std::cyl_bessel_i(0.0, std::abs(beta) * side) / whole;
  });
}

Values Eye(AtenCall& call) {
  Builder& b = call.b();
  const int64_t rows = call.Int("n");
  const Shape shape{rows, call.Int("m", rows)};
  Value* one = b.Compare("eq", b.Iota(DType::kI64, shape, 0),
                         b.Iota(DType::kI64, shape, 1));
  return {b.Cast(one, call.DType(DType::kF32))};
}

Values OneHot(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  Shape shape = ShapeOf(x);
  const int64_t classes = call.Int("num_classes", -1);
  if (classes < 1) call.Throw("num_classes: expected 1 or more");
  shape.push_back(1);
  x = b.Reshape(x, shape);
  shape.back() = classes;
  Value* hot = b.Compare("eq", b.Iota(x->type().dtype, shape, RankOf(x) - 1),
                         b.BroadcastTo(x, shape));
  return {b.Cast(hot, DType::kI64)};
}

Values ScalarTensor(AtenCall& call) {
  return {call.b().Scalar(call.DType(DType::kF32), call.Number("s"))};
}

Values Arange(AtenCall& call) {
  const double start = call.Number("start", 0);
  const double step = call.Number("step", 1);
  const double count = std::ceil((call.Number("end") - start) / step);
  if (!(count >= 1 && count <= 1e9)) {
    call.Throw(fmt::format("expected 1 to 1e9 elements, got {}", count));
  }
  Builder& b = call.b();
  const DType dtype = call.DType(DType::kI64);
  Value* index = b.Iota(dtype, {static_cast<int64_t>(count)}, 0);
  if (step != 1) index = b.Times(index, step);
  return {start == 0 ? index : b.Plus(index, start)};
}

// The rows and columns of a triangle, i64 [2, elements].
template <bool kLower>
Values TriangleIndices(AtenCall& call) {
  const int64_t rows = call.Int("row");
  const int64_t columns = call.Int("col");
  const int64_t offset = call.Int("offset", 0);
  constexpr int64_t kMost = 1 << 22;
  if (rows < 1 || columns < 1 || rows > kMost / columns) {
    call.Throw(fmt::format("a triangle of {} by {}", rows, columns));
  }
  std::vector<double> indices, of_columns;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      if (kLower ? c - r > offset : c - r < offset) continue;
      indices.push_back(static_cast<double>(r));
      of_columns.push_back(static_cast<double>(c));
    }
  }
  if (indices.empty()) call.Throw("a triangle without elements");
  const auto count = static_cast<int64_t>(indices.size());
  indices.insert(indices.end(), of_columns.begin(), of_columns.end());
  return {call.b().Constant(call.DType(DType::kI64), {2, count},
                            std::move(indices))};
}

// --- Random numbers ----------------------------------------------------------

// The shape of a result: that of the argument "size" or of self.
Shape SampledShape(AtenCall& call) {
  return call.Has("size") ? call.Ints("size") : ShapeOf(call.Tensor("self"));
}
DType SampledDType(AtenCall& call, DType fallback) {
  const bool like = call.Has("self") && !call.Has("size");
  return call.DType(like ? call.Tensor("self")->type().dtype : fallback);
}

// Uniform in (0, 1], whose logarithm is finite.
Value* AboveZero(AtenCall& call, const Shape& shape) {
  Value* u = call.layers().Random(shape);
  return call.b().Minus(call.b().ScalarLike(u, 1), u);
}

// Standard normal numbers, f32, by the transform of Box and Muller.
Value* Normal(AtenCall& call, const Shape& shape) {
  Builder& b = call.b();
  Value* radius = b.Sqrt(b.Times(b.Log(AboveZero(call, shape)), -2.0));
  Value* angle = b.Times(call.layers().Random(shape), 2 * M_PI);
  return b.Times(radius, b.Cos(angle));
}

Values Rand(AtenCall& call) {
  const Shape shape = SampledShape(call);
  return {call.b().Cast(call.layers().Random(shape),
                        SampledDType(call, DType::kF32))};
}

Values RandNormal(AtenCall& call) {
  const Shape shape = SampledShape(call);
  return {call.b().Cast(Normal(call, shape), SampledDType(call, DType::kF32))};
}

// Returns integers from low to high - 1.
Value* Integers(AtenCall& call, const Shape& shape, int64_t low, int64_t high,
                DType dtype) {
  Builder& b = call.b();
  // Random() has steps of 2^-24.
  constexpr int64_t kMost = 1 << 24;
  int64_t count = 0;
  if (__builtin_sub_overflow(high, low, &count) || count < 1 || count > kMost) {
    call.Throw(fmt::format("integers from {} to {}: expected 1 to {} of them",
                           low, high, kMost));
  }
  Value* step =
      b.Times(call.layers().Random(shape), static_cast<double>(count));
  // The product may be rounded up.
  step = b.Minimum(b.Floor(step), static_cast<double>(count - 1));
  return b.Cast(b.Plus(b.Cast(step, DType::kI64), static_cast<double>(low)),
                dtype);
}
Values RandIntegers(AtenCall& call) {
  const Shape shape = SampledShape(call);
  const int64_t low = call.Int("low", 0);
  return {Integers(call, shape, low, call.Int("high"),
                   SampledDType(call, DType::kI64))};
}

// In place: the numbers have the shape and dtype of self.
Value* LikeSelf(AtenCall& call, Value* x) {
  return call.b().Cast(x, call.Tensor("self")->type().dtype);
}
Values Uniform(AtenCall& call) {
  Builder& b = call.b();
  const double from = call.Number("from", 0);
  const double to = call.Number("to", 1);
  if (!(from <= to)) call.Throw(fmt::format("from {} to {}", from, to));
  Value* u = call.layers().Random(ShapeOf(call.Tensor("self")));
  return {LikeSelf(call, b.Plus(b.Times(u, to - from), from))};
}
Values Exponential(AtenCall& call) {
  Builder& b = call.b();
  const double rate = call.Number("lambd", 1);
  if (!(rate > 0)) call.Throw(fmt::format("lambd {}: expected more", rate));
  Value* u = AboveZero(call, ShapeOf(call.Tensor("self")));
  return {LikeSelf(call, b.Divide(b.Neg(b.Log(u)), rate))};
}
template <bool kLog>
Values NormalLike(AtenCall& call) {
  Builder& b = call.b();
  const double mean = call.Number("mean", kLog ? 1 : 0);
  const double std = call.Number("std", kLog ? 2 : 1);
  if (!(std >= 0)) call.Throw(fmt::format("std {}: expected 0 or more", std));
  Value* x = Normal(call, ShapeOf(call.Tensor("self")));
  x = b.Plus(b.Times(x, std), mean);
  return {LikeSelf(call, kLog ? b.Exp(x) : x)};
}

// Means and standard deviations are tensors or numbers.
Values NormalOf(AtenCall& call) {
  Builder& b = call.b();
  Value* mean = call.IsTensor("mean") ? call.Tensor("mean") : nullptr;
  const bool has_std = call.Has("std");
  Value* std = has_std && call.IsTensor("std") ? call.Tensor("std") : nullptr;
  Shape shape;
  DType dtype = DType::kF32;
  if (call.Has("size")) {
    shape = call.Ints("size");
    dtype = call.DType(dtype);
  } else {
    const Value* like = mean == nullptr  ? std
                        : std == nullptr ? mean
                                         : b.Plus(mean, std);
    if (like == nullptr) call.Throw("expected a tensor among mean and std");
    shape = ShapeOf(like);
    dtype = like->type().dtype;
  }
  Value* x = b.Cast(Normal(call, shape), dtype);
  x = std != nullptr ? b.Times(x, std)
                     : b.Times(x, has_std ? call.Number("std") : 1);
  x = mean != nullptr ? b.Plus(x, mean) : b.Plus(x, call.Number("mean"));
  return {b.StopGradient(x)};
}

// Returns a permutation of the first n integers: the order of random numbers.
Values Permutation(AtenCall& call) {
  const int64_t n = call.Int("n");
  if (n < 1 || n > kMostRanked) {
    call.Throw(fmt::format("{} elements: expected 1 to {}", n, kMostRanked));
  }
  Value* order = Leading(call.b(), call.layers().Random({n}), 0, n,
                         /*largest=*/false)
                     .indices;
  return {call.b().Cast(order, call.DType(DType::kI64))};
}

// Returns indices of the last dimension, which has probabilities. With
// replacement, they are the ranges of these that uniform numbers fall into.
// Without it, they are those of the least exponential numbers of these rates
// (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
Values Multinomial(AtenCall& call) {
  Builder& b = call.b();
  Value* p = b.StopGradient(FloatSelf(call));
  const int64_t count = call.Int("num_samples");
  const int64_t rank = RankOf(p);
  if (rank != 1 && rank != 2) {
    call.Throw("expected a vector or a matrix, got " + ToString(p->type()));
  }
  const int64_t choices = ShapeOf(p).back();
  const bool replaced = call.Bool("replacement", false);
  if (count < 1 || (!replaced && count > choices) || choices > kMostRanked) {
    call.Throw(fmt::format("{} samples of {}", count, ToString(p->type())));
  }
  if (!replaced) {
    Value* waits = b.Neg(b.Log(AboveZero(call, ShapeOf(p))));
    waits = b.Divide(b.Cast(waits, p->type().dtype), p);
    waits =
        b.Select(b.Compare("gt", p, 0.0), waits,
                 b.ScalarLike(waits, std::numeric_limits<double>::infinity()));
    return {Leading(b, waits, rank - 1, count, /*largest=*/false).indices};
  }
  Shape shape = ShapeOf(p);
  shape.back() = count;
  Value* sums = b.CumulativeSum(p, rank - 1);
  Ints start(ShapeOf(p).size(), 0);
  start.back() = choices - 1;
  Value* total = b.Slice(sums, start, ShapeOf(p));
  Value* u = b.Times(b.Cast(call.layers().Random(shape), p->type().dtype),
                     b.BroadcastTo(total, shape));
  Shape pairs = shape;
  pairs.push_back(choices);
  Ints of_u(shape.size());
  std::iota(of_u.begin(), of_u.end(), 0);
  Ints of_sums = of_u;
  of_sums.back() = rank;
  Value* past = b.Compare("le", b.Broadcast(sums, pairs, of_sums),
                          b.Broadcast(u, pairs, of_u));
  Value* index = b.ReduceSum(b.Cast(past, DType::kI64), {rank});
  // u may be rounded up to the total.
  return {b.Minimum(index, static_cast<double>(choices - 1))};
}

// 1 with the probabilities that a tensor has, else 0.
Values BernoulliOf(AtenCall& call) {
  Builder& b = call.b();
  Value* p = call.Tensor(call.Has("p") ? "p" : "self");
  const Value* self = call.Tensor("self");
  Value* u = call.layers().Random(ShapeOf(self));
  Value* below = b.Compare("lt", b.Cast(u, p->type().dtype),
                           b.BroadcastTo(p, ShapeOf(self)));
  return {b.Cast(below, self->type().dtype)};
}

// Leaky ReLU, while training with a random slope per element.
Values RandomLeakyRelu(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const double lower = call.Number("lower", 1.0 / 8);
  const double upper = call.Number("upper", 1.0 / 3);
  const bool random = call.Bool("training", false) && call.layers().training();
  Value* slope = b.ScalarLike(x, (lower + upper) / 2);
  if (random) {
    Value* u = call.layers().Random(ShapeOf(x));
    slope = b.Cast(b.Plus(b.Times(u, upper - lower), lower), x->type().dtype);
  }
  return {b.Select(b.Compare("gt", x, 0.0), x, b.Times(x, slope))};
}

Values Dropout(AtenCall& call) {
  Value* x = call.Tensor(call.Has("self") ? "self" : "input");
  const double p = call.Number("p");
  if (!call.Bool("train", true)) return {x};
  return {call.layers().Dropout(x, p)};
}

// The mask has no gradient and no other use.
Values NativeDropout(AtenCall& call) { return {Dropout(call)[0], nullptr}; }

// Drops elements, or whole channels. With kAlpha, keeps the mean and variance
// of SELU's results (Klambauer et al., "Self-Normalizing Neural Networks",
// 2017): dropped elements become SELU's lower limit, then all are scaled and
// shifted.
template <bool kChannels, bool kAlpha>
Values DropoutVariant(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const double p = call.Number("p");
  if (!call.Bool("train", true) || !call.layers().training() || p == 0) {
    return {x};
  }
  Shape shape = ShapeOf(x);
  if (kChannels) {
    if (shape.size() < 2) {
      call.Throw("expected [N,C,..], got " + ToString(x->type()));
    }
    std::fill(shape.begin() + 2, shape.end(), 1);
  }
  Value* kept = b.BroadcastTo(b.Compare("ge", call.layers().Random(shape), p),
                              ShapeOf(x));
  if (!kAlpha || p == 1) {
    const double scale = p == 1 ? 0 : 1 / (1 - p);
    return {b.Select(kept, b.Times(x, scale), b.ScalarLike(x, 0))};
  }
  constexpr double kLeast = -1.7580993408473766;
  const double scale = 1 / std::sqrt((kLeast * kLeast * p + 1) * (1 - p));
  Value* dropped = b.Select(kept, x, b.ScalarLike(x, kLeast));
  return {b.Plus(b.Times(dropped, scale), -scale * kLeast * p)};
}

// Returns 1 with probability p, else 0. In evaluation returns the expectation
// p, so that the usual division by p gives 1.
Values Bernoulli(AtenCall& call) {
  Builder& b = call.b();
  Value* self = call.Tensor("self");
  const double p = call.Number("p", 0.5);
  if (!call.layers().training()) return {b.ScalarLike(self, p)};
  Value* below = b.Compare("lt", call.layers().Random(ShapeOf(self)), p);
  return {b.Cast(below, self->type().dtype)};
}

constexpr AtenOp kSourceOps[] = {
    {"alpha_dropout.default", DropoutVariant<false, true>},
    {"arange.default", Arange},
    {"arange.start", Arange},
    {"arange.start_step", Arange},
    {"bartlett_window.default", BartlettWindow},
    {"bartlett_window.periodic", BartlettWindow},
    {"bernoulli.Tensor", BernoulliOf},
    {"bernoulli.default", BernoulliOf},
    {"bernoulli.float", Bernoulli},
    {"bernoulli.p", Bernoulli},
    {"blackman_window.default", BlackmanWindow},
    {"blackman_window.periodic", BlackmanWindow},
    {"dropout.default", Dropout},
    {"empty.memory_format", Filled<kSize, 0>},
    {"empty_like.default", Filled<kLike, 0>},
    {"exponential.default", Exponential},
    {"eye.default", Eye},
    {"eye.m", Eye},
    {"feature_alpha_dropout.default", DropoutVariant<true, true>},
    {"feature_dropout.default", DropoutVariant<true, false>},
    {"fft_fftfreq.default", Frequencies<false>},
    {"fft_rfftfreq.default", Frequencies<true>},
    {"full.default", Full},
    {"full_like.default", Full},
    {"hamming_window.default", HammingWindow},
    {"hamming_window.periodic", HammingWindow},
    {"hamming_window.periodic_alpha", HammingWindow},
    {"hamming_window.periodic_alpha_beta", HammingWindow},
    {"hann_window.default", HannWindow},
    {"hann_window.periodic", HannWindow},
    {"kaiser_window.beta", KaiserWindow},
    {"kaiser_window.default", KaiserWindow},
    {"kaiser_window.periodic", KaiserWindow},
    {"linspace.default", Linspace},
    {"log_normal.default", NormalLike<true>},
    {"logspace.default", Logspace},
    {"multinomial.default", Multinomial},
    {"native_dropout.default", NativeDropout},
    {"new_empty.default", Filled<kDType, 0>},
    {"new_full.default", Full},
    {"new_ones.default", Filled<kDType, 1>},
    {"new_zeros.default", Filled<kDType, 0>},
    {"normal.Tensor_Tensor", NormalOf},
    {"normal.Tensor_float", NormalOf},
    {"normal.default", NormalLike<false>},
    {"normal.float_Tensor", NormalOf},
    {"normal.float_float", NormalOf},
    {"one_hot.default", OneHot},
    {"ones.default", Filled<kSize, 1>},
    {"ones_like.default", Filled<kLike, 1>},
    {"rand.default", Rand},
    {"rand_like.default", Rand},
    {"randint.default", RandIntegers},
    {"randint.low", RandIntegers},
    {"randint_like.default", RandIntegers},
    {"randint_like.low_dtype", RandIntegers},
    {"randn.default", RandNormal},
    {"randn_like.default", RandNormal},
    {"randperm.default", Permutation},
    {"rrelu.default", RandomLeakyRelu},
    {"scalar_tensor.default", ScalarTensor},
    {"tril_indices.default", TriangleIndices<true>},
    {"triu_indices.default", TriangleIndices<false>},
    {"uniform.default", Uniform},
    {"zero.default", Filled<kLike, 0>},
    {"zeros.default", Filled<kSize, 0>},
    {"zeros_like.default", Filled<kLike, 0>},
};

}  // namespace

std::span<const AtenOp> AtenSourceOps() { return kSourceOps; }

}  // namespace fusor::models
