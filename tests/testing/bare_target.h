#pragma once

#include <string>
#include <vector>

#include "ir/target/target.h"

namespace fusor::test {

// Describes a built-in target without a vendor library.
class BareTarget final : public ir::TargetQueries {
 public:
  explicit BareTarget(const std::string& name = "cpu-avx512")
      : target_(ir::FindTarget(name)) {}

  const ir::Target& target() const override { return target_; }
  std::vector<ir::LibraryCandidate> Candidates(const ir::Node&) const override {
    return {};
  }

 private:
  ir::Target target_;
};

}  // namespace fusor::test
