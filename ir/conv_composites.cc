// Builder's convolutions.

#include <algorithm>

#include "ir/builder.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Ints = std::vector<int64_t>;

// The attributes that all convolution ops share. Two paddings apply to both
// sides; four are top, left, bottom and right.
Attrs ConvAttrs(const Conv2dOptions& o) {
  const int64_t far_h = o.far_pad_h < 0 ? o.pad_h : o.far_pad_h;
  const int64_t far_w = o.far_pad_w < 0 ? o.pad_w : o.far_pad_w;
  const bool alike = far_h == o.pad_h && far_w == o.pad_w;
  return {{"stride", Ints{o.stride_h, o.stride_w}},
          {"pad", alike ? Ints{o.pad_h, o.pad_w}
                        : Ints{o.pad_h, o.pad_w, far_h, far_w}},
          {"dilation", Ints{o.dilation_h, o.dilation_w}},
          {"groups", o.groups}};
}

}  // namespace

Value* Builder::Conv2d(Value* x, Value* weight, Value* bias,
                       const Conv2dOptions& options, Where at) {
  std::vector<Value*> inputs{x, weight};
  if (bias != nullptr) inputs.push_back(bias);
  return Add(OpKind::kConv2d, std::move(inputs), ConvAttrs(options), at)
      ->output();
}

Value* Builder::ConvTranspose2d(Value* x, Value* weight, Value* bias,
                                const Conv2dOptions& options, int64_t extra_h,
                                int64_t extra_w, Where at) {
  const Layer layer(*this, at);
  CheckValues("conv_transpose2d", {x, weight}, at);
  CheckRank("conv_transpose2d", x, 4, at);
  CheckRank("conv_transpose2d weight", weight, 4, at);
  const Shape& from = x->type().shape;
  const Shape& w = weight->type().shape;
  Conv2dOptions o = options;
  int64_t* far[] = {&o.far_pad_h, &o.far_pad_w};
  const int64_t near[] = {o.pad_h, o.pad_w};
  const int64_t strides[] = {o.stride_h, o.stride_w};
  const int64_t dilations[] = {o.dilation_h, o.dilation_w};
  const int64_t extra[] = {extra_h, extra_w};
  Shape shape{from[0], w[1] * o.groups, 0, 0};
  Ints behind(4, 0);
  for (size_t i = 0; i < 2; ++i) {
    if (*far[i] < 0) *far[i] = near[i];
    const int64_t stride = strides[i];
    const int64_t dilation = dilations[i];
    const int64_t pads = near[i] + *far[i];
    const int64_t reach =
        ir::NumElements({from[2 + i], std::max<int64_t>(stride, 1)}) +
        ir::NumElements({w[2 + i], std::max<int64_t>(dilation, 1)});
    FUSOR_CHECK(
        stride >= 1 && dilation >= 1 && extra[i] >= 0 &&
            extra[i] < std::max(stride, dilation) && pads >= 0 && pads < reach,
        kGraph,
        "conv_transpose2d({}, {}){}: stride {}, dilation {}, padding {} in "
        "all, extra {}: expected extra < stride or dilation and a positive "
        "result",
        ToString(x->type()), ToString(weight->type()), AtLocation(Here(at)),
        stride, dilation, pads, extra[i]);
    shape[2 + i] = (from[2 + i] - 1) * stride - pads +
                   dilation * (w[2 + i] - 1) + 1 + extra[i];
    if (extra[i] < stride) continue;
    // The op has less than a stride of extra elements. The others are some that
    // the padding cuts off, and zeros behind them.
    behind[2 + i] = std::max<int64_t>(extra[i] - *far[i], 0);
    shape[2 + i] -= behind[2 + i];
    *far[i] = std::max<int64_t>(*far[i] - extra[i], 0);
  }
  Attrs attrs = ConvAttrs(o);
  attrs.Set("input_shape", shape);
  Value* y =
      Add(OpKind::kConv2dGradInput, {x, weight}, std::move(attrs))->output();
  if (behind != Ints(4, 0)) y = Pad(y, Ints(4, 0), behind, Ints(4, 0), 0);
  return bias == nullptr ? y : Plus(y, BroadcastAlong(bias, y->type(), 1));
}

