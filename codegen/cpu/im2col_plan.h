#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "codegen/cpu/matmul_plan.h"
#include "codegen/cpu/onednn_plan.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kIm2col[] = "im2col";  // the algorithm's name

// Gradients of convolutions as one matmul (Chellapilla et al., "High
// Performance Convolutional Neural Networks for Document Processing", 2006).
// The input's patches are a matrix [rows, KH * KW * C] with one row per pixel
// of the result. A weight gradient is the result's gradient, [O, rows], times
// the patches. The patches' gradient is the result's, [rows, O], times the
// weight, [O, KH * KW * C]. Activations have channels last. The workspace holds
// the patches, unless they are the input itself, which a 1x1 convolution reads.
//
// In f32, weight gradients of small feature maps: oneDNN has only GEMM
// implementations for them, whose workspace is several times the weight's size.
// In bf16 on CPUs with AMX, weight gradients of 1x1 convolutions and of short
// rows, and data gradients of 1x1 convolutions: AMX's matmuls reach several
// times the speed of oneDNN 2.6's convolutions there. fusor's own matmul
// computes them where it is faster than oneDNN's.
struct Im2colPlan {
  ir::ConvKind kind = ir::ConvKind::kGradWeight;
  int64_t channels = 0, height = 0, width = 0;
  int64_t out_channels = 0, out_height = 0, out_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t rows = 0, patch = 0;  // elements per row
  int64_t element_bytes = 0;    // of activations
  std::vector<int64_t> stride{}, pad{}, dilation{};
  std::variant<OneDnnPlan, AmxMatmulPlan> product{};

  // Returns whether the patches are the input.
  bool in_place() const;
  int64_t patch_bytes() const {
    return in_place() ? 0 : rows * patch * element_bytes;
  }
  int64_t workspace_bytes() const;
  std::string implementation() const;
};

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls.
// `amx`: the target's CPU has AMX.
std::optional<Im2colPlan> PlanIm2col(const codegen::LibraryCall& call,
                                     bool amx);

}  // namespace fusor::cpu
