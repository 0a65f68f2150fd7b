#include <fmt/format.h>

#include <string>

#include "ir/builder.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;
using Ints = std::vector<int64_t>;

// Prevents overflow of the arithmetic on extents.
constexpr int64_t kMaxPad = 1 << 20;

// Checks stride, pad and dilation. Returns the result's spatial extents. Two
// paddings apply to both sides; four are top, left, bottom and right.
Ints SpatialExtents(const Shape& x, const Shape& w, const Attrs& attrs) {
  const Ints& stride = attrs.Ints("stride");
  const Ints& pad = attrs.Ints("pad");
  const Ints& dilation = attrs.Ints("dilation");
  FUSOR_CHECK(
      stride.size() == 2 && dilation.size() == 2 &&
          (pad.size() == 2 || pad.size() == 4),
      kGraph,
      "expected stride and dilation of two entries, pad of two or four");
  Ints out;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t far = pad[pad.size() - 2 + i];
    FUSOR_CHECK(stride[i] >= 1 && pad[i] >= 0 && pad[i] <= kMaxPad &&
                    far >= 0 && far <= kMaxPad && dilation[i] >= 1 &&
                    dilation[i] <= kMaxPad,
                kGraph, "stride {}, pad {}, dilation {}", stride[i],
                far == pad[i] ? std::to_string(far)
                              : fmt::format("{} and {}", pad[i], far),
                dilation[i]);
    const int64_t span = (w[2 + i] - 1) * dilation[i] + 1;
    const int64_t room = x[2 + i] + pad[i] + far - span;
    FUSOR_CHECK(room >= 0, kGraph,
                "window of {} does not fit an extent of {} padded by {}", span,
                x[2 + i], pad[i]);
    out.push_back(room / stride[i] + 1);
  }
  return out;
}

void CheckConv(const Shape& x, const Shape& w, const Attrs& attrs) {
  FUSOR_CHECK(x.size() == 4 && w.size() == 4, kGraph,
              "expected [N,C,H,W] and [O,I,KH,KW]");
  CheckType({DType::kF32, x, {}});
  CheckType({DType::kF32, w, {}});
  const int64_t groups = attrs.Int("groups");
  FUSOR_CHECK(groups >= 1 && x[1] % groups == 0 && x[1] / groups == w[1] &&
                  w[0] % groups == 0,
              kGraph, "{} channels, weight {}x{}, {} groups", x[1], w[0], w[1],
              groups);
}

Shape ConvShape(const Shape& x, const Shape& w, const Attrs& attrs) {
  CheckConv(x, w, attrs);
  const Ints hw = SpatialExtents(x, w, attrs);
  return {x[0], w[0], hw[0], hw[1]};
}

void CheckFloats(Types in) {
  for (const TensorType& type : in) {
    FUSOR_CHECK(type.dtype == in[0].dtype && IsFloat(type.dtype), kGraph,
                "expected operands of one floating dtype");
  }
}

// Returns result_dtype, which the accumulator is rounded to; default: the
// operands' dtype.
DType ResultDType(const TensorType& operand, const Attrs& attrs) {
  const std::string& name = attrs.String("result_dtype");
  if (name.empty()) return operand.dtype;
  const auto dtype = ParseDType(name);
  FUSOR_CHECK(dtype.has_value() && IsFloat(*dtype), kGraph,
              "result_dtype {}: expected a floating dtype", name);
  return *dtype;
}

std::vector<TensorType> InferConv(Types in, const Attrs& attrs) {
  CheckFloats(in.first(2));
  const Shape shape = ConvShape(in[0].shape, in[1].shape, attrs);
  if (in.size() == 3) {
    FUSOR_CHECK(in[2].shape == Shape{shape[1]} && IsFloat(in[2].dtype), kGraph,
                "expected a floating bias of {} elements", shape[1]);
  }
  return {{ResultDType(in[0], attrs), shape, {}}};
}

std::vector<TensorType> InferGradInput(Types in, const Attrs& attrs) {
  CheckFloats(in);
  const Shape& shape = attrs.Ints("input_shape");
  FUSOR_CHECK(ConvShape(shape, in[1].shape, attrs) == in[0].shape, kGraph,
              "gradient does not have the convolution's result shape");
  return {{ResultDType(in[0], attrs), shape, {}}};
}

std::vector<TensorType> InferGradWeight(Types in, const Attrs& attrs) {
  CheckFloats(in);
  const Shape& shape = attrs.Ints("weight_shape");
  FUSOR_CHECK(ConvShape(in[0].shape, shape, attrs) == in[1].shape, kGraph,
              "gradient does not have the convolution's result shape");
  return {{ResultDType(in[0], attrs), shape, {}}};
}

Attrs GeometryOf(const Node& n) {
  Attrs attrs;
  for (const char* name : {"stride", "pad", "dilation"}) {
    attrs.Set(name, n.attrs().Ints(name));
  }
  attrs.Set("groups", n.attrs().Int("groups"));
  return attrs;
}