// A 2-D convolution for each depth of the result, of the channels at all depths
// that the kernel reaches: [N,C,D,H,W] -> [N OD, C KD, H, W]. Copies x KD
// times, which costs little compared with the multiplications.
Value* Builder::Conv3d(Value* x, Value* weight, Value* bias,
                       const Conv3dOptions& options, Where at) {
  const Layer layer(*this, at);
  CheckValues("conv3d", {x, weight}, at);
  CheckRank("conv3d", x, 5, at);
  CheckRank("conv3d weight", weight, 5, at);
  const Shape w = weight->type().shape;
  const auto far = [&](size_t i) {
    return options.far_pad[i] < 0 ? options.pad[i] : options.far_pad[i];
  };
  const int64_t stride = options.stride[0];
  const int64_t dilation = options.dilation[0];
  constexpr int64_t kMost = 1 << 20;
  FUSOR_CHECK(stride >= 1 && stride < kMost && dilation >= 1 &&
                  dilation < kMost && options.pad[0] >= 0 &&
                  options.pad[0] < kMost && far(0) < kMost,
              kGraph, "conv3d{}: stride {}, dilation {}, padding {} and {}",
              AtLocation(Here(at)), stride, dilation, options.pad[0], far(0));
  if (options.pad[0] > 0 || far(0) > 0) {
    x = Pad(x, {0, 0, options.pad[0], 0, 0}, {0, 0, far(0), 0, 0}, Ints(5, 0),
            0);
  }
  const Shape from = x->type().shape;
  const int64_t room = from[2] - dilation * (w[2] - 1) - 1;
  FUSOR_CHECK(room >= 0, kGraph, "conv3d({}, {}){}: a kernel deeper than x",
              ToString(x->type()), ToString(weight->type()),
              AtLocation(Here(at)));
  const int64_t depth = room / stride + 1;
  if (from[2] > 1 || w[2] > 1) {
    std::vector<Value*> taps;  // [N,C,1,OD,H,W] each
    for (int64_t k = 0; k < w[2]; ++k) {
      const int64_t first = k * dilation;
      Value* tap = Slice(x, {0, 0, first, 0, 0},
                         {from[0], from[1], first + (depth - 1) * stride + 1,
                          from[3], from[4]},
                         {1, 1, stride, 1, 1});
      taps.push_back(
          Reshape(tap, {from[0], from[1], 1, depth, from[3], from[4]}));
    }
    x = taps.size() > 1 ? Concat(taps, 2) : taps[0];
    x = Transpose(x, {0, 3, 1, 2, 4, 5});
  }
  x = Reshape(x, {from[0] * depth, from[1] * w[2], from[3], from[4]});
  weight = Reshape(weight, {w[0], w[1] * w[2], w[3], w[4]});
  Value* y = Conv2d(x, weight, bias,
                    {.stride_h = options.stride[1],
                     .stride_w = options.stride[2],
                     .pad_h = options.pad[1],
                     .pad_w = options.pad[2],
                     .far_pad_h = options.far_pad[1],
                     .far_pad_w = options.far_pad[2],
                     .dilation_h = options.dilation[1],
                     .dilation_w = options.dilation[2],
                     .groups = options.groups});
  const Shape s = y->type().shape;
  y = Reshape(y, {from[0], depth, s[1], s[2], s[3]});
  return Transpose(y, {0, 2, 1, 3, 4});
}

// A 2-D transposed convolution for each depth of x and of the kernel:
// [N,I,D,H,W] -> [N D, O KD, H, W]. Their sum over the kernel's depths, each at
// its place, is the result.
Value* Builder::ConvTranspose3d(Value* x, Value* weight, Value* bias,
                                const Conv3dOptions& options,
                                const std::array<int64_t, 3>& extra, Where at) {
  const Layer layer(*this, at);
  CheckValues("conv_transpose3d", {x, weight}, at);
  CheckRank("conv_transpose3d", x, 5, at);
  CheckRank("conv_transpose3d weight", weight, 5, at);
  const Shape from = x->type().shape;
  const Shape w = weight->type().shape;
  const int64_t stride = options.stride[0];
  const int64_t dilation = options.dilation[0];
  const int64_t pad = options.pad[0];
  const int64_t far = options.far_pad[0] < 0 ? pad : options.far_pad[0];
  constexpr int64_t kMost = 1 << 20;
  FUSOR_CHECK(stride >= 1 && stride < kMost && dilation >= 1 &&
                  dilation < kMost && pad >= 0 && pad < kMost && far < kMost &&
                  extra[0] >= 0 && extra[0] < std::max(stride, dilation),
              kGraph,
              "conv_transpose3d{}: stride {}, dilation {}, padding {} and {}, "
              "extra {}: expected extra < stride or dilation",
              AtLocation(Here(at)), stride, dilation, pad, far, extra[0]);
  const int64_t depth = NumElements({from[2] - 1, stride}) +
                        NumElements({w[2] - 1, dilation}) + 1 + extra[0];
  FUSOR_CHECK(depth > pad + far, kGraph,
              "conv_transpose3d({}, {}){}: padding {} and {} of a depth of {}",
              ToString(x->type()), ToString(weight->type()),
              AtLocation(Here(at)), pad, far, depth);
  x = Reshape(Transpose(x, {0, 2, 1, 3, 4}),
              {from[0] * from[2], from[1], from[3], from[4]});
  weight = Reshape(weight, {w[0], w[1] * w[2], w[3], w[4]});
  Value* parts = ConvTranspose2d(x, weight, nullptr,
                                 {.stride_h = options.stride[1],
                                  .stride_w = options.stride[2],
                                  .pad_h = options.pad[1],
                                  .pad_w = options.pad[2],
                                  .far_pad_h = options.far_pad[1],
                                  .far_pad_w = options.far_pad[2],
                                  .dilation_h = options.dilation[1],
                                  .dilation_w = options.dilation[2],
                                  .groups = options.groups},
                                 extra[1], extra[2]);
  const Shape s = parts->type().shape;
  const int64_t channels = s[1] / w[2];
  parts = Reshape(parts, {from[0], from[2], channels, w[2], s[2], s[3]});
  Value* y = nullptr;  // [N,depth,O,H,W]
  for (int64_t k = 0; k < w[2]; ++k) {
    Value* part = Slice(parts, {0, 0, 0, k, 0, 0},
                        {from[0], from[2], channels, k + 1, s[2], s[3]});
    part = Reshape(part, {from[0], from[2], channels, s[2], s[3]});
    const int64_t low = k * dilation;
    const int64_t high = (w[2] - 1 - k) * dilation + extra[0];
    part = Pad(part, {0, low, 0, 0, 0}, {0, high, 0, 0, 0},
               {0, stride - 1, 0, 0, 0}, 0);
    y = y == nullptr ? part : Plus(y, part);
  }
  if (pad > 0 || far > 0) {
    y = Slice(y, {0, pad, 0, 0, 0},
              {from[0], depth - far, channels, s[2], s[3]});
  }
  y = Transpose(y, {0, 2, 1, 3, 4});
  return bias == nullptr ? y : Plus(y, BroadcastAlong(bias, y->type(), 1));
}

}  // namespace fusor::ir
