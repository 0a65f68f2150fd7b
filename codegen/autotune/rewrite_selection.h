#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/target/autotune_results.h"
#include "passes/patterns/fuse_conv_norm.h"

namespace fusor::codegen {

// Nanoseconds of a problem's fastest candidate; 0 where none was measured.
using ProblemTimes = std::function<double(const std::string&, ir::DType)>;

// Whether a convolution that does more is worth it.
struct RewriteDecision {
  bool taken = false;
  // By all rewrites that make it, in a step, those that build on it included;
  // nullopt where something of it was not measured.
  std::optional<double> saved_ns;
  std::string choice{};  // ConvRewrite::choice
};

// For each problem that `rewrites` make; of those with a choice, for the
// problem of which choices say it. Rewrites that make the same problems are
// taken or declined together: where the convolutions after take less than those
// before and what kernels move the more, at `ns_per_byte`. One that others
// build on counts what those save; where one of several has to go at a place,
// the later counts what it saves over the earlier. What was not measured is
// declined.
std::map<ir::AutotuneResults::Key, RewriteDecision> DecideRewrites(
    const std::vector<passes::ConvRewrite>& rewrites, const ProblemTimes& times,
    double ns_per_byte);

}  // namespace fusor::codegen
