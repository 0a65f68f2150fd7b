#include <array>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

enum BufferIndex { kImages, kMean, kScale, kResult };

class SpaceToDepthLowering {
 public:
  SpaceToDepthLowering(const ir::Graph& body, const ir::Target& target)
      : body_(body),
        image_(body.input(kImages)->type()),
        result_(body.outputs()[0].value->type()),
        block_(body.nodes()[0]->attrs().Int("block")),
        border_(block_ - 1),
        pixels_(block_ * image_.shape[3]),
        row_(result_.shape[1] / block_),
        builder_("space_to_depth", target) {
    FUSOR_ASSERT(image_.layout.is_row_major() && result_.layout.tiles.empty(),
                 "space_to_depth of {} to {} by a kernel", ToString(image_),
                 ToString(result_));
    builder_.AddBuffers(body);
    builder_.SizeBlock(row_);
    FUSOR_ASSERT(row_ <= builder_.kernel().lanes, "{} channels in {} lanes",
                 row_, builder_.kernel().lanes);
    for (const ir::PhysicalAxis& axis : PhysicalAxes(result_)) {
      strides_[axis.dim] = axis.stride;
    }
  }

  LoweredKernel Lower() {
    if (border_ > 0) {
      EmitZeros(3, 0);
      EmitZeros(2, 1);
    }
    EmitBlocks();
    return OneBufferPerTensor(std::move(builder_).Build(), body_);
  }

 private:
  using Parts = std::vector<AxisPart>;

  // Adds a grid dimension; with `blocked` on a GPU, also the block axis.
  Parts AddGrid(std::vector<int>& grid, const char* name, int64_t extent,
                bool blocked) {
    return builder_.AddGridAxis(
        grid, name, extent,
        LargestDivisor(extent, blocked ? builder_.MaxRows() : 1));
  }

  // Emits a phase that stores zeros from index `first` on along `dim`, at index
  // 0 of the other spatial dimension.
  void EmitZeros(size_t dim, int64_t first) {
    std::vector<int> grid;
    const Parts n = AddGrid(grid, "n", result_.shape[0], false);
    const Parts along =
        AddGrid(grid, dim == 2 ? "h" : "w", result_.shape[dim] - first, true);
    grid.push_back(builder_.AddAxis("c", result_.shape[1], AxisKind::kVector));
    Index index{first * strides_[dim], {}};
    AddTerms(index, n, strides_[0]);
    AddTerms(index, along, strides_[dim]);
    index.terms.push_back({grid.back(), strides_[1]});
    const auto phase = builder_.BeginPhase(std::move(grid));
    builder_.Store(kResult, std::move(index),
                   builder_.Constant(result_.dtype, 0));
  }

  // Emits the phase that computes the blocks. Lanes after a row's pixels keep
  // their initial zero.
  void EmitBlocks() {
    std::vector<int> grid;
    const Parts n = AddGrid(grid, "n", image_.shape[0], false);
    const Parts h = AddGrid(grid, "h", image_.shape[1] / block_, false);
    const Parts w = AddGrid(grid, "w", image_.shape[2] / block_, true);
    const int pixel = builder_.AddAxis("pixels", pixels_, AxisKind::kVector);
    const int channel = builder_.AddAxis("c", row_, AxisKind::kVector);
    const auto phase = builder_.BeginPhase(std::move(grid));
    std::vector<int> rows(static_cast<size_t>(block_));
    for (int& row : rows) {
      row = builder_.Accumulator(ScalarOp::kAdd, DType::kF32);
    }
    {
      const auto pixels = builder_.BeginLoop(pixel);
      const int mean = builder_.Load(kMean, {0, {{pixel, 1}}});
      const int scale = builder_.Load(kScale, {0, {{pixel, 1}}});
      const int64_t line = image_.shape[2] * image_.shape[3];
      for (int64_t r = 0; r < block_; ++r) {
        Index from{r * line, {}};
        AddTerms(from, n, image_.shape[1] * line);
        AddTerms(from, h, block_ * line);
        AddTerms(from, w, pixels_);
        from.terms.push_back({pixel, 1});
        const int x = Compute(ScalarOp::kIdentity,
                              {builder_.Load(kImages, std::move(from))});
        const int centered = Compute(ScalarOp::kSub, {x, mean});
        builder_.Accumulate(rows[r],
                            Compute(ScalarOp::kMul, {centered, scale}));
      }
    }
    const auto channels = builder_.BeginLoop(channel);
    for (int64_t r = 0; r < block_; ++r) {
      Index to{border_ * (strides_[2] + strides_[3]) + r * row_ * strides_[1],
               {}};
      AddTerms(to, n, strides_[0]);
      AddTerms(to, h, strides_[2]);
      AddTerms(to, w, strides_[3]);
      to.terms.push_back({channel, strides_[1]});
      builder_.Store(kResult, std::move(to), rows[r]);
    }
  }

  int Compute(ScalarOp op, std::initializer_list<int> operands) {
    return builder_.Compute(op, DType::kF32, operands);
  }

  const ir::Graph& body_;
  const ir::TensorType image_;   // [N,H,W,C]
  const ir::TensorType result_;  // [N,D,H/B+B-1,W/B+B-1]
  const int64_t block_;          // B, extent of a block in pixels
  const int64_t border_;         // rows and columns of zeros before the blocks
  const int64_t pixels_;         // channels per row of a block
  const int64_t row_;            // the same with zero padding
  std::array<int64_t, 4> strides_{};
  KernelBuilder builder_;
};

}  // namespace

LoweredKernel LowerSpaceToDepth(const ir::Graph& body,
                                const ir::Target& target) {
  return SpaceToDepthLowering(body, target).Lower();
}

}  // namespace fusor::codegen
