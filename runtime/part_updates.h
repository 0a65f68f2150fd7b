#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::runtime {

// How a plan updates parameter shards (ir/shard.h).
struct PartUpdates {
  bool any = false;  // it updates some
  // It does not gather what it has updated: it has gathered the parts before
  // (passes::PrefetchParameters), and the next run of it will.
  bool gathered_first = false;
};
PartUpdates PartUpdatesOf(const codegen::Plan& plan);

// Returns the layout of all ranks' shards concatenated, which is the
// parameter's. `name` must be sharded state.
ir::Layout LayoutOfParts(const codegen::Plan& plan, const std::string& name);

}  // namespace fusor::runtime
