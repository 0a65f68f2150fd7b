// Runs fusor's own weight gradients of depthwise convolutions.

#include <algorithm>
#include <cstring>

#include "runtime/cpu/activation.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/parts.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::DType;

// A row of the result's gradient and a row of the input, [pixels, lanes].
struct RowPair {
  const float* dy;
  const float* x;
  int64_t pixels;    // of dy
  int64_t x_step;    // elements of x from one pixel of dy to the next
  int64_t tap_step;  // elements of x from one column of the filter to the next
};

// Adds the products of `kTaps` columns of the filter to `sums` [taps, lanes].
// Several pixels have their own sums, or each addition would wait for the one
// before.
template <int kLanes, int kTaps>
FUSOR_INLINE void AddTaps(const RowPair& row, float* sums) {
  constexpr int kPixels = kTaps >= 7 ? 1 : kTaps >= 5 ? 2 : 4;
  using Floats = typename Lanes<kLanes>::Floats;
  Floats sum[kPixels][kTaps] = {};
  const float* dy = row.dy;
  const float* x = row.x;
  int64_t left = row.pixels;
  for (; left >= kPixels; left -= kPixels) {
    for (int p = 0; p < kPixels; ++p) {
      Floats g;
      std::memcpy(&g, dy, sizeof(g));
      for (int k = 0; k < kTaps; ++k) {
        Floats v;
        std::memcpy(&v, x + k * row.tap_step, sizeof(v));
        sum[p][k] += g * v;
      }
      dy += kLanes;
      x += row.x_step;
    }
  }
  for (; left > 0; --left) {
    Floats g;
    std::memcpy(&g, dy, sizeof(g));
    for (int k = 0; k < kTaps; ++k) {
      Floats v;
      std::memcpy(&v, x + k * row.tap_step, sizeof(v));
      sum[0][k] += g * v;
    }
    dy += kLanes;
    x += row.x_step;
  }
  for (int k = 0; k < kTaps; ++k) {
    Floats total;
    std::memcpy(&total, sums + k * kLanes, sizeof(total));
    for (int p = 0; p < kPixels; ++p) total += sum[p][k];
    std::memcpy(sums + k * kLanes, &total, sizeof(total));
  }
}

template <int kLanes>
FUSOR_INLINE void AddRow(RowPair row, int64_t taps, float* sums) {
  while (taps > 0) {
    int64_t done = 1;
    if (taps >= 7) {
      AddTaps<kLanes, 7>(row, sums);
      done = 7;
    } else if (taps >= 5) {
      AddTaps<kLanes, 5>(row, sums);
      done = 5;
    } else if (taps >= 3) {
      AddTaps<kLanes, 3>(row, sums);
      done = 3;
    } else {
      AddTaps<kLanes, 1>(row, sums);
    }
    taps -= done;
    row.x += done * row.tap_step;
    sums += done * kLanes;
  }
}

template <int kLanes>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void AddRowAvx512(
    const RowPair& row, int64_t taps, float* sums) {
  AddRow<kLanes>(row, taps, sums);
}
template <int kLanes>
__attribute__((target("avx2,fma"))) void AddRowAvx2(const RowPair& row,
                                                    int64_t taps, float* sums) {
  AddRow<kLanes>(row, taps, sums);
}
template <int kLanes>
void AddRowPlain(const RowPair& row, int64_t taps, float* sums) {
  AddRow<kLanes>(row, taps, sums);
}

using RowFunction = void (*)(const RowPair& row, int64_t taps, float* sums);

template <int kLanes>
RowFunction RowFunctionOf(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kAvx512:
      return AddRowAvx512<kLanes>;
    case VectorIsa::kAvx2:
      return AddRowAvx2<kLanes>;
    case VectorIsa::kPlain:
      break;
  }
  return AddRowPlain<kLanes>;
}

float Widen(float x) { return x; }
float Widen(uint16_t x) { return ir::BFloat16ToFloat(x); }

// Copies `pixels` of `channels` channels, `step` elements apart, to
// [pixels, lanes] in f32. Other lanes become 0.
template <typename Element>
void Gather(const Element* from, int64_t step, int64_t channels, int64_t pixels,
            int64_t lanes, float* to) {
  if (step == lanes && channels == lanes) {  // one contiguous range
    channels = lanes = step = pixels * lanes;
    pixels = 1;
  }
  for (int64_t p = 0; p < pixels; ++p, from += step, to += lanes) {
    for (int64_t c = 0; c < channels; ++c) to[c] = Widen(from[c]);
    for (int64_t c = channels; c < lanes; ++c) to[c] = 0;
  }
}

