#pragma once

#include <vector>

#include "ir/target/target.h"

namespace fusor::test {

// The built-in description of a CPU, without a vendor library.
class BareTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(const ir::Node&) const override {
    return {};
  }

 private:
  ir::Target target_ = ir::FindTarget("cpu-avx512");
};

}  // namespace fusor::test
