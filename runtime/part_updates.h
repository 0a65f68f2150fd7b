#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::runtime {

// How a plan updates parameter shards (ir/shard.h).
struct PartUpdates {
  bool any = false;  // it updates shards
  // It all-gathers shards at its start, not after the update
  // (passes::PrefetchParameters), so parameters are one update old after a run.
  bool gathered_first = false;
};
PartUpdates PartUpdatesOf(const codegen::Plan& plan);

// Returns the layout of all ranks' shards concatenated, which is the
// parameter's. `name` must be sharded state.
ir::Layout LayoutOfParts(const codegen::Plan& plan, const std::string& name);

}  // namespace fusor::runtime
