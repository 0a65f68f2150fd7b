#include "ir/target/node_time.h"

#include <algorithm>

#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::passes {

using ir::Node;

bool IsCostly(const Node& node) {
  return node.body() != nullptr || node.op().fusion == ir::FusionKind::kLibrary;
}

double NodeSeconds(const Node& node, const ir::Target& target) {
  if (!IsCostly(node)) return 0;
  if (node.HasTrait(ir::OpTrait::kConvolution) &&
      node.attrs().String("algorithm") == "winograd") {
    return 1e-9 * static_cast<double>(ir::WinogradNs(node, target));
  }
  const auto memory =
      static_cast<double>(ir::KernelNs(ir::NodeBytes(node), target));
  const bool narrow =
      node.num_inputs() > 0 && ir::DTypeSize(node.input(0)->type().dtype) == 2;
  const double peak = narrow ? target.peak_gflops_16 : target.peak_gflops_f32;
  const double arithmetic =
      2 * static_cast<double>(ir::NodeMacs(node)) / std::max(peak, 1.0);
  return 1e-9 * std::max(memory, arithmetic);
}

}  // namespace fusor::passes
