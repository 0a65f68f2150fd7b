#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"
#include "passes/passes.h"
#include "runtime/session.h"
#include "tests/fakes/emulated_device.h"

namespace fusor::test {

// How a training on the emulated GPU is set up.
struct EmulatedSetup {
  passes::PassOptions passes;  // their world size is `world_size`
  int64_t batch = 4;           // images of 32 x 32 pixels, in ten classes
  uint64_t seed = 1;           // of the order of work and threads
  int world_size = 1;          // ranks, which all have the same data
  // With a library that has every convolution, whatever cuDNN lacks.
  bool whole_library = false;
};

// A session on the emulated GPU, with the plans of nvidia-h200, each step of
// which references repeat from the same state and data.
class EmulatedTraining {
 public:
  explicit EmulatedTraining(const EmulatedSetup& setup);

  // The first program initialises the state. `alone`: what one rank of several
  // does by itself, where that is another graph. Returns the program's index.
  int Add(std::unique_ptr<ir::Graph> graph, codegen::ProgramKind kind,
          std::unique_ptr<ir::Graph> alone = nullptr);

  // Runs the program. Fails the test, where it is of one rank alone, unless
  //   - every output, gradients and new state among them, has the bits of the
  //     optimised graph interpreted with sums in the order of kernels
  //     (RunWithKernels);
  //   - every fusion then has the bits of the typed interpreter on the same
  //     operands, where it adds nothing up and keeps nothing unrounded; else it
  //     is off what it would be without rounding by at most twice as much as
  //     the typed interpreter, 1e-6 of it, and what may cancel in f32 sums.
  // Then, where `share` is not 0, if an output is further from what it would be
  // without rounding than the typed interpreter's is: `share` of its length,
  // and ten times as far, for the step carries on what sums in another order
  // have for errors. The loss is compared itself.
  void Step(int index, double share = 0);
  // The first two of these, said instead. REQUIRES: one rank.
  std::vector<std::string> StepAndCompare(int index);

  runtime::Session& session() { return session_; }
  runtime::Program& program(int index) const {
    return *session_.programs()[index];
  }
  EmulatedBackend& backend() { return backend_; }

 private:
  std::vector<ir::Tensor> Inputs(const ir::Graph& graph);
  void RunOnDevice(int index);
  std::vector<std::string> CompareWithKernels(
      int index, const std::vector<ir::Tensor>& inputs);
  void ExpectNear(int index, const std::vector<ir::Tensor>& inputs,
                  double share);

  const EmulatedSetup setup_;
  EmulatedBackend backend_;
  std::unique_ptr<runtime::Communicator> communicator_;
  runtime::Session session_;
  std::map<std::string, ir::Tensor> data_;
  std::vector<std::unique_ptr<ir::Graph>> references_;  // with several ranks
};

}  // namespace fusor::test
