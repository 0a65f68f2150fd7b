#include "runtime/part_updates.h"

#include <algorithm>
#include <set>

#include "ir/shard.h"
#include "ir/support/error.h"

namespace fusor::runtime {

PartUpdates PartUpdatesOf(const codegen::Plan& plan) {
  std::set<int> gathered;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kCollective) continue;
    gathered.insert(step.args.begin(), step.args.end());
  }
  PartUpdates updates;
  for (const codegen::PlanOutput& output : plan.outputs) {
    if (output.alias < 0) continue;
    const codegen::PlanInput& state = plan.inputs[output.alias];
    if (!ir::IsShard(state.attrs) ||
        state.name != ir::ShardName(state.attrs.String(ir::kShardOf))) {
      continue;
    }
    updates.any = true;
    updates.gathered_first |= !gathered.contains(output.buffer);
  }
  return updates;
}

ir::Layout LayoutOfParts(const codegen::Plan& plan, const std::string& name) {
  const auto input = [&](const std::string& wanted) {
    const auto it =
        std::find_if(plan.inputs.begin(), plan.inputs.end(),
                     [&](const auto& i) { return i.name == wanted; });
    FUSOR_ASSERT(it != plan.inputs.end(), "plan {}: input {}", plan.name,
                 wanted);
    return *it;
  };
  const codegen::PlanInput parameter =
      input(input(name).attrs.String(ir::kShardOf));
  return plan.buffers[parameter.buffer].type.layout;
}

}  // namespace fusor::runtime
