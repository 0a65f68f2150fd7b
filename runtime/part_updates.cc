#include "runtime/part_updates.h"

#include <set>

#include "ir/shard.h"

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

}  // namespace fusor::runtime
