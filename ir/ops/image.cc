#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

// Channels per row of a block: 2 C, padded to a multiple of this.
constexpr int64_t kRowMultiple = 8;

int64_t RowChannels(int64_t channels) {
  return (2 * channels + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

std::vector<TensorType> InferSpaceToDepth(Types in, const Attrs& attrs) {
  const Shape& x = in[0].shape;
  FUSOR_CHECK(x.size() == 4 && x[1] % 2 == 0 && x[2] % 2 == 0, kGraph,
              "expected [N,H,W,C] of even height and width");
  for (size_t i = 1; i < 3; ++i) {
    FUSOR_CHECK(in[i].shape == Shape{2 * x[3]} && in[i].dtype == DType::kF32,
                kGraph, "expected f32 vectors of {} elements", 2 * x[3]);
  }
  const std::string& name = attrs.String("result_dtype");
  const auto dtype = ParseDType(name);
  FUSOR_CHECK(dtype.has_value() && IsFloat(*dtype), kGraph,
              "result_dtype {}: expected a floating dtype", name);
  return {
      {*dtype, {x[0], 2 * RowChannels(x[3]), x[1] / 2 + 1, x[2] / 2 + 1}, {}}};
}

void EvalSpaceToDepth(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  const Shape& x = in[0]->type.shape;
  const Shape& y = out[0]->type.shape;
  const int64_t row = y[1] / 2;
  std::fill(out[0]->data.begin(), out[0]->data.end(), 0.0);
  const double* from = in[0]->data.data();
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t h = 0; h < x[1]; ++h) {
      for (int64_t w = 0; w < x[2]; ++w) {
        for (int64_t c = 0; c < x[3]; ++c, ++from) {
          const int64_t i = w % 2 * x[3] + c;  // in the block's row
          const int64_t channel = h % 2 * row + i;
          out[0]->data[((n * y[1] + channel) * y[2] + h / 2 + 1) * y[3] +
                       w / 2 + 1] = (*from - in[1]->data[i]) * in[2]->data[i];
        }
      }
    }
  }
}

std::vector<OpDef> MakeOps() {
  OpDef op;
  op.kind = OpKind::kSpaceToDepth;
  op.name = "space_to_depth";
  op.summary =
      "x [N,H,W,C], mean, scale [2 C] -> (x - mean) * scale, [N,D,H/2+1,W/2+1] "
      "of result_dtype: blocks of 2x2 pixels as channels, each row of a block "
      "(pixels, then C) filled with zeros to D/2, a multiple of 8; behind a "
      "row "
      "and a column of zeros";
  op.min_inputs = op.max_inputs = 3;
  op.fusion = FusionKind::kLibrary;
  op.traits = OpTrait::kPure | OpTrait::kResultDType;
  op.layout = LayoutRule::kChosen;
  op.attrs = {{"result_dtype", std::string("f32")}};
  op.infer = InferSpaceToDepth;
  op.eval = EvalSpaceToDepth;
  return {op};
}

}  // namespace

std::span<const OpDef> ImageOps() {
  static const std::vector<OpDef> ops = MakeOps();
  return ops;
}

}  // namespace fusor::ir
