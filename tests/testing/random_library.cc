#include "tests/testing/random_library.h"

#include <algorithm>
#include <cmath>

namespace fusor::test {
namespace {

using ir::Attrs;
using ir::DType;
using ir::Shape;
using ir::TensorType;
using ir::Value;
using Ints = std::vector<int64_t>;

constexpr int64_t kMaxImage = 4 * kMaxElements;
constexpr int64_t kMaxMacs = 1 << 18;

class LibraryOps {
 public:
  explicit LibraryOps(ValuePool& pool)
      : pool_(pool), draw_(pool.draw()), b_(pool.builder()) {}

  void Add(Value* x) {
    std::vector<void (LibraryOps::*)(Value*)> choices;
    if (pool_.Allows(kLibrary)) {
      choices = {&LibraryOps::Convolution, &LibraryOps::Convolution,
                 &LibraryOps::Matmul,      &LibraryOps::Matmul,
                 &LibraryOps::Pool,        &LibraryOps::Norm};
    }
    if (pool_.Allows(kMisc)) {
      choices.insert(choices.end(), {&LibraryOps::Mark, &LibraryOps::Random,
                                     &LibraryOps::Index, &LibraryOps::Index,
                                     &LibraryOps::Scatter, &LibraryOps::Scan,
                                     &LibraryOps::Wave, &LibraryOps::Integers});
    }
    if (pool_.Allows(kNoGradient)) {
      choices.insert(choices.end(),
                     {&LibraryOps::Many, &LibraryOps::Flatten,
                      &LibraryOps::Collective, &LibraryOps::SpaceToDepth});
    }
    if (!choices.empty()) (this->*draw_.Pick(choices))(x);
  }

 private:
  double Bound(const Value* x) const { return pool_.Bound(x); }

  // --- Operands
  // ---------------------------------------------------------------
  static int64_t Channels(Draw& draw) {
    // Values around the channel blocks of vendor libraries' layouts.
    constexpr int64_t kChannels[] = {1, 2, 3, 4, 6, 8, 15, 16, 17, 32};
    return kChannels[draw.Below(std::size(kChannels))];
  }

  // Returns a floating-point image of at most `bound`: x reshaped, or an input.
  Value* Image(Value* x, double bound) {
    const bool fits = ir::IsFloat(x->type().dtype) && x->type().rank() <= 4;
    if (!fits || draw_.Chance(0.3)) {
      const DType dtype = FloatDType();
      const TensorType type{dtype,
                            {draw_.Between(1, 3), Channels(draw_),
                             draw_.Between(1, 12), draw_.Between(1, 12)},
                            {}};
      if (type.num_elements() > kMaxImage) return nullptr;
      return pool_.NewInput(type, "image");
    }
    x = pool_.RowMajor(pool_.Tame(x, bound));
    if (x->type().rank() == 4) return x;
    Shape shape = x->type().shape;
    while (shape.size() < 4) {
      shape.insert(
          shape.begin() + draw_.Below(static_cast<int64_t>(shape.size()) + 1),
          1);
    }
    return pool_.Adopt(b_.Reshape(x, shape), Bound(x));
  }

  DType FloatDType() {
    std::vector<DType> floats;
    for (const DType dtype : pool_.options().dtypes) {
      if (ir::IsFloat(dtype)) floats.push_back(dtype);
    }
    return floats.empty() ? DType::kF32 : draw_.Pick(floats);
  }

  // Returns a floating-point value of at most `bound`: an existing one, or a
  // new input whose name starts with `name`.
  Value* Operand(const TensorType& type, double bound, const char* name) {
    Value* same = pool_.ValueWith([&](const Value* v) {
      return v->type() == type && pool_.Bound(v) <= bound;
    });
    if (same != nullptr && draw_.Chance(0.5)) return same;
    if (draw_.Chance(0.1)) return pool_.Tame(pool_.Match(type), bound);
    Value* input = pool_.NewInput(type, name);
    return Bound(input) <= bound ? input : pool_.Tame(input, bound);
  }

  // Returns "f32" with a chance of 20% for 16-bit operands, otherwise "".
  std::string ResultDType(DType operand) {
    if (operand == DType::kF32 || operand == DType::kF64) return "";
    return draw_.Chance(0.2) ? "f32" : "";
  }