Grads GradConv(Builder& b, const Node& n, DOutputs d) {
  Value* x = n.input(0);
  Value* w = n.input(1);
  Value* dy = b.Cast(d[0], x->type().dtype);
  Attrs attrs = GeometryOf(n);
  attrs.Set("input_shape", x->type().shape);
  Value* dx = b.Add("conv2d_grad_input", {dy, w}, attrs)->output();
  attrs = GeometryOf(n);
  attrs.Set("weight_shape", w->type().shape);
  Value* dw = b.Add("conv2d_grad_weight", {x, dy}, attrs)->output();
  Grads grads{dx, dw};
  if (n.num_inputs() == 3) {
    grads.push_back(
        b.Cast(b.ReduceSum(d[0], {0, 2, 3}), n.input(2)->type().dtype));
  }
  return grads;
}

// The three ops are bilinear, each in two of x, w and y.
Grads GradGradInput(Builder& b, const Node& n, DOutputs d) {
  const Value* dy = n.input(0);
  Value* w = n.input(1);
  Value* dx = b.Cast(d[0], dy->type().dtype);
  Attrs attrs = GeometryOf(n);
  Value* of_dy = b.Add(OpKind::kConv2d, {dx, w}, attrs)->output();
  attrs.Set("weight_shape", w->type().shape);
  Value* of_w =
      b.Add(OpKind::kConv2dGradWeight, {dx, n.input(0)}, attrs)->output();
  return {of_dy, of_w};
}
Grads GradGradWeight(Builder& b, const Node& n, DOutputs d) {
  Value* x = n.input(0);
  Value* dw = b.Cast(d[0], x->type().dtype);
  Attrs attrs = GeometryOf(n);
  Value* of_dy = b.Add(OpKind::kConv2d, {x, dw}, attrs)->output();
  attrs.Set("input_shape", x->type().shape);
  Value* of_x =
      b.Add(OpKind::kConv2dGradInput, {n.input(1), dw}, attrs)->output();
  return {of_x, of_dy};
}

// Returns the elements of the forward result times the window, per group.
int64_t Macs(const Value& result, const Shape& weight) {
  return result.type().num_elements() * weight[1] * weight[2] * weight[3];
}

int64_t ConvMacs(const Node& node) {
  return Macs(*node.output(), node.input(1)->type().shape);
}

int64_t GradInputMacs(const Node& node) {
  return Macs(*node.input(0), node.input(1)->type().shape);
}

int64_t GradWeightMacs(const Node& node) {
  return Macs(*node.input(1), node.attrs().Ints("weight_shape"));
}

std::vector<OpDef> MakeConvOps() {
  const std::vector<AttrSpec> geometry = {
      {"stride", Ints{1, 1}},         {"pad", Ints{0, 0}},
      {"dilation", Ints{1, 1}},       {"groups", int64_t{1}},
      {"algorithm", std::string("")}, {"result_dtype", std::string("")}};
  OpDef conv;
  conv.kind = OpKind::kConv2d;
  conv.name = "conv2d";
  conv.summary =
      "x [N,C,H,W], weight [O,C/groups,KH,KW], bias [O]? -> [N,O,H',W']; "
      "accumulated wide, rounded to result_dtype";
  conv.min_inputs = 2;
  conv.max_inputs = 3;
  conv.fusion = FusionKind::kLibrary;
  conv.traits = OpTrait::kPure | OpTrait::kConvolution | OpTrait::kResultDType;
  conv.precision = PrecisionRule::kAllow;
  conv.layout = LayoutRule::kChosen;
  conv.wide_vectors = true;
  conv.attrs = geometry;
  conv.infer = InferConv;
  conv.gradient = GradConv;
  conv.macs = ConvMacs;
  conv.eval = EvalConv;

  OpDef grad_input = conv;
  grad_input.kind = OpKind::kConv2dGradInput;
  grad_input.name = "conv2d_grad_input";
  grad_input.summary = "dy [N,O,H',W'], weight -> dx of input_shape";
  grad_input.max_inputs = 2;
  grad_input.attrs = geometry;
  grad_input.attrs.push_back({"input_shape", Ints{}, true});
  grad_input.infer = InferGradInput;
  grad_input.gradient = GradGradInput;
  grad_input.macs = GradInputMacs;
  grad_input.eval = EvalConvGradInput;

  OpDef grad_weight = grad_input;
  grad_weight.kind = OpKind::kConv2dGradWeight;
  grad_weight.name = "conv2d_grad_weight";
  grad_weight.summary = "x, dy [N,O,H',W'] -> gradient of weight_shape";
  grad_weight.attrs = geometry;
  grad_weight.attrs.push_back({"weight_shape", Ints{}, true});
  grad_weight.infer = InferGradWeight;
  grad_weight.gradient = GradGradWeight;
  grad_weight.macs = GradWeightMacs;
  grad_weight.eval = EvalConvGradWeight;
  return {conv, grad_input, grad_weight};
}

}  // namespace

std::span<const OpDef> ConvOps() {
  static const std::vector<OpDef> ops = MakeConvOps();
  return ops;
}

}  // namespace fusor::ir
