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

// [B,L,heads size] -> [B,heads,L,size]
Value* SplitHeads(OnnxCall& call, Value* x, int64_t heads) {
  Builder& b = call.b();
  const Shape& s = ShapeOf(x);
  if (s.size() == 4) return x;
  if (s.size() != 3 || heads < 1 || s[2] % heads != 0) {
    call.Throw(fmt::format("{} heads of {}", heads, ToString(x->type())));
  }
  return b.Transpose(b.Reshape(x, {s[0], s[1], heads, s[2] / heads}),
                     {0, 2, 1, 3});
}
Value* MergeHeads(Builder& b, Value* x) {
  const Shape s = ShapeOf(x);
  return b.Reshape(b.Transpose(x, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
}

// Repeats each key or value head for the query heads that share it.
Value* Repeated(OnnxCall& call, Value* x, int64_t heads) {
  Builder& b = call.b();
  const Shape s = ShapeOf(x);
  if (s[1] == heads) return x;
  if (heads % s[1] != 0) {
    call.Throw(
        fmt::format("{} heads of queries for {}", heads, ToString(x->type())));
  }
  x = b.Reshape(x, {s[0], s[1], 1, s[2], s[3]});
  x = b.BroadcastTo(x, {s[0], s[1], heads / s[1], s[2], s[3]});
  return b.Reshape(x, {s[0], heads, s[2], s[3]});
}

// The keys that a query may attend to (null: all), and a bias of its scores
// (null: none). Both broadcast to [B,heads,queries,keys].
struct Mask {
  Value* allowed = nullptr;
  Value* bias = nullptr;
};

void Allow(Builder& b, Mask& mask, Value* condition) {
  mask.allowed =
      mask.allowed == nullptr ? condition : b.And(mask.allowed, condition);
}

Mask MaskOf(OnnxCall& call, int64_t queries, int64_t keys) {
  Builder& b = call.b();
  Mask mask;
  const double none = -std::numeric_limits<double>::infinity();
  if (Value* given = call.OptionalTensor(3); given != nullptr) {
    const bool flags = given->type().dtype == DType::kBool;
    const int64_t missing = keys - ShapeOf(given).back();
    if (missing > 0) {
      const std::vector<int64_t> zeros(ShapeOf(given).size(), 0);
      std::vector<int64_t> high = zeros;
      high.back() = missing;
      given = b.Pad(given, zeros, high, zeros, flags ? 0 : none);
    }
    if (!flags) mask.bias = given;
    Allow(b, mask, flags ? given : b.Compare("ne", given, none));
  }
  const bool causal = call.Flag("is_causal", false);
  const int64_t left = call.Int("left_window_size", -1);
  const int64_t right = call.Int("right_window_size", -1);
  Value* length = call.OptionalTensor(6);  // keys in use, per sample
  if (length != nullptr) {
    const int64_t batch = ShapeOf(length).at(0);
    length = b.Reshape(b.Cast(length, DType::kI64), {batch, 1, 1, 1});
    Allow(b, mask,
          b.Compare("lt", b.Iota(DType::kI64, {1, 1, 1, keys}, 3), length));
  }
  if (!causal && left < 0 && right < 0) return mask;
  // Distance from each key to its query. Queries follow earlier keys.
  const Shape square{queries, keys};
  Value* distance =
      b.Minus(b.Iota(DType::kI64, square, 0), b.Iota(DType::kI64, square, 1));
  if (call.Has(4)) {
    const int64_t past = ShapeOf(call.Tensor(4)).at(2);
    distance = b.Plus(distance, static_cast<double>(past));
  } else if (length != nullptr) {
    distance = b.Plus(distance, b.Minus(length, static_cast<double>(queries)));
  }
  if (causal) Allow(b, mask, b.Compare("ge", distance, 0.0));
  if (left >= 0) {
    Allow(b, mask, b.Compare("le", distance, static_cast<double>(left)));
  }
  if (right >= 0) {
    Allow(b, mask, b.Compare("ge", distance, static_cast<double>(-right)));
  }
  return mask;
}

// Softmax over keys; a query without allowed keys has weights of 0.
Value* Weights(Builder& b, Value* scores, Value* allowed) {
  if (allowed == nullptr) return b.Softmax(scores, -1);
  Value* any =
      b.Add("reduce", {b.BroadcastTo(allowed, ShapeOf(scores))},
            {{"kind", std::string("any")}, {"dims", std::vector<int64_t>{3}}})
          ->output();
  Shape shape = ShapeOf(scores);
  shape.back() = 1;
  any = b.Reshape(any, shape);
  Value* zero = b.ScalarLike(scores, 0);
  return b.Select(any, b.Softmax(b.Select(any, scores, zero), -1), zero);
}

// Results are y, present keys, present values, and scores of a chosen stage.
OnnxResults Attention(OnnxCall& call) {
  Builder& b = call.b();
  const bool flat = RankOf(call.Tensor(0)) == 3;
  const int64_t query_heads = call.Int("q_num_heads", 0);
  const int64_t key_heads = call.Int("kv_num_heads", 0);
  Value* q = SplitHeads(call, call.Tensor(0), query_heads);
  Value* k = SplitHeads(call, call.Tensor(1), key_heads);
  Value* v = SplitHeads(call, call.Tensor(2), key_heads);
  if (call.Has(4)) k = b.Concat({call.Tensor(4), k}, 2);
  if (call.Has(5)) v = b.Concat({call.Tensor(5), v}, 2);
  const int64_t heads = ShapeOf(q)[1];
  Value* keys = Repeated(call, k, heads);
  const DType dtype = q->type().dtype;
  const double scale =
      call.Float("scale", 1 / std::sqrt(static_cast<double>(ShapeOf(q)[3])));
  Value* scores =
      b.Matmul(b.Times(q, scale), keys, false, /*transpose_b=*/true);
  const int64_t stage = call.Int("qk_matmul_output_mode", 0);
  Value* shown = scores;
  if (const double cap = call.Float("softcap", 0); cap > 0) {
    scores = b.Times(b.Tanh(b.Divide(scores, cap)), cap);
    shown = scores;
  }
  const Mask mask = MaskOf(call, ShapeOf(q)[2], ShapeOf(k)[2]);
  if (mask.bias != nullptr) scores = b.Plus(scores, mask.bias);
  if (mask.allowed != nullptr) {
    const double none = -std::numeric_limits<double>::infinity();
    scores = b.Select(mask.allowed, scores, b.ScalarLike(scores, none));
  }
  if (stage == 2) shown = scores;
  const DType precision = call.DType("softmax_precision", dtype);
  Value* weights =
      b.Cast(Weights(b, b.Cast(scores, precision), mask.allowed), dtype);
  if (stage == 3) shown = weights;
  Value* y = b.Matmul(weights, Repeated(call, v, heads));
  return {flat ? MergeHeads(b, y) : y, k, v, shown};
}

// Rotates pairs of features by angles whose cosines and sines are given per
// position.
OnnxResults RotaryEmbedding(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const bool flat = RankOf(x) == 3;
  const int64_t heads = call.Int("num_heads", 0);
  const bool interleaved = call.Flag("interleaved", false);
  x = SplitHeads(call, x, heads);
  const Shape s = ShapeOf(x);
  int64_t rotated = call.Int("rotary_embedding_dim", 0);
  if (rotated == 0) rotated = s[3];
  if (rotated < 2 || rotated > s[3] || rotated % 2 != 0) {
    call.Throw(fmt::format("rotary_embedding_dim {} of {}", rotated,
                           ToString(x->type())));
  }
  const int64_t half = rotated / 2;
  const auto table = [&](size_t i) {
    Value* cache = call.Tensor(i);  // [B,L,half], or [positions,half]
    if (call.Has(3)) cache = b.Take(cache, call.Tensor(3), 0);
    const Shape& own = ShapeOf(cache);
    if (own.size() != 3 || own[1] != s[2] || own[2] != half) {
      call.Throw(fmt::format("operand {}: {} for {}", i,
                             ToString(cache->type()), ToString(x->type())));
    }
    return b.Reshape(cache, {own[0], 1, own[1], own[2]});
  };
  Value* cosine = table(1);
  Value* sine = table(2);
  const int64_t step = interleaved ? 2 : 1;
  Value* first = Strided(call, x, 3, 0, half, step);
  Value* second = Strided(call, x, 3, interleaved ? 1 : half, half, step);
  Value* real = b.Minus(b.Times(cosine, first), b.Times(sine, second));
  Value* imaginary = b.Plus(b.Times(sine, first), b.Times(cosine, second));
  std::vector<Value*> parts{real, imaginary};
  if (interleaved) {
    const Shape apart{s[0], s[1], s[2], half, 1};
    parts = {b.Reshape(
        b.Concat({b.Reshape(real, apart), b.Reshape(imaginary, apart)}, 4),
        {s[0], s[1], s[2], rotated})};
  }
  if (rotated < s[3]) {
    parts.push_back(Strided(call, x, 3, rotated, s[3] - rotated, 1));
  }
  Value* y = b.Concat(std::move(parts), 3);
  return {flat ? MergeHeads(b, y) : y};
}

constexpr OnnxOp kAttentionOps[] = {
    {"Attention", Attention},
    {"RotaryEmbedding", RotaryEmbedding},
};

}  // namespace

std::span<const OnnxOp> OnnxAttentionOps() { return kAttentionOps; }

}  // namespace fusor::models
