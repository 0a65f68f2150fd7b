#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

// The block's extent in pixels: 1 or 2.
int64_t BlockOf(const Attrs& attrs) { return attrs.Int("block"); }

// Returns the channels per row of a block: its pixels' channels, padded.
int64_t RowChannels(int64_t channels, const Attrs& attrs) {
  const int64_t multiple = attrs.Int("row_multiple");
  return (BlockOf(attrs) * channels + multiple - 1) / multiple * multiple;
}

std::vector<TensorType> InferSpaceToDepth(Types in, const Attrs& attrs) {
  const Shape& x = in[0].shape;
  const int64_t block = BlockOf(attrs);
  FUSOR_CHECK(block == 1 || block == 2, kGraph, "block {}: expected 1 or 2",
              block);
  const int64_t multiple = attrs.Int("row_multiple");
  FUSOR_CHECK(multiple == 4 || multiple == 8, kGraph,
              "row_multiple {}: expected 4 or 8", multiple);
  FUSOR_CHECK(x.size() == 4 && x[1] % block == 0 && x[2] % block == 0, kGraph,
              "expected [N,H,W,C] of {} height and width",
              block == 2 ? "even" : "any");
  for (size_t i = 1; i < 3; ++i) {
    FUSOR_CHECK(
        in[i].shape == Shape{block * x[3]} && in[i].dtype == DType::kF32,
        kGraph, "expected f32 vectors of {} elements", block * x[3]);
  }
  const std::string& name = attrs.String("result_dtype");
  const auto dtype = ParseDType(name);
  FUSOR_CHECK(dtype.has_value() && IsFloat(*dtype), kGraph,
              "result_dtype {}: expected a floating dtype", name);
  const int64_t border = block - 1;
  return {{*dtype,
           {x[0], block * RowChannels(x[3], attrs), x[1] / block + border,
            x[2] / block + border},
           {}}};
}

void EvalSpaceToDepth(const Node& node, EvalInputs in, EvalOutputs out,
                      EvalMode) {
  const Shape& x = in[0]->type.shape;
  const Shape& y = out[0]->type.shape;
  const int64_t block = BlockOf(node.attrs());
  const int64_t border = block - 1;
  const int64_t row = y[1] / block;
  std::fill(out[0]->data.begin(), out[0]->data.end(), 0.0);
  const double* from = in[0]->data.data();
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t h = 0; h < x[1]; ++h) {
      for (int64_t w = 0; w < x[2]; ++w) {
        for (int64_t c = 0; c < x[3]; ++c, ++from) {
          const int64_t i = w % block * x[3] + c;  // in the block's row
          const int64_t channel = h % block * row + i;
          out[0]
              ->data[((n * y[1] + channel) * y[2] + h / block + border) * y[3] +
                     w / block + border] =
              (*from - in[1]->data[i]) * in[2]->data[i];
        }
      }
    }
  }
}

std::vector<OpDef> MakeImageOps() {
  OpDef op;
  op.kind = OpKind::kSpaceToDepth;
  op.name = "space_to_depth";
  op.summary =
      "x [N,H,W,C], mean, scale [B C] -> (x - mean) * scale of result_dtype: "
      "blocks of B x B pixels as channels. Each row of a block (pixels, then "
      "C) is filled with zeros to a multiple of row_multiple. block=2: behind "
      "a row and a column of zeros, [N,D,H/2+1,W/2+1]. block=1: [N,D,H,W]";
  op.min_inputs = op.max_inputs = 3;
  op.fusion = FusionKind::kLibrary;
  op.traits = OpTrait::kPure | OpTrait::kResultDType;
  op.layout = LayoutRule::kChosen;
  op.attrs = {{"block", int64_t{2}},
              {"result_dtype", std::string("f32")},
              {"row_multiple", int64_t{8}}};
  op.infer = InferSpaceToDepth;
  op.eval = EvalSpaceToDepth;
  return {op};
}

}  // namespace

std::span<const OpDef> ImageOps() {
  static const std::vector<OpDef> ops = MakeImageOps();
  return ops;
}

}  // namespace fusor::ir
