#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "codegen/lower/pool_emitter.h"
#include "ir/op.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// Threads of a multiprocessor that hide the latency of memory.
constexpr int64_t kResidentThreads = 2048;
// Rows of a block that combine partial sums.
constexpr int64_t kCombiningRows = 32;

class DepthwiseLowering {
 public:
  DepthwiseLowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : body_(body),
        node_(*body.nodes()[0]),
        target_(target),
        attrs_(node_.attrs()),
        builder_(std::string(node_.op_name()), target, !eager) {
    builder_.AddBuffers(body);
    builder_.SizeBlock(node_.input(0)->type().shape[1]);
    const bool wide = node_.input(0)->type().dtype == DType::kF64;
    sum_dtype_ = wide ? DType::kF64 : DType::kF32;
  }

  LoweredKernel Lower() {
    node_.kind() == ir::OpKind::kConv2dGradWeight ? EmitWeights()
                                                  : EmitPixels();
    return OneBufferPerTensor(std::move(builder_).Build(), body_);
  }

 private:
  int ResultBuffer() const { return static_cast<int>(body_.inputs().size()); }

  // Returns whether the index is inside [0, extent).
  int Inside(int index, int64_t extent) {
    const int low =
        builder_.Compute(ScalarOp::kGe, DType::kBool,
                         {index, builder_.Constant(DType::kI64, 0)});
    const int high = builder_.Compute(
        ScalarOp::kLt, DType::kBool,
        {index, builder_.Constant(DType::kI64, static_cast<double>(extent))});
    return builder_.Compute(ScalarOp::kAnd, DType::kBool, {low, high});
  }

  int IndexValue(Index index) {
    return builder_.Define(
        {.kind = StmtKind::kIndexValue, .index = std::move(index)},
        DType::kI64);
  }

  // Returns the element of the image, or of the gradient, at a row and column
  // in registers; 0 outside.
  int Pixel(const ir::Value& image, Index index, std::array<int, 2> place,
            std::array<int, 2> inside) {
    const std::array<int64_t, 4> strides = StridesOf(image.type());
    const ir::Shape& shape = image.type().shape;
    const int value = builder_.Gather(
        image.index(), std::move(index),
        {{place[0], strides[2], shape[2]}, {place[1], strides[3], shape[3]}});
    const int both =
        builder_.Compute(ScalarOp::kAnd, DType::kBool, {inside[0], inside[1]});
    return builder_.Compute(ScalarOp::kSelect, sum_dtype_,
                            {both, value, builder_.Constant(sum_dtype_, 0)});
  }

  // Emits the convolution, or its data gradient with stride 1: a thread sums
  // over the filter for some channels of a pixel.
  void EmitPixels() {
    const bool forward = node_.kind() == ir::OpKind::kConv2d;
    const ir::Value& source = *node_.input(0);
    const ir::Value& filter = *node_.input(1);
    const ir::Shape& result = node_.output()->type().shape;
    const ir::Shape& window = filter.type().shape;
    const std::array<int64_t, 4> from = StridesOf(source.type());
    const std::array<int64_t, 4> weights = StridesOf(filter.type());
    const std::array<int64_t, 4> to = StridesOf(node_.output()->type());
    std::vector<int> grid;
    const int image = builder_.AddAxis("n", result[0]);
    grid.push_back(image);
    std::array<std::vector<AxisPart>, 2> pixel;
    pixel[0] = builder_.AddGridAxis(grid, "h", result[2], 1);
    pixel[1] = builder_.AddGridAxis(
        grid, "w", result[3], LargestDivisor(result[3], builder_.MaxRows()));
    const int channel = builder_.AddAxis("c", result[1], AxisKind::kVector);
    grid.push_back(channel);
    const std::array<int, 2> taps{builder_.AddAxis("r", window[2]),
                                  builder_.AddAxis("s", window[3])};
    const auto phase = builder_.BeginPhase(std::move(grid));
    const int sum = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
    {
      std::array<int, 2> place{}, inside{};
      std::vector<KernelBuilder::Scope> loops;
      for (size_t d = 0; d < 2; ++d) {
        loops.push_back(builder_.BeginLoop(taps[d]));
        const int64_t pad = attrs_.Ints("pad")[d];
        Index index{forward ? -pad : pad};
        AddTerms(index, pixel[d], forward ? attrs_.Ints("stride")[d] : 1);
        index.terms.push_back({taps[d], forward ? 1 : -1});
        place[d] = IndexValue(std::move(index));
        inside[d] = Inside(place[d], source.type().shape[2 + d]);
      }
      const int value =
          Pixel(source, {0, {{image, from[0]}, {channel, 1}}}, place, inside);
      const int weight =
          builder_.Load(filter.index(), {0,
                                         {{taps[0], weights[2]},
                                          {taps[1], weights[3]},
                                          {channel, weights[0]}}});
      builder_.Accumulate(
          sum, builder_.Compute(ScalarOp::kMul, sum_dtype_, {value, weight}));
      while (!loops.empty()) loops.pop_back();
    }
    int total = sum;
    if (node_.num_inputs() == 3) {
      const int bias =
          builder_.Load(node_.input(2)->index(), {0, {{channel, 1}}});
      total = builder_.Compute(ScalarOp::kAdd, sum_dtype_, {sum, bias});
    }
    Index at{0, {{image, to[0]}}};
    for (size_t d = 0; d < 2; ++d) AddTerms(at, pixel[d], to[2 + d]);
    at.terms.push_back({channel, 1});
    builder_.Store(ResultBuffer(), std::move(at), total);
  }

