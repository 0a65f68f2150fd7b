#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kIm2col[] = "im2col";  // the algorithm's name
inline constexpr char kIm2colImplementation[] = "im2col:gemm";

// f32 weight gradients as one matmul (Chellapilla et al., "High Performance
// Convolutional Neural Networks for Document Processing", 2006): the result's
// gradient, [O, rows], times the input's patches, [rows, KH * KW * C], with one
// row per pixel of the result. The workspace holds the patches. It is small for
// small feature maps, for which oneDNN has only GEMM implementations whose
// workspace is several times the weight's size.
struct Im2colPlan {
  int64_t channels = 0, height = 0, width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t rows = 0, patch = 0;  // elements per row
  std::vector<int64_t> stride{}, pad{}, dilation{};

  int64_t workspace_bytes() const {
    return rows * patch * static_cast<int64_t>(sizeof(float));
  }
};

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls.
std::optional<Im2colPlan> PlanIm2col(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