  // Returns a bound for two factors, such that a sum of `count` products stays
  // in range.
  double FactorBound(DType dtype, int64_t count) const {
    return std::max(
        1.0, std::sqrt(MagnitudeLimit(dtype) / static_cast<double>(count)));
  }

  // Adopts y, and returns it if it stays in range, otherwise its tanh.
  Value* AdoptSum(Value* y, double bound) {
    pool_.Adopt(y, bound);
    return pool_.Tame(y, MagnitudeLimit(y->type().dtype));
  }

  // --- Convolution ----------------------------------------------------------
  void Convolution(Value* x) {
    x = Image(x, 4);
    if (x == nullptr) return;
    const Shape& in = x->type().shape;
    const DType dtype = x->type().dtype;
    const int64_t groups = Groups(in[1]);
    ir::Conv2dOptions o;
    o.groups = groups;
    o.stride_h = draw_.Between(1, 3);
    o.stride_w = draw_.Chance(0.7) ? o.stride_h : draw_.Between(1, 3);
    o.dilation_h = draw_.Chance(0.8) ? 1 : draw_.Between(2, 3);
    o.dilation_w = draw_.Chance(0.8) ? o.dilation_h : draw_.Between(1, 2);
    const int64_t kh = WindowExtent();
    const int64_t kw = draw_.Chance(0.8) ? kh : WindowExtent();
    o.pad_h = draw_.Between(0, (kh - 1) * o.dilation_h);
    o.pad_w = draw_.Chance(0.7) && kh == kw && o.dilation_h == o.dilation_w
                  ? o.pad_h
                  : draw_.Between(0, (kw - 1) * o.dilation_w);
    if (draw_.Chance(0.2)) o.far_pad_h = draw_.Between(0, 3);
    if (draw_.Chance(0.2)) o.far_pad_w = draw_.Between(0, 3);
    const int64_t far_h = o.far_pad_h < 0 ? o.pad_h : o.far_pad_h;
    const int64_t far_w = o.far_pad_w < 0 ? o.pad_w : o.far_pad_w;
    if (in[2] + o.pad_h + far_h < (kh - 1) * o.dilation_h + 1) return;
    if (in[3] + o.pad_w + far_w < (kw - 1) * o.dilation_w + 1) return;
    const int64_t features =
        draw_.Chance(0.5) ? groups * draw_.Between(1, 3)
                          : (Channels(draw_) + groups - 1) / groups * groups;
    const TensorType weight{dtype, {features, in[1] / groups, kh, kw}, {}};
    const int64_t products = weight.num_elements() / features;
    if (in[0] * features * in[2] * in[3] * products > kMaxMacs) return;
    x = pool_.Tame(x, FactorBound(dtype, products));
    Value* w = Operand(weight, FactorBound(dtype, products), "filter");
    Value* bias = draw_.Chance(0.3)
                      ? Operand({dtype, {features}, {}}, kInputBound, "bias")
                      : nullptr;
    const double sum = Bound(x) * Bound(w) * static_cast<double>(products);
    Value* y = b_.Conv2d(x, w, bias, o);
    ir::Node* node = y->producer();
    y = AdoptSum(y, sum + (bias == nullptr ? 0 : kInputBound));
    if (pool_.Allows(kNoGradient) && draw_.Chance(0.5)) {
      ConvolutionGradient(*node);
    }
  }

  int64_t Groups(int64_t channels) {
    if (channels == 1 || draw_.Chance(0.6)) return 1;
    return draw_.Chance(0.5) ? channels : pool_.Divisor(channels);
  }

  int64_t WindowExtent() {
    constexpr int64_t kExtents[] = {1, 1, 2, 3, 3, 3, 4, 5, 7};
    return kExtents[draw_.Below(std::size(kExtents))];
  }

