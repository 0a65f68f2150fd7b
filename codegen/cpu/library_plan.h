#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "codegen/cpu/amx_plan.h"
#include "codegen/cpu/grouped_plan.h"
#include "codegen/cpu/host.h"
#include "codegen/cpu/im2col_plan.h"
#include "codegen/cpu/matmul_plan.h"
#include "codegen/cpu/onednn_plan.h"
#include "codegen/cpu/plane_conv_plan.h"
#include "codegen/cpu/wide_winograd_plan.h"
#include "codegen/cpu/winograd_plan.h"
#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::cpu {

// fusor's own max_pool for f32 or bf16. oneDNN's drops NaN, which the IR orders
// above any number.
struct MaxPoolPlan {
  VectorIsa isa{};
};

// fusor's own max_pool_grad for f32 or bf16 where channels are contiguous. Each
// element is written once, with the sum of all windows over it. oneDNN's clears
// the tensor and adds window after window.
struct MaxPoolGradPlan {
  VectorIsa isa{};
  int lanes = 0;  // channels at a time, 8 or 16
};

// The interpreter: any op in any dtype. Slow and allocates: only for what the
// libraries lack.
struct ReferencePlan {};

// How this machine runs a library call.
struct LibraryPlan {
  std::string implementation;
  int64_t workspace_bytes = 0;
  std::variant<ReferencePlan, OneDnnPlan, WinogradPlan, WideWinogradPlan,
               Im2colPlan, AmxConvPlan, AmxMatmulPlan, SgemmPlan, GroupedPlan,
               PlaneConvPlan, MaxPoolPlan, MaxPoolGradPlan>
      method{};
};

// Chooses fusor's own Winograd, im2col, amx, grouped, planes, max_pool or
// max_pool_grad if the call is for one of them, else oneDNN if it supports the
// op and types, else the interpreter. The interpreter also runs all library
// fusions. fusor's own matmuls run where they are fast if `amx`, the target's
// CPU has AMX, or where the call names one as its implementation. Throws kGraph
// if algorithm "winograd" does not exist for the call, or if images are too
// large for oneDNN. The plan holds for the current number of threads of the
// calling thread's OpenMP regions (ThreadCount).
LibraryPlan PlanLibraryCall(const codegen::LibraryCall& call, bool amx);

// Returns the candidates for a convolution, a pooling node, a matmul, or a copy
// that a generated kernel makes faster, best first; empty for other ops and
// unsupported types. Throws kGraph if images are too large for oneDNN.
// `target.channel_block()` is the block size of activations.
std::vector<ir::LibraryCandidate> LibraryCandidates(const ir::Node& node,
                                                    const ir::Target& target);

}  // namespace fusor::cpu
