#pragma once

#include <string>

#include "codegen/plan/plan.h"

namespace fusor::runtime {

// What a plan does with parts of parameters (ir/shard.h).
struct PartUpdates {
  bool any = false;  // it updates some
  // It does not gather what it has updated: it has gathered the parts before
  // (passes::PrefetchParameters), and the next run of it will.
  bool gathered_first = false;
};
PartUpdates PartUpdatesOf(const codegen::Plan& plan);

// In which all ranks' parts, put together, lie: that of the parameter. `name`
// is of state that is in parts.
ir::Layout LayoutOfParts(const codegen::Plan& plan, const std::string& name);

}  // namespace fusor::runtime
