#include "codegen/lower/space_to_depth.h"

#include <array>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

enum Buffer { kImages, kMean, kScale, kResult };

class SpaceToDepthLowering {
 public:
  SpaceToDepthLowering(const ir::Graph& body, const ir::Target& target)
      : image_(body.input(kImages)->type()),
        result_(body.outputs()[0].value->type()),
        simt_(target.simt),
        pixels_(2 * image_.shape[3]),
        row_(result_.shape[1] / 2) {
    FUSOR_ASSERT(image_.layout.is_row_major() && result_.layout.tiles.empty(),
                 "space_to_depth of {} to {} by a kernel", ToString(image_),
                 ToString(result_));
    kernel_.name = "space_to_depth";
    for (const ir::Input& input : body.inputs()) {
      AddBuffer(*input.value, false);
    }
    AddBuffer(*body.outputs()[0].value, true);
    for (const ir::PhysicalAxis& axis : PhysicalAxes(result_)) {
      strides_[axis.dim] = axis.stride;
    }
    kernel_.lanes = static_cast<int>(target.vector_bytes / 4);
    if (simt_) {
      kernel_.width = ThreadWidth(kernel_.buffers);
      kernel_.lanes = static_cast<int>(
          LanesFor(row_, kernel_.width, kernel_.width * kBlockThreads));
    }
    FUSOR_ASSERT(row_ <= kernel_.lanes, "{} channels in {} lanes", row_,
                 kernel_.lanes);
  }

  LoweredKernel Lower() {
    AddZeros(3, 0);
    AddZeros(2, 1);
    AddBlocks();
    LoweredKernel lowered;
    for (int i = 0; i < kResult; ++i) lowered.operand_spans.push_back({i});
    lowered.result_spans.push_back({0});
    lowered.kernel = std::move(kernel_);
    return lowered;
  }

 private:
  void AddBuffer(const ir::Value& value, bool written) {
    const ir::TensorType& type = value.type();
    kernel_.buffers.push_back(
        {value.name(), type.dtype, type.num_elements(), written});
  }

  int AddAxis(const char* name, int64_t extent, bool vector = false,
              bool block = false) {
    kernel_.axes.push_back({name, extent, vector, block});
    return static_cast<int>(kernel_.axes.size()) - 1;
  }

  // The kernel axes of a grid dimension, with their factors in its index.
  using Parts = std::vector<std::pair<int, int64_t>>;

  // Adds a grid dimension; with `blocked` on a GPU, also the block axis.
  Parts AddGrid(Phase& phase, const char* name, int64_t extent, bool blocked) {
    const int64_t rows =
        blocked && simt_
            ? LargestDivisor(extent,
                             kBlockThreads * kernel_.width / kernel_.lanes)
            : 1;
    Parts parts{{AddAxis(name, extent / rows), rows}};
    if (rows > 1) parts.emplace_back(AddAxis("row", rows, false, true), 1);
    for (const auto& [axis, factor] : parts) phase.grid.push_back(axis);
    return parts;
  }

  static void AddTerms(Index& index, const Parts& parts, int64_t stride) {
    for (const auto& [axis, factor] : parts) {
      index.terms.push_back({axis, factor * stride});
    }
  }

  int NewRegister(DType dtype, bool vector) {
    kernel_.registers.push_back({dtype, vector});
    return static_cast<int>(kernel_.registers.size()) - 1;
  }

  static void Store(std::vector<Stmt>& body, Index index, int value) {
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = kResult;
    store.index = std::move(index);
    store.src[0] = value;
    body.push_back(std::move(store));
  }

  // Adds a phase that stores zeros from index `first` on along `dim`, at index
  // 0 of the other spatial dimension.
  void AddZeros(size_t dim, int64_t first) {
    Phase phase;
    const Parts n = AddGrid(phase, "n", result_.shape[0], false);
    const Parts along =
        AddGrid(phase, dim == 2 ? "h" : "w", result_.shape[dim] - first, true);
    const int channel = AddAxis("c", result_.shape[1], true);
    phase.grid.push_back(channel);
    Stmt zero{.kind = StmtKind::kConstant};
    zero.dst = NewRegister(result_.dtype, false);
    phase.body.push_back(zero);
    Index index{first * strides_[dim], {}};
    AddTerms(index, n, strides_[0]);
    AddTerms(index, along, strides_[dim]);
    index.terms.push_back({channel, strides_[1]});
    Store(phase.body, std::move(index), zero.dst);
    kernel_.phases.push_back(std::move(phase));
  }