  // Appends one of the two gradients of a convolution.
  void ConvolutionGradient(const ir::Node& conv) {
    Attrs attrs;
    for (const char* name : {"stride", "pad", "dilation"}) {
      attrs.Set(name, conv.attrs().Ints(name));
    }
    attrs.Set("groups", conv.attrs().Int("groups"));
    Value* x = conv.input(0);
    Value* w = conv.input(1);
    const DType dtype = x->type().dtype;
    if (conv.output()->type().dtype != dtype) return;
    const bool of_input = draw_.Chance(0.5);
    const Shape& result = conv.output()->type().shape;
    const Shape& window = w->type().shape;
    const int64_t count = of_input ? window[0] * window[2] * window[3]
                                   : result[0] * result[2] * result[3];
    Value* dy = Operand({dtype, result, {}}, FactorBound(dtype, count), "dy");
    attrs.Set("result_dtype", ResultDType(dtype));
    if (of_input) {
      attrs.Set("input_shape", x->type().shape);
      AdoptSum(b_.Add("conv2d_grad_input", {dy, w}, attrs)->output(),
               Bound(dy) * Bound(w) * static_cast<double>(count));
    } else {
      attrs.Set("weight_shape", window);
      AdoptSum(b_.Add("conv2d_grad_weight", {x, dy}, attrs)->output(),
               Bound(dy) * Bound(x) * static_cast<double>(count));
    }
  }

  // --- Matrix products ------------------------------------------------------
  void Matmul(Value* x) {
    if (!ir::IsFloat(x->type().dtype)) return;
    x = pool_.RowMajor(x);
    if (x->type().rank() < 2) {
      const int64_t n = x->type().num_elements();
      x = pool_.Adopt(
          b_.Reshape(x, draw_.Chance(0.5) ? Shape{1, n} : Shape{n, 1}),
          Bound(x));
    }
    const Shape shape = x->type().shape;
    const size_t rank = shape.size();
    const bool ta = draw_.Chance(0.5);
    const bool tb = draw_.Chance(0.5);
    const int64_t k = shape[rank - (ta ? 2 : 1)];
    const DType dtype = x->type().dtype;
    x = pool_.Tame(x, FactorBound(dtype, k));
    TensorType other{dtype, shape, {}};
    const int64_t n = draw_.Chance(0.5) ? draw_.Between(1, 5) : Channels(draw_);
    other.shape[rank - 2] = tb ? n : k;
    other.shape[rank - 1] = tb ? k : n;
    const int64_t rows = x->type().num_elements() / k;
    if (rows * n * k > kMaxMacs || rows * n > kMaxElements) return;
    const bool square = shape[rank - 2] == shape[rank - 1];
    // Multiplies x by itself if one side is transposed or x is square.
    if (draw_.Chance(0.3) && (ta != tb || square)) {
      Value* y = b_.Matmul(x, x, ta, tb);
      if (y->type().num_elements() > kMaxElements) return;
      AdoptSum(y, Bound(x) * Bound(x) * static_cast<double>(k));
      return;
    }
    Value* w = Operand(other, FactorBound(dtype, k), "matrix");
    double bound = Bound(x) * Bound(w) * static_cast<double>(k);
    Value* y = b_.Add("matmul", {x, w},
                      {{"transpose_a", ta},
                       {"transpose_b", tb},
                       {"result_dtype", ResultDType(dtype)}})
                   ->output();
    if (draw_.Chance(0.2)) {
      Value* bias = Operand({y->type().dtype, {n}, {}}, kInputBound, "bias");
      y = b_.Plus(y, b_.BroadcastAlong(bias, y->type(),
                                       static_cast<int64_t>(rank) - 1));
      bound += kInputBound;
    }
    AdoptSum(y, bound);
  }

  // --- Pooling --------------------------------------------------------------
  void Pool(Value* x) {
    x = Image(x, MagnitudeLimit(DType::kF16));
    if (x == nullptr) return;
    Ints window{draw_.Between(1, 3), 0};
    window[1] = draw_.Chance(0.7) ? window[0] : draw_.Between(1, 4);
    Ints stride{draw_.Between(1, 3), 0};
    stride[1] = draw_.Chance(0.7) ? stride[0] : draw_.Between(1, 3);
    const Ints pad{draw_.Between(0, window[0] / 2),
                   draw_.Between(0, window[1] / 2)};
    const Shape& in = x->type().shape;
    if (in[2] + 2 * pad[0] < window[0]) return;
    if (in[3] + 2 * pad[1] < window[1]) return;
    const bool max = draw_.Chance(0.6);
    Attrs attrs{{"window", window}, {"stride", stride}, {"pad", pad}};
    if (!max) attrs.Set("count_include_pad", draw_.Chance(0.5));
    // Not AvgPool2d, which writes a single window as a mean.
    Value* y = b_.Add(max ? "max_pool" : "avg_pool", {x}, attrs)->output();
    pool_.Adopt(y, Bound(x));
    if (max && draw_.Chance(0.3)) {
      pool_.Adopt(y->producer()->output(1),
                  static_cast<double>(window[0] * window[1]));
    }
    if (pool_.Allows(kNoGradient) && draw_.Chance(0.5)) {
      PoolGradient(*y->producer(), max);
    }
  }

