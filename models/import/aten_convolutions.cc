// Convolutions of one, two and three dimensions, and transposed ones.

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value*>;

// The arguments that all convolutions share, one extent per dimension.
struct Geometry {
  Ints stride, low, high, dilation, extra;
  int64_t groups = 1;
};

Ints Extents(AtenCall& call, const char* name, int64_t fallback, size_t rank,
             int64_t least) {
  Ints extents = Repeated(call.Ints(name, {fallback}), rank);
  const bool fit = std::all_of(
      extents.begin(), extents.end(),
      [&](int64_t extent) { return least <= extent && extent < (1 << 20); });
  if (extents.size() != rank || !fit) {
    call.Throw(fmt::format("{}: expected {} extents of at least {}", name, rank,
                           least));
  }
  return extents;
}

// `names_padding`: the padding is "valid" or "same". For "same" an odd element
// is added at the end.
Geometry GeometryOf(AtenCall& call, const Shape& weight, bool names_padding) {
  const size_t rank = weight.size() - 2;
  Geometry g{.stride = Extents(call, "stride", 1, rank, 1),
             .dilation = Extents(call, "dilation", 1, rank, 1),
             .groups = call.Int("groups", 1)};
  if (!names_padding) {
    g.low = g.high = Extents(call, "padding", 0, rank, 0);
    return g;
  }
  const std::string padding = call.Text("padding", "valid");
  if (padding != "valid" && padding != "same") {
    call.Throw("padding " + padding + ": expected valid or same");
  }
  for (size_t i = 0; i < rank; ++i) {
    const int64_t all =
        padding == "same" ? g.dilation[i] * (weight[2 + i] - 1) : 0;
    if (padding == "same" && g.stride[i] != 1) {
      call.Throw("padding same: expected stride 1");
    }
    g.low.push_back(all / 2);
    g.high.push_back(all - all / 2);
  }
  return g;
}

// Adds a height of 1 to a value of rank 3.
Value* Widened(AtenCall& call, Value* x) {
  const Shape& s = ShapeOf(x);
  return call.b().Reshape(x, {s[0], s[1], 1, s[2]});
}
Value* Narrowed(AtenCall& call, Value* y) {
  const Shape& s = ShapeOf(y);
  return call.b().Reshape(y, {s[0], s[1], s[3]});
}
void Widen(Geometry& g) {
  const auto front = [](Ints& extents, int64_t extent) {
    if (!extents.empty()) extents.insert(extents.begin(), extent);
  };
  front(g.stride, 1);
  front(g.low, 0);
  front(g.high, 0);
  front(g.dilation, 1);
  front(g.extra, 0);
}

ir::Conv2dOptions Options(const Geometry& g) {
  return {.stride_h = g.stride[0],
          .stride_w = g.stride[1],
          .pad_h = g.low[0],
          .pad_w = g.low[1],
          .far_pad_h = g.high[0],
          .far_pad_w = g.high[1],
          .dilation_h = g.dilation[0],
          .dilation_w = g.dilation[1],
          .groups = g.groups};
}

ir::Conv3dOptions Options3d(const Geometry& g) {
  const auto three = [](const Ints& v) {
    return std::array<int64_t, 3>{v[0], v[1], v[2]};
  };
  return {.stride = three(g.stride),
          .pad = three(g.low),
          .far_pad = three(g.high),
          .dilation = three(g.dilation),
          .groups = g.groups};
}

Value* WeightOf(AtenCall& call) {
  Value* weight = call.Tensor("weight");
  if (RankOf(weight) < 3 || RankOf(weight) > 5) {
    call.Throw("expected a weight [O,I,..] of rank 3 to 5, got " +
               ToString(weight->type()));
  }
  return weight;
}

// weight [I,O/groups,..].
Values Transposed(AtenCall& call) {
  Builder& b = call.b();
  Value* weight = WeightOf(call);
  Value* bias = call.OptionalTensor("bias");
  const int64_t rank = RankOf(weight);
  Geometry g = GeometryOf(call, ShapeOf(weight), false);
  g.extra = Extents(call, "output_padding", 0, g.stride.size(), 0);
  return WithBatch(call, call.Tensor("input"), rank, [&](Value* x) {
    if (rank == 5) {
      return Values{b.ConvTranspose3d(x, weight, bias, Options3d(g),
                                      {g.extra[0], g.extra[1], g.extra[2]})};
    }
    if (rank == 4) {
      return Values{b.ConvTranspose2d(x, weight, bias, Options(g), g.extra[0],
                                      g.extra[1])};
    }
    Widen(g);
    Value* y = b.ConvTranspose2d(Widened(call, x), Widened(call, weight), bias,
                                 Options(g), g.extra[0], g.extra[1]);
    return Values{Narrowed(call, y)};
  });
}

template <bool names_padding>
Values Convolution(AtenCall& call) {
  if (call.Bool("transposed", false)) return Transposed(call);
  Builder& b = call.b();
  Value* weight = WeightOf(call);
  Value* bias = call.OptionalTensor("bias");
  const int64_t rank = RankOf(weight);
  call.Ints("output_padding");  // of transposed convolutions only
  Geometry g = GeometryOf(call, ShapeOf(weight), names_padding);
  return WithBatch(call, call.Tensor("input"), rank, [&](Value* x) {
    if (rank == 5) return Values{b.Conv3d(x, weight, bias, Options3d(g))};
    if (rank == 4) return Values{b.Conv2d(x, weight, bias, Options(g))};
    Widen(g);
    Value* y =
        b.Conv2d(Widened(call, x), Widened(call, weight), bias, Options(g));
    return Values{Narrowed(call, y)};
  });
}

constexpr AtenOp kConvolutionsOps[] = {
    {"conv1d.default", Convolution<false>},
    {"conv1d.padding", Convolution<true>},
    {"conv2d.default", Convolution<false>},
    {"conv2d.padding", Convolution<true>},
    {"conv3d.default", Convolution<false>},
    {"conv3d.padding", Convolution<true>},
    {"conv_transpose1d.default", Transposed},
    {"conv_transpose2d.input", Transposed},
    {"conv_transpose3d.input", Transposed},
    {"convolution.default", Convolution<false>},
};

}  // namespace

std::span<const AtenOp> AtenConvolutionOps() { return kConvolutionsOps; }

}  // namespace fusor::models
