#include "tools/fusor/output/profile_summary.h"

namespace fusor::tools {

ProfileShares MeasureShares(runtime::Session& session, int program) {
  const std::vector<double> ms = session.ProfileStep(program);
  const codegen::Plan& plan = session.plan(program);
  ProfileShares shares;
  double total = 0;
  for (size_t i = 0; i < ms.size(); ++i) {
    const codegen::Step& step = plan.steps[i];
    total += ms[i];
    if (step.kind == codegen::StepKind::kLaunch) {
      shares.kernels += ms[i];
    } else if (step.flops > 0 &&
               !plan.calls[step.index].HasTrait(ir::OpTrait::kPooling)) {
      shares.matrix += ms[i];
    } else {
      shares.other += ms[i];
    }
  }
  if (total > 0) {
    shares.matrix /= total;
    shares.kernels /= total;
    shares.other /= total;
  }
  return shares;
}

}  // namespace fusor::tools