  void PoolGradient(const ir::Node& pool, bool max) {
    Value* x = pool.input(0);
    const Ints& window = pool.attrs().Ints("window");
    if (max && draw_.Chance(0.4)) {
      Value* other = pool_.Partner(x);
      pool_.Adopt(
          b_.Add("max_pool_gather", {other, pool.output(1)}, pool.attrs())
              ->output(),
          Bound(other));
      return;
    }
    Value* dy = Operand({x->type().dtype, pool.output()->type().shape, {}},
                        kInputBound, "dy");
    Attrs attrs = pool.attrs();
    attrs.Set("input_shape", x->type().shape);
    std::vector<Value*> operands{dy};
    if (max) operands.push_back(pool.output(1));
    pool_.Adopt(b_.Add(max ? "max_pool_grad" : "avg_pool_grad", operands, attrs)
                    ->output(),
                Bound(dy) * static_cast<double>(window[0] * window[1]));
  }

  // --- Batch normalisation --------------------------------------------------
  void Norm(Value* x) {
    const bool flat = x->type().rank() == 2 && ir::IsFloat(x->type().dtype);
    x = flat ? pool_.Tame(x, kInputBound) : Image(x, kInputBound);
    if (x == nullptr) return;
    const TensorType type = x->type();
    const TensorType vector{
        type.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
        {type.shape[1]},
        {}};
    const std::string residual = draw_.Chance(0.6)   ? "none"
                                 : draw_.Chance(0.5) ? "add"
                                                     : "norm";
    std::vector<Value*> in{x, Operand(vector, kInputBound, "gamma"),
                           Operand(vector, kInputBound, "beta")};
    if (residual != "none") {
      in.push_back(pool_.Tame(pool_.Partner(x), kInputBound));
    }
    if (residual == "norm") {
      in.push_back(Operand(vector, kInputBound, "gamma"));
      in.push_back(Operand(vector, kInputBound, "beta"));
    }
    const Attrs attrs{
        {"epsilon", 1e-2}, {"relu", draw_.Chance(0.4)}, {"residual", residual}};
    ir::Node* node = b_.Add("batch_norm_train", in, attrs);
    // A normalised element is at most sqrt(n) deviations from the mean.
    const double count =
        static_cast<double>(type.num_elements() / type.shape[1]);
    const double bound = 2 * (kInputBound * std::sqrt(count) + kInputBound);
    pool_.Adopt(node->output(0), bound);
    // Statistics have no gradient.
    if (draw_.Chance(0.5)) {
      pool_.Adopt(b_.StopGradient(node->output(1)), kInputBound);
    }
    if (draw_.Chance(0.5)) {
      pool_.Adopt(b_.StopGradient(node->output(2)), kInputBound * kInputBound);
    }
    if (pool_.Allows(kNoGradient) && draw_.Chance(0.5)) NormGradient(*node);
  }

  void NormGradient(const ir::Node& norm) {
    Value* x = norm.input(0);
    std::vector<Value*> in{Operand(x->type(), kInputBound, "dy"),
                           x,
                           norm.input(1),
                           norm.input(2),
                           norm.output(1),
                           norm.output(2)};
    const bool two = norm.num_inputs() == 6;
    if (two) {
      for (size_t i = 3; i < 6; ++i) in.push_back(norm.input(i));
      in.push_back(norm.output(3));
      in.push_back(norm.output(4));
    }
    if (norm.attrs().Bool("relu") && norm.num_inputs() > 3) {
      in.push_back(norm.output(norm.num_outputs() - 1));
    }
    const ir::Node* node = b_.Add("batch_norm_grad", in, norm.attrs());
    // The gradient has a factor 1 / sqrt(epsilon), and sums over all elements
    // of a channel.
    const double count =
        static_cast<double>(x->type().num_elements() / x->type().shape[1]);
    const double bound = 40 * kInputBound * kInputBound * std::sqrt(count);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      AdoptSum(node->output(i), i % 3 == 0 ? bound : 10 * kInputBound * count);
    }
  }