// args: input, result's gradient, weight's gradient, workspace.
template <typename Element>
class DepthwiseExecutable final : public CpuExecutable {
 public:
  DepthwiseExecutable(const LibraryCall& call, const DepthwisePlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        x_(ActivationOf(call.operands[0])),
        y_(ActivationOf(call.operands[1])),
        channels_(call.operands[0].shape[1]),
        weight_block_(call.results[0].layout.tiles.empty() ? 1 : plan.lanes),
        weight_dtype_(call.results[0].dtype),
        function_(plan.lanes == 16 ? RowFunctionOf<16>(plan.isa)
                                   : RowFunctionOf<8>(plan.isa)) {}

  void Run(void* const* args) const override {
    const auto* x = static_cast<const Element*>(args[0]);
    const auto* dy = static_cast<const Element*>(args[1]);
    auto* sums = static_cast<float*>(args[3]);
    const int64_t tasks = plan_.ranges * plan_.blocks;
    ForParts(plan_.parts, [&](int64_t part) {
      float* ring = sums + plan_.sums() + part * plan_.part();
      for (int64_t task = part; task < tasks; task += plan_.parts) {
        AddRange(task % plan_.blocks, task / plan_.blocks, x, dy,
                 sums + task * plan_.block_sums(), ring);
      }
    });
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange own = Share(plan_.blocks, part, plan_.parts);
      for (int64_t block = own.begin; block < own.end; ++block) {
        Store(block, sums, args[2]);
      }
    });
  }

 private:
  // Channels of a block that the tensor has.
  int64_t Channels(int64_t block) const {
    return std::min(plan_.lanes, channels_ - block * plan_.lanes);
  }
  // The offset of a block's first channel.
  int64_t Offset(const Activation& a, int64_t block) const {
    return a.groups == 1 ? block * plan_.lanes : block * a.group_step;
  }

  // Sums up the products of one block in one range of images.
  void AddRange(int64_t block, int64_t range, const Element* x,
                const Element* dy, float* sums, float* ring) const {
    std::fill_n(sums, plan_.block_sums(), 0.0F);
    std::fill_n(ring, plan_.ring(), 0.0F);  // the padding stays
    const IndexRange images = Share(x_.images, range, plan_.ranges);
    for (int64_t image = images.begin; image < images.end; ++image) {
      AddImage(block, x + image * x_.image_step + Offset(x_, block),
               dy + image * y_.image_step + Offset(y_, block), sums, ring);
    }
  }

  void AddImage(int64_t block, const Element* x, const Element* dy, float* sums,
                float* ring) const {
    const int64_t lanes = plan_.lanes;
    float* const gradients = ring + plan_.ring();
    const int64_t reach = plan_.ring_rows - 1;
    int64_t next = 0;  // row of the input to copy
    for (int64_t i = 0; i < y_.height; ++i) {
      const int64_t top = i * plan_.stride[0] - plan_.pad[0];
      const int64_t end = std::min(top + reach + 1, x_.height);
      for (next = std::max(next, std::max<int64_t>(top, 0)); next < end;
           ++next) {
        Gather(x + next * x_.row_step, x_.column_step, Channels(block),
               x_.width, lanes, RingRow(ring, next) + plan_.pad[1] * lanes);
      }
      Gather(dy + i * y_.row_step, y_.column_step, Channels(block), y_.width,
             lanes, gradients);
      for (int64_t k = 0; k < plan_.kernel_height; ++k) {
        const int64_t row = top + k * plan_.dilation[0];
        if (row < 0 || row >= x_.height) continue;
        function_({.dy = gradients,
                   .x = RingRow(ring, row),
                   .pixels = y_.width,
                   .x_step = plan_.stride[1] * lanes,
                   .tap_step = plan_.dilation[1] * lanes},
                  plan_.kernel_width, sums + k * plan_.kernel_width * lanes);
      }
    }
  }

  float* RingRow(float* ring, int64_t row) const {
    return ring + row % plan_.ring_rows * plan_.row_pixels * plan_.lanes;
  }

  // Adds up the ranges of images and stores the block's gradient.
  void Store(int64_t block, const float* sums, void* weight) const {
    const int64_t taps = plan_.kernel_height * plan_.kernel_width;
    for (int64_t tap = 0; tap < taps; ++tap) {
      for (int64_t c = 0; c < Channels(block); ++c) {
        float sum = 0;
        for (int64_t range = 0; range < plan_.ranges; ++range) {
          const int64_t task = range * plan_.blocks + block;
          sum += sums[task * plan_.block_sums() + tap * plan_.lanes + c];
        }
        const int64_t channel = block * plan_.lanes + c;
        const int64_t at =
            (channel / weight_block_ * taps + tap) * weight_block_ +
            channel % weight_block_;
        if (weight_dtype_ == DType::kF32) {
          static_cast<float*>(weight)[at] = sum;
        } else {
          static_cast<uint16_t*>(weight)[at] = ir::FloatToBFloat16(sum);
        }
      }
    }
  }

  const DepthwisePlan plan_;
  const Activation x_, y_;
  const int64_t channels_;
  const int64_t weight_block_;  // contiguous channels of the weight
  const DType weight_dtype_;
  const RowFunction function_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const DepthwisePlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<DepthwiseExecutable<float>>(call, plan);
  }
  return std::make_unique<DepthwiseExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
