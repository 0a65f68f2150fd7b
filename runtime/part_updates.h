#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::runtime {

// How a plan updates parameter shards (ir/shard.h).
struct PartUpdates {
  bool any = false;  // the plan updates a shard
  // The plan all-gathers parameters at the start of the step instead of after
  // their update (passes::PrefetchParameters). After a step the whole
  // parameters are out of date until the next run.
  bool gathered_first = false;
};
PartUpdates PartUpdatesOf(const codegen::Plan& plan);

// Returns the layout of all ranks' shards concatenated, which is the
// parameter's. `name` must be sharded state.
ir::Layout LayoutOfParts(const codegen::Plan& plan, const std::string& name);

}  // namespace fusor::runtime