  // --- Others ---------------------------------------------------------------
  void Mark(Value* x) {
    if (draw_.Chance(0.2)) {
      Value* y = b_.CustomGradient(x, {x}, [this](Value* dy) {
        return std::vector<Value*>{b_.Plus(dy, dy)};
      });
      pool_.Adopt(y, Bound(x));
    } else if (draw_.Chance(0.5)) {
      pool_.Adopt(b_.StopGradient(x), Bound(x));
    } else {
      pool_.Adopt(b_.Unary("is_finite", x), 1);
    }
  }

  void Random(Value*) {
    Value* key = pool_.NewInput({DType::kI64, {}, {}}, "key");
    Value* step = pool_.NewInput({DType::kI32, {}, {}}, "step");
    pool_.Adopt(
        b_.Random(key, step, {draw_.Between(1, 6), draw_.Between(1, 6)}), 1);
  }

  // Returns indices of this shape into a dimension of `extent`.
  Value* IndexInto(int64_t extent, Shape shape) {
    const DType dtype =
        draw_.Pick(std::vector<DType>{DType::kI32, DType::kI64, DType::kU8});
    Value* x = pool_.NewInput({dtype, std::move(shape), {}}, "index");
    return b_.Remainder(x, static_cast<double>(std::min<int64_t>(extent, 200)));
  }

  void Index(Value* x) {
    const Shape& shape = x->type().shape;
    if (shape.empty()) return;
    const auto rank = static_cast<int64_t>(shape.size());
    const int64_t dim = draw_.Below(rank);
    Shape taken = shape;
    taken[static_cast<size_t>(dim)] = draw_.Between(1, 7);
    if (x->type().num_elements() * 7 > kMaxElements) return;
    const double bound = Bound(x);
    if (draw_.Chance(0.4)) {
      pool_.Adopt(b_.TakeAlong(x, IndexInto(shape[dim], taken), dim), bound);
    } else if (draw_.Chance(0.5)) {
      pool_.Adopt(b_.Take(x, IndexInto(shape[dim], {taken[dim]}), dim), bound);
    } else if (rank > 1) {
      // Indexes all dimensions except the first with indices of one shape.
      std::vector<Value*> indices;
      Ints dims{1};
      for (size_t d = 1; d < shape.size(); ++d) {
        indices.push_back(IndexInto(shape[d], {3, shape[0]}));
        dims.push_back(-1);
      }
      pool_.Adopt(b_.Gather(x, indices, dims), bound);
    } else {
      std::vector<double> positions;
      for (int64_t i = 0; i < taken[dim]; ++i) {
        positions.push_back(static_cast<double>(draw_.Below(shape[dim])));
      }
      Value* constant = b_.Constant(DType::kI32, {taken[dim]}, positions);
      pool_.Adopt(b_.Take(x, constant, dim), bound);
    }
  }

  void Scatter(Value* x) {
    const DType dtype = x->type().dtype;
    const Shape& shape = x->type().shape;
    if (shape.empty() || dtype == DType::kBool) return;
    const int64_t dim = draw_.Below(static_cast<int64_t>(shape.size()));
    x = pool_.RowMajor(pool_.Tame(x, 2));
    const double sum = Bound(x) * static_cast<double>(shape[dim]);
    if (sum > MagnitudeLimit(dtype)) return;
    Shape result = shape;
    result[dim] = draw_.Between(1, 6);
    if (ir::NumElements(result) > kMaxElements) return;
    Ints dims;
    for (size_t d = 0; d < shape.size(); ++d) {
      dims.push_back(static_cast<int64_t>(d) == dim ? -1
                                                    : static_cast<int64_t>(d));
    }
    Shape index(shape.size(), 1);
    index[dim] = shape[dim];
    if (draw_.Chance(0.4)) index = shape;
    pool_.Adopt(b_.ScatterAdd(x, {IndexInto(result[dim], index)}, result, dims),
                sum);
  }

  void Scan(Value* x) {
    const DType dtype = x->type().dtype;
    if (x->type().rank() == 0 || dtype == DType::kBool) return;
    const int64_t dim = draw_.Below(static_cast<int64_t>(x->type().rank()));
    x = pool_.RowMajor(pool_.Tame(x, 2));
    const double sum = Bound(x) * static_cast<double>(x->type().shape[dim]);
    if (sum > MagnitudeLimit(dtype)) return;
    pool_.Adopt(b_.CumulativeSum(x, dim, draw_.Chance(0.3), draw_.Chance(0.3)),
                sum);
  }

