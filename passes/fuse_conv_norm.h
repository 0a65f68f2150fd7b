#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// One rewrite of FuseConvNorm, or of SpaceToDepth, for those who measure
// whether it is worth it. It takes those by which `before` came about, if it is
// no convolution of the step as it was; of several with one place one alone can
// be made.
struct ConvRewrite {
  struct Part {
    std::string before, after;  // ir::ConvolutionProblem of a convolution
  };
  std::string place;  // name of the value that is computed otherwise
  std::vector<Part> parts;
  ir::DType dtype = ir::DType::kF32;  // of the convolutions' operands
  int64_t saved_bytes = 0;            // that kernels beside them move no longer
  // What choices say of the first `before` to have it made; where that is empty
  // they name a candidate for each `after`.
  std::string choice{};
};

// FuseConvNorm at `level`, whatever the options say: makes all that the target
// has, and returns it in the order in which it was made. Refuses nothing.
std::vector<ConvRewrite> SurveyConvNorm(ir::Graph& graph, PassContext& context,
                                        NormLowering level);

}  // namespace fusor::passes
