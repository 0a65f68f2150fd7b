// Builder's composites: layers and losses made of primitives.

#include <cmath>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

int64_t LastDim(const Value* x) {
  return static_cast<int64_t>(x->type().rank()) - 1;
}

// Undoes a reduction over the last dimension.
Value* SpreadLast(Builder& b, Value* reduced, const Value* like) {
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < LastDim(like); ++i) dims.push_back(i);
  return b.Broadcast(reduced, like->type().shape, dims);
}

// x minus its row maximum, which is a constant to differentiation: it cancels.
Value* Shifted(Builder& b, Value* x) {
  Value* peak = b.StopGradient(b.ReduceMax(x, {LastDim(x)}));
  return b.Minus(x, SpreadLast(b, peak, x));
}

}  // namespace

Value* Builder::Linear(Value* x, Value* weight, Value* bias, Where at) {
  const Layer layer(*this, at);
  Value* y = Matmul(x, weight, false, true);
  return bias == nullptr ? y : Plus(y, bias);
}

Value* Builder::Sigmoid(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* one = ScalarLike(x, 1);
  return Divide(one, Plus(one, Exp(Neg(x))));
}

Value* Builder::Gelu(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* phi = Plus(Erf(Times(x, M_SQRT1_2)), 1.0);
  return Times(Times(x, 0.5), phi);
}

// Hendrycks and Gimpel, "Gaussian error linear units", section 2.
Value* Builder::GeluTanh(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* cube = Times(x, Times(x, x));
  Value* inner = Times(Plus(x, Times(cube, 0.044715)), std::sqrt(2 / M_PI));
  return Times(Times(x, 0.5), Plus(Tanh(inner), 1.0));
}

Value* Builder::Softmax(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* e = Exp(Shifted(*this, x));
  return Divide(e, SpreadLast(*this, ReduceSum(e, {LastDim(x)}), x));
}

Value* Builder::LogSoftmax(Value* x, Where at) {
  const Layer layer(*this, at);
  Value* z = Shifted(*this, x);
  Value* log_sum = Log(ReduceSum(Exp(z), {LastDim(x)}));
  return Minus(z, SpreadLast(*this, log_sum, x));
}

Value* Builder::LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                          Where at) {
  const Layer layer(*this, at);
  const std::vector<int64_t> last{LastDim(x)};
  Value* centered = Minus(x, SpreadLast(*this, ReduceMean(x, last), x));
  Value* variance = ReduceMean(Times(centered, centered), last);
  Value* scale = SpreadLast(*this, Rsqrt(Plus(variance, epsilon)), x);
  return Plus(Times(Times(centered, scale), gamma), beta);
}

BatchNormResult Builder::BatchNormTrain(Value* x, Value* gamma, Value* beta,
                                        double epsilon, Where at) {
  const Layer layer(*this, at);
  Node* node =
      Add("batch_norm_train", {x, gamma, beta}, {{"epsilon", epsilon}});
  return {node->output(0), node->output(1), node->output(2)};
}

Value* Builder::BatchNormInference(Value* x, Value* gamma, Value* beta,
                                   Value* mean, Value* variance, double epsilon,
                                   Where at) {
  const Layer layer(*this, at);
  Value* scale = Times(gamma, Rsqrt(Plus(variance, epsilon)));
  Value* shift = Minus(beta, Times(mean, scale));
  return Plus(Times(x, BroadcastAlong(scale, x->type(), 1)),
              BroadcastAlong(shift, x->type(), 1));
}

Value* Builder::Dropout(Value* x, double p, Value* key, Value* step, Where at) {
  const Layer layer(*this, at);
  FUSOR_CHECK(p >= 0 && p < 1, kGraph, "dropout {}{}: expected 0 <= p < 1", p,
              AtLocation(Here(at)));
  if (p == 0) return x;
  Value* keep = Compare("ge", Random(key, step, x->type().shape), p);
  return Select(keep, Times(x, 1 / (1 - p)), Zeros(x->type()));
}

Value* Builder::GlobalAvgPool(Value* x, Where at) {
  const Layer layer(*this, at);
  return ReduceMean(x, {2, 3});
}

namespace {

bool Divides(int64_t in, int64_t out) { return in % out == 0; }

// The [in_h*in_w, out_h*out_w] matrix of torch's adaptive windows.
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

// Equal windows are an ordinary average pool; overlapping ones a constant
// matrix over the pixels, which is small wherever this layer is used.
Value* Builder::AdaptiveAvgPool2d(Value* x, int64_t out_h, int64_t out_w,
                                  Where at) {
  const Layer layer(*this, at);
  const Shape& s = x->type().shape;
  if (s[2] == out_h && s[3] == out_w) return x;
  if (Divides(s[2], out_h) && Divides(s[3], out_w)) {
    const int64_t h = s[2] / out_h;
    const int64_t w = s[3] / out_w;
    return AvgPool2d(
        x, {.window_h = h, .window_w = w, .stride_h = h, .stride_w = w});
  }
  const int64_t in = s[2] * s[3];
  const int64_t out = out_h * out_w;
  Value* matrix = Constant(x->type().dtype, {in, out},
                           AdaptiveMatrix(s[2], s[3], out_h, out_w));
  Value* y = Matmul(Reshape(x, {s[0] * s[1], in}), matrix);
  return Reshape(y, {s[0], s[1], out_h, out_w});
}

Value* Builder::CrossEntropy(Value* logits, Value* labels,
                             const CrossEntropyOptions& options, Where at) {
  const Layer layer(*this, at);
  const double smoothing = options.label_smoothing;
  FUSOR_CHECK(smoothing >= 0 && smoothing < 1, kGraph,
              "label smoothing {}{}: expected 0 <= smoothing < 1", smoothing,
              AtLocation(Here(at)));
  const Shape& shape = logits->type().shape;
  FUSOR_CHECK(shape.size() == 2 && labels->type().shape == Shape{shape[0]} &&
                  labels->type().dtype == DType::kI32,
              kGraph, "cross entropy of {} and {}{}: expected [N,C] and i32[N]",
              ToString(logits->type()), ToString(labels->type()),
              AtLocation(Here(at)));
  Value* log_p = LogSoftmax(logits);
  Value* hit =
      Compare("eq", Iota(DType::kI32, shape, 1), Broadcast(labels, shape, {0}));
  Value* picked = Select(hit, log_p, Zeros(log_p->type()));
  Value* loss = Neg(ReduceSum(picked, {1}));
  if (smoothing == 0) return loss;
  Value* uniform = Neg(ReduceMean(log_p, {1}));
  return Plus(Times(loss, 1 - smoothing), Times(uniform, smoothing));
}

Value* Builder::TopKCorrect(Value* logits, Value* labels, int64_t k, Where at) {
  const Layer layer(*this, at);
  const Shape& shape = logits->type().shape;
  Value* index = Iota(DType::kI32, shape, 1);
  Value* label = Broadcast(labels, shape, {0});
  Value* hit = Compare("eq", index, label);
  Value* own = ReduceSum(Select(hit, logits, Zeros(logits->type())), {1});
  Value* bar = Broadcast(own, shape, {0});
  Value* ahead =
      Or(Compare("gt", logits, bar),
         And(Compare("eq", logits, bar), Compare("lt", index, label)));
  Value* rank = ReduceSum(Cast(ahead, DType::kF32), {1});
  // A label whose logit is NaN is ahead of nothing, yet not found either.
  Value* found =
      And(Compare("lt", rank, static_cast<double>(k)), Compare("eq", own, own));
  return Cast(found, DType::kF32);
}

}  // namespace fusor::ir