  void Wave(Value* x) {
    if (!ir::IsFloat(x->type().dtype)) return;
    x = pool_.Tame(x, kInputBound);
    pool_.Adopt(draw_.Chance(0.5) ? b_.Sin(x) : b_.Cos(x), 1);
  }

  void Integers(Value* x) {
    const DType dtype = x->type().dtype;
    if (ir::IsFloat(dtype) || dtype == DType::kBool) return;
    Value* y = pool_.Partner(x);
    // In two's complement, the result has no more bits than the larger operand.
    const double bits = 2 * std::max({Bound(x), Bound(y), 1.0});
    if (bits > MagnitudeLimit(dtype)) return;
    switch (draw_.Below(5)) {
      case 0:
        pool_.Adopt(b_.FloorDivide(x, y), Bound(x) + 1);
        return;
      case 1:
        pool_.Adopt(b_.Remainder(x, y), Bound(y));
        return;
      case 2:
        pool_.Adopt(b_.BitwiseAnd(x, y), bits);
        return;
      case 3:
        pool_.Adopt(b_.BitwiseOr(x, y), bits);
        return;
      default:
        pool_.Adopt(b_.BitwiseXor(x, y), bits);
    }
  }

  // Applies an op of several operands, some of them the same value.
  void Many(Value* x) {
    std::vector<Value*> operands;
    for (int64_t i = draw_.Between(1, 5); i > 0; --i) {
      Value* operand = pool_.ValueWith(
          [](const Value* v) { return ir::IsFloat(v->type().dtype); });
      if (operand == nullptr) return;
      operands.push_back(
          draw_.Chance(0.3) && ir::IsFloat(x->type().dtype) ? x : operand);
    }
    if (draw_.Chance(0.5)) {
      pool_.Adopt(b_.Add("all_finite", operands, {})->output(), 1);
      return;
    }
    double bound = 0;
    for (Value*& operand : operands) {
      operand = pool_.Tame(operand, 100);
      bound += Bound(operand) * Bound(operand) *
               static_cast<double>(operand->type().num_elements());
    }
    AdoptSum(b_.Add("sum_of_squares", operands, {})->output(), bound);
  }

  void Flatten(Value* x) {
    x = pool_.RowMajor(x);
    Value* flat = b_.Add("flatten", {x}, {{"order", std::string()}})->output();
    pool_.Adopt(flat, Bound(x));
    pool_.Adopt(b_.Add("unflatten", {flat},
                       {{"shape", x->type().shape}, {"order", std::string()}})
                    ->output(),
                Bound(x));
  }

  // Applies a collective of one rank.
  void Collective(Value* x) {
    const double bound = Bound(x);
    x = pool_.RowMajor(x);
    switch (draw_.Below(3)) {
      case 0:
        pool_.Adopt(b_.Add("all_reduce", {x}, {})->output(), bound);
        return;
      case 1:
        pool_.Adopt(
            b_.Add("all_gather", {x}, {{"ranks", int64_t{1}}})->output(),
            bound);
        return;
      default:
        pool_.Adopt(
            b_.Add("reduce_scatter", {x}, {{"parts", int64_t{1}}})->output(),
            bound);
    }
  }

  void SpaceToDepth(Value*) {
    const int64_t channels = draw_.Between(1, 4);
    const int64_t block = draw_.Between(1, 2);
    const TensorType type{draw_.Chance(0.5) ? DType::kU8 : FloatDType(),
                          {draw_.Between(1, 2), block * draw_.Between(1, 4),
                           block * draw_.Between(1, 4), channels},
                          {}};
    const TensorType vector{DType::kF32, {block * channels}, {}};
    Value* x = pool_.NewInput(type, "pixels");
    Value* mean = Operand(vector, kInputBound, "mean");
    Value* scale = Operand(vector, kInputBound, "scale");
    pool_.Adopt(
        b_.Add("space_to_depth", {x, mean, scale},
               {{"block", block},
                {"result_dtype", std::string(ir::DTypeName(FloatDType()))},
                {"row_multiple", 4 * draw_.Between(1, 2)}})
            ->output(),
        2 * kInputBound * kInputBound);
  }

  ValuePool& pool_;
  Draw& draw_;
  ir::Builder& b_;
};

}  // namespace

void AddLibraryOp(ValuePool& pool, Value* x) { LibraryOps(pool).Add(x); }

}  // namespace fusor::test
