#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::test {

// A convolution library for cpu-avx512 in the layouts that a test offers. All
// candidates are equally fast.
class LayoutLibrary final : public ir::TargetQueries {
 public:
  struct Candidate {
    std::string name;
    std::string layout;  // of input and result; empty: row-major
  };
  // Returns the candidates in the library's order.
  using Offer = std::function<std::vector<Candidate>(const ir::Node&)>;

  explicit LayoutLibrary(Offer offer) : offer_(std::move(offer)) {}

  const ir::Target& target() const override { return target_; }

  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (!ir::ConvolutionOf(node).has_value()) return {};
    std::vector<ir::LibraryCandidate> candidates;
    for (const Candidate& c : offer_(node)) {
      const ir::Layout layout =
          c.layout.empty() ? ir::Layout{} : ir::ParseLayout(c.layout);
      candidates.push_back({.name = c.name,
                            .algorithm = "direct",
                            .operands = {layout, {}},
                            .results = {layout},
                            .modelled_ns = 100});
    }
    return candidates;
  }

 private:
  ir::Target target_ = ir::FindTarget("cpu-avx512");
  Offer offer_;
};

}  // namespace fusor::test
