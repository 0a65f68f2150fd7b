// Runs Winograd convolutions in bf16.

#include <algorithm>
#include <vector>

#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"
#include "runtime/cpu/winograd_kernels.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::DType;

// args: input, weight, bias if any, result, workspace.
class ConvExecutable final : public CpuExecutable {
 public:
  ConvExecutable(const LibraryCall& call, const WinogradConvPlan& plan)
      : CpuExecutable(call), plan_(plan), shape_(plan_.shape) {
    if (plan.bias == DType::kBF16) wide_bias_.resize(shape_.out_channels);
  }

  void Run(void* const* args) const override {
    const bool has_bias = plan_.bias.has_value();
    void* const* rest = args + (has_bias ? 3 : 2);
    char* workspace = static_cast<char*>(rest[1]);
    auto* u = reinterpret_cast<uint16_t*>(workspace);
    const WinogradEpilogue epilogue{has_bias ? Bias(args[2]) : nullptr,
                                    plan_.relu};
    const int64_t pairs =
        shape_.out_blocks() * shape_.padded_in_channels() / kWinogradBlock;
    ForParts(plan_.parts, [&](int64_t part) {
      TransformWeight(shape_, static_cast<const uint16_t*>(args[1]),
                      plan_.flipped, Share(pairs, part, plan_.parts), u);
    });
    ForParts(plan_.parts, [&](int64_t part) {
      char* own =
          workspace + plan_.u_bytes + part * (plan_.v_bytes + plan_.m_bytes);
      const IndexRange all = Share(shape_.tiles(), part, plan_.parts);
      for (int64_t t = all.begin; t < all.end; t += plan_.block) {
        Convolve(static_cast<const uint16_t*>(args[0]), u, own,
                 {t, std::min(t + plan_.block, all.end)}, epilogue,
                 static_cast<uint16_t*>(rest[0]));
      }
    });
  }

 private:
  const float* Bias(const void* bias) const {
    if (wide_bias_.empty()) return static_cast<const float*>(bias);
    std::transform(static_cast<const uint16_t*>(bias),
                   static_cast<const uint16_t*>(bias) + wide_bias_.size(),
                   wide_bias_.begin(), ir::BFloat16ToFloat);
    return wide_bias_.data();
  }

  void Convolve(const uint16_t* x, const uint16_t* u, char* own,
                IndexRange tiles, const WinogradEpilogue& epilogue,
                uint16_t* y) const {
    auto* v = reinterpret_cast<uint16_t*>(own);
    auto* m = reinterpret_cast<float*>(own + plan_.v_bytes);
    const int64_t in_channels = shape_.padded_in_channels();
    TransformInput(shape_, x, tiles, v, plan_.v_stride);
    for (int64_t group = 0; group < shape_.out_groups(); ++group) {
      WinogradProduct product{.row_stride = in_channels,
                              .step_stride = 2,
                              .rows = tiles.size(),
                              .steps = in_channels / 2,
                              .vectors = shape_.group_blocks(group)};
      for (int64_t p = 0; p < kWinogradPoints; ++p) {
        product.a = v + p * plan_.v_stride;
        product.b = u;
        product.c = m + p * plan_.m_stride;
        Multiply(product);
        u += in_channels * product.vectors * kWinogradBlock;
      }
      TransformOutput(shape_, m, plan_.m_stride, tiles, group, epilogue, y);
    }
  }

  const WinogradConvPlan plan_;
  const WinogradShape& shape_;            // plan_'s
  mutable std::vector<float> wide_bias_;  // scratch of a run
};

// args: x, dy, dw, workspace.
class GradWeightExecutable final : public CpuExecutable {
 public:
  GradWeightExecutable(const LibraryCall& call,
                       const WinogradGradWeightPlan& plan)
      : CpuExecutable(call), plan_(plan), shape_(plan_.shape) {}