  int Load(std::vector<Stmt>& body, int buffer, Index index) {
    Stmt load{.kind = StmtKind::kLoad};
    load.buffer = buffer;
    load.index = std::move(index);
    load.dst = NewRegister(kernel_.buffers[buffer].dtype, true);
    body.push_back(load);
    return load.dst;
  }

  int Compute(std::vector<Stmt>& body, ScalarOp op, int a, int b = -1) {
    Stmt compute{.kind = StmtKind::kCompute};
    compute.op = op;
    compute.src = {a, b, -1};
    compute.dst = NewRegister(DType::kF32, true);
    body.push_back(compute);
    return compute.dst;
  }

  // Adds the phase that computes the blocks. Lanes after a row's pixels keep
  // their initial zero.
  void AddBlocks() {
    Phase phase;
    const Parts n = AddGrid(phase, "n", image_.shape[0], false);
    const Parts h = AddGrid(phase, "h", image_.shape[1] / 2, false);
    const Parts w = AddGrid(phase, "w", image_.shape[2] / 2, true);
    std::array<int, 2> rows{};
    for (int& row : rows) {
      Stmt init{.kind = StmtKind::kInit};
      init.op = ScalarOp::kAdd;
      row = init.dst = NewRegister(DType::kF32, true);
      phase.body.push_back(init);
    }
    Stmt pixels{.kind = StmtKind::kLoop};
    pixels.axis = AddAxis("pixels", pixels_, true);
    Stmt channels{.kind = StmtKind::kLoop};
    channels.axis = AddAxis("c", row_, true);
    const int mean = Load(pixels.body, kMean, {0, {{pixels.axis, 1}}});
    const int scale = Load(pixels.body, kScale, {0, {{pixels.axis, 1}}});
    const int64_t line = image_.shape[2] * image_.shape[3];
    for (int64_t r = 0; r < 2; ++r) {
      Index from{r * line, {}};
      AddTerms(from, n, image_.shape[1] * line);
      AddTerms(from, h, 2 * line);
      AddTerms(from, w, pixels_);
      from.terms.push_back({pixels.axis, 1});
      const int x = Compute(pixels.body, ScalarOp::kIdentity,
                            Load(pixels.body, kImages, std::move(from)));
      Stmt add{.kind = StmtKind::kAccumulate};
      add.op = ScalarOp::kAdd;
      add.dst = rows[r];
      add.src[0] =
          Compute(pixels.body, ScalarOp::kMul,
                  Compute(pixels.body, ScalarOp::kSub, x, mean), scale);
      pixels.body.push_back(add);
      Index to{strides_[2] + strides_[3] + r * row_ * strides_[1], {}};
      AddTerms(to, n, strides_[0]);
      AddTerms(to, h, strides_[2]);
      AddTerms(to, w, strides_[3]);
      to.terms.push_back({channels.axis, strides_[1]});
      Store(channels.body, std::move(to), rows[r]);
    }
    phase.body.push_back(std::move(pixels));
    phase.body.push_back(std::move(channels));
    kernel_.phases.push_back(std::move(phase));
  }

  const ir::TensorType image_;   // [N,H,W,C]
  const ir::TensorType result_;  // [N,D,H/2+1,W/2+1]
  const bool simt_;
  const int64_t pixels_;  // channels per row of a block
  const int64_t row_;     // the same with zero padding
  std::array<int64_t, 4> strides_{};
  Kernel kernel_;
};

}  // namespace

LoweredKernel LowerSpaceToDepth(const ir::Graph& body,
                                const ir::Target& target) {
  return SpaceToDepthLowering(body, target).Lower();
}

}  // namespace fusor::codegen
