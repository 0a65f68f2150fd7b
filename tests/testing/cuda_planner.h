#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/target/autotune_results.h"
#include "tests/fakes/fake_compiler.h"

namespace fusor::test {

// Selects the layouts of the CUDA backend for convolutions and pooling: NHWC
// for activations, KRSC for filters. Offers every convolution except those that
// fuse a bias with another op. As in the CUDA backend, pooling and layout
// copies are generated kernels.
class ChannelsLastCompiler : public FakeCompiler {
 public:
  using FakeCompiler::FakeCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override;
};

// Returns the CUDA plug-in's compiler for the target if the build has the
// plug-in, otherwise a ChannelsLastCompiler.
std::unique_ptr<codegen::TargetCompiler> CudaPlanner(const std::string& target);

// Returns autotune results for a training step that choose the generated kernel
// of every convolution, and of every library fusion of one, that has one.
ir::AutotuneResults ChooseGenerated(const ir::Graph& forward,
                                    const codegen::TargetCompiler& compiler,
                                    const codegen::CompileOptions& options);

}  // namespace fusor::test
