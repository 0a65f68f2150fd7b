#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/target/autotune_results.h"
#include "passes/patterns/fuse_conv_norm.h"

namespace fusor::codegen {

// Returns the time in ns of a problem's fastest candidate; 0 if not measured.
using ProblemTimes = std::function<double(const std::string&, ir::DType)>;

// Whether an extended convolution pays off.
struct RewriteDecision {
  bool taken = false;
  // Time saved per step by all rewrites that create the convolution, including
  // rewrites that build on it. nullopt if a part was not measured.
  std::optional<double> saved_ns;
  std::string choice{};  // ConvRewrite::choice
};

// Returns a decision for each problem that `rewrites` create. The key of a
// rewrite with a choice is the problem that the choice applies to.
//
// Rewrites that replace the same problems by the same problems are accepted or
// rejected together. They are accepted if the time of the convolutions, plus
// the time of the bytes that kernels move at `ns_per_byte`, decreases. The
// savings of a rewrite include those of rewrites that build on it. Rewrites of
// the same value (ConvRewrite::place) exclude each other: a later one counts
// only what it saves over an earlier one. Rewrites that were not measured are
// rejected.
std::map<ir::AutotuneResults::Key, RewriteDecision> DecideRewrites(
    const std::vector<passes::ConvRewrite>& rewrites, const ProblemTimes& times,
    double ns_per_byte);

}  // namespace fusor::codegen