  // Emits the weight gradient: a thread sums an element of the filter over some
  // rows of an image, for some channels. A second phase adds the sums.
  void EmitWeights() {
    const ir::Value& x = *node_.input(0);
    const ir::Value& dy = *node_.input(1);
    const ir::Shape& pooled = dy.type().shape;
    const ir::Shape& window = node_.output()->type().shape;
    const int64_t channels = pooled[1];
    const std::array<int64_t, 4> image_strides = StridesOf(x.type());
    const std::array<int64_t, 4> strides = StridesOf(dy.type());
    const std::array<int64_t, 4> to = StridesOf(node_.output()->type());
    const int64_t threads =
        pooled[0] * window[2] * window[3] *
        std::max<int64_t>(channels / builder_.kernel().lanes_per_thread(), 1);
    const int64_t parts = LargestDivisor(
        pooled[2], CeilDiv(kResidentThreads * target_.threads, threads));
    const int64_t chunks = pooled[0] * parts;
    const int64_t elements = window[2] * window[3] * channels;
    const int partial = builder_.AddBuffer(
        "partial", sum_dtype_, chunks * elements, BufferUse::kScratch);
    EmitPartialSums(x, dy, parts, image_strides, strides, partial);
    std::vector<int> grid{builder_.AddAxis("r", window[2]),
                          builder_.AddAxis("s", window[3])};
    const std::array<int, 2> taps{grid[0], grid[1]};
    const int64_t rows =
        LargestDivisor(chunks, std::min(kCombiningRows, builder_.MaxRows()));
    const int chunk = builder_.AddAxis("chunk", chunks / rows);
    int row = -1;
    if (rows > 1) {
      row = builder_.AddAxis("chunk_row", rows, AxisKind::kBlock);
      grid.push_back(row);
    }
    const int channel = builder_.AddAxis("c", channels, AxisKind::kVector);
    grid.push_back(channel);
    const auto phase = builder_.BeginPhase(std::move(grid));
    const int sum = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
    {
      const auto loop = builder_.BeginLoop(chunk);
      Index at{0, {{chunk, rows * elements}}};
      if (row >= 0) at.terms.push_back({row, elements});
      at.terms.push_back({taps[0], window[3] * channels});
      at.terms.push_back({taps[1], channels});
      at.terms.push_back({channel, 1});
      builder_.Accumulate(sum, builder_.Load(partial, std::move(at)));
    }
    const int total = row >= 0 ? builder_.ReduceBlock(sum) : sum;
    builder_.Store(ResultBuffer(),
                   {0, {{taps[0], to[2]}, {taps[1], to[3]}, {channel, to[0]}}},
                   total);
  }

  void EmitPartialSums(const ir::Value& x, const ir::Value& dy, int64_t parts,
                       const std::array<int64_t, 4>& image_strides,
                       const std::array<int64_t, 4>& strides, int partial) {
    const ir::Shape& pooled = dy.type().shape;
    const ir::Shape& window = node_.output()->type().shape;
    const int64_t channels = pooled[1];
    const int64_t run = pooled[2] / parts;
    std::vector<int> grid{builder_.AddAxis("n", pooled[0]),
                          builder_.AddAxis("part", parts),
                          builder_.AddAxis("r", window[2])};
    const int image = grid[0], part = grid[1];
    std::array<std::vector<AxisPart>, 2> taps;
    taps[0] = {{grid[2], 1}};
    taps[1] = builder_.AddGridAxis(
        grid, "s", window[3], LargestDivisor(window[3], builder_.MaxRows()));
    const int channel = builder_.AddAxis("c", channels, AxisKind::kVector);
    grid.push_back(channel);
    const int i = builder_.AddAxis("h", run);
    const int j = builder_.AddAxis("w", pooled[3]);
    const std::array<std::vector<AxisPart>, 2> pixel{
        std::vector<AxisPart>{{part, run}, {i, 1}},
        std::vector<AxisPart>{{j, 1}}};
    const auto phase = builder_.BeginPhase(std::move(grid));
    std::array<int, 2> place{}, inside{};
    const auto find = [&](size_t d) {
      Index index{-attrs_.Ints("pad")[d]};
      AddTerms(index, pixel[d], attrs_.Ints("stride")[d]);
      AddTerms(index, taps[d], 1);
      place[d] = IndexValue(std::move(index));
      inside[d] = Inside(place[d], x.type().shape[2 + d]);
    };
    const int sum = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
    {
      const auto rows = builder_.BeginLoop(i);
      find(0);
      const int of_row = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
      {
        const auto columns = builder_.BeginLoop(j);
        find(1);
        const int value = Pixel(
            x, {0, {{image, image_strides[0]}, {channel, 1}}}, place, inside);
        Index at{0, {{image, strides[0]}}};
        for (size_t d = 0; d < 2; ++d) AddTerms(at, pixel[d], strides[2 + d]);
        at.terms.push_back({channel, 1});
        const int gradient = builder_.Load(dy.index(), std::move(at));
        builder_.Accumulate(of_row, builder_.Compute(ScalarOp::kMul, sum_dtype_,
                                                     {value, gradient}));
      }
      builder_.Accumulate(sum, of_row);
    }
    const int64_t elements = window[2] * window[3] * channels;
    Index at{0, {{image, parts * elements}, {part, elements}}};
    AddTerms(at, taps[0], window[3] * channels);
    AddTerms(at, taps[1], channels);
    at.terms.push_back({channel, 1});
    builder_.Store(partial, std::move(at), sum);
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  const ir::Target& target_;
  const ir::Attrs& attrs_;
  KernelBuilder builder_;
  DType sum_dtype_{};
};

}  // namespace

LoweredKernel LowerDepthwise(const ir::Graph& body, const ir::Target& target,
                             bool eager) {
  return DepthwiseLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