  void Run(void* const* args) const override {
    auto* sums = static_cast<float*>(args[3]);
    ForParts(plan_.parts, [&](int64_t part) {
      const int64_t tile_part = part / plan_.group_parts;
      const IndexRange groups = Share(
          shape_.out_groups(), part % plan_.group_parts, plan_.group_parts);
      const IndexRange all = Share(shape_.tiles(), tile_part, plan_.tile_parts);
      auto* v = reinterpret_cast<uint16_t*>(static_cast<char*>(args[3]) +
                                            plan_.tile_parts * plan_.sums * 4 +
                                            part * plan_.own_bytes);
      // Runs at least once, so that a part without tiles stores zero sums.
      int64_t t = all.begin;
      do {
        const IndexRange tiles{t, std::min(t + plan_.block, all.end)};
        Accumulate(static_cast<const uint16_t*>(args[0]),
                   static_cast<const uint16_t*>(args[1]), tiles, groups, v,
                   t > all.begin, sums + tile_part * plan_.sums);
        t += plan_.block;
      } while (t < all.end);
    });
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange pairs =
          Share(shape_.in_blocks() * shape_.out_blocks(), part, plan_.parts);
      if (plan_.result == DType::kF32) {
        TransformWeightGradient(shape_, sums, plan_.tile_parts, plan_.sums,
                                pairs, static_cast<float*>(args[2]));
      } else {
        TransformWeightGradient(shape_, sums, plan_.tile_parts, plan_.sums,
                                pairs, static_cast<uint16_t*>(args[2]));
      }
    });
  }

 private:
  void Accumulate(const uint16_t* x, const uint16_t* dy, IndexRange tiles,
                  IndexRange groups, uint16_t* v, bool adds,
                  float* sums) const {
    const int64_t block = plan_.block;
    uint16_t* w = v + kWinogradPoints * plan_.v_stride;
    constexpr int64_t kPair = 2 * kWinogradBlock;
    for (int64_t in = 0; in < shape_.in_blocks(); ++in) {
      PairInputTiles(shape_, x, in, tiles, v + in * kWinogradBlock * block,
                     plan_.v_stride, kPair);
    }
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const int64_t vectors = shape_.group_blocks(group);
      uint16_t* own = w + GroupOffset(group - groups.begin) * block;
      for (int64_t b = 0; b < vectors; ++b) {
        PairResultTiles(shape_, dy, group * kWinogradGroup + b, tiles,
                        own + b * kPair, plan_.w_stride, vectors * kPair);
      }
    }
    for (int64_t p = 0; p < kWinogradPoints; ++p) {
      for (int64_t group = groups.begin; group < groups.end; ++group) {
        WinogradProduct product{.row_stride = 2,
                                .step_stride = kPair,
                                .b = w + p * plan_.w_stride +
                                     GroupOffset(group - groups.begin) * block,
                                .rows = kWinogradBlock,
                                .steps = (tiles.size() + 1) / 2,
                                .vectors = shape_.group_blocks(group),
                                .adds = adds};
        const int64_t row = product.vectors * kWinogradBlock;
        float* c = sums +
                   GroupOffset(group) * kWinogradPoints * shape_.in_channels +
                   p * shape_.in_channels * row;
        for (int64_t in = 0; in < shape_.in_blocks(); ++in) {
          product.a = v + p * plan_.v_stride + in * kWinogradBlock * block;
          product.c = c + in * kWinogradBlock * row;
          Multiply(product);
        }
      }
    }
  }

  // Returns the number of result channels before the group.
  static int64_t GroupOffset(int64_t group) {
    return group * kWinogradGroup * kWinogradBlock;
  }

  const WinogradGradWeightPlan plan_;
  const WinogradShape& shape_;  // plan_'s
};

std::unique_ptr<CpuExecutable> Make(const LibraryCall& call,
                                    const WinogradConvPlan& plan) {
  return std::make_unique<ConvExecutable>(call, plan);
}

std::unique_ptr<CpuExecutable> Make(const LibraryCall& call,
                                    const WinogradGradWeightPlan& plan) {
  return std::make_unique<GradWeightExecutable>(call, plan);
}

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const WinogradPlan& plan) {
  return std::visit([&](const auto& p) { return Make(call, p); }, plan);
}

}  // namespace fusor::cpu
