#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/fake_compiler.h"

namespace fusor::test {

// Lays out convolutions and pooling as the CUDA backend does: activations in
// NHWC, filters in KRSC. It has every convolution but those with a bias beside
// anything else. Pooling and copies into another order are generated kernels,
// as there.
class ChannelsLastCompiler : public FakeCompiler {
 public:
  using FakeCompiler::FakeCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
};

// The CUDA plug-in's compiler for the target, where the build has the plug-in;
// else a ChannelsLastCompiler.
std::unique_ptr<codegen::TargetCompiler> CudaPlanner(const std::string& target);

}  // namespace fusor::test
