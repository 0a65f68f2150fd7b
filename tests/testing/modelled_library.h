#pragma once

#include <set>
#include <string>
#include <vector>

#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "ir/target/target.h"

namespace fusor::test {

// A convolution library with direct algorithms, and Winograd for the given
// dtypes. Speeds are those that the target's description predicts. Layouts are
// row-major.
class ModelledLibrary final : public ir::TargetQueries {
 public:
  explicit ModelledLibrary(ir::Target target,
                           std::set<ir::DType> winograd = {ir::DType::kF32})
      : target_(std::move(target)), winograd_(std::move(winograd)) {}
  const ir::Target& target() const override { return target_; }

  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const auto conv = ir::ConvolutionOf(node);
    if (!ir::IsPlainConvolution(node)) return {};
    std::vector<ir::LibraryCandidate> candidates;
    const auto add = [&](const std::string& name, int64_t ns) {
      ir::LibraryCandidate c;
      c.name = c.algorithm = name;
      c.operands.resize(node.num_inputs());
      c.results.resize(node.num_outputs());
      c.modelled_ns = ns;
      candidates.push_back(std::move(c));
    };
    if (winograd_.contains(conv->x.dtype) && ir::HasWinogradGeometry(node) &&
        conv->weight.shape[1] % 16 == 0 && target_.winograd_efficiency > 0) {
      add("winograd", ir::WinogradNs(node, target_));
    }
    add("direct", ir::DirectNs(node, target_));
    return candidates;
  }

 private:
  ir::Target target_;
  std::set<ir::DType> winograd_;
};

}  // namespace fusor::test
