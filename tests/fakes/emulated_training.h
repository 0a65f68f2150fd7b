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

// Options of a training on the emulated GPU.
struct EmulatedSetup {
  passes::PassOptions passes;  // their world size is `world_size`
  int64_t batch = 4;           // images
  int64_t classes = 10;
  uint64_t seed = 1;   // for the order of work and threads
  int world_size = 1;  // ranks, which all have the same data
  // Uses a library with every convolution, including those that cuDNN lacks.
  bool whole_library = false;
};

// A session on the emulated GPU with plans for nvidia-h200. References repeat
// each step from the same state and data.
class EmulatedTraining {
 public:
  explicit EmulatedTraining(const EmulatedSetup& setup);

  // Adds a program. The first one initialises the state. `alone` is the graph
  // that a single rank would run, if it differs. Returns the program's index.
  int Add(std::unique_ptr<ir::Graph> graph, codegen::ProgramKind kind,
          std::unique_ptr<ir::Graph> alone = nullptr);

  // Runs the program. With one rank, fails the test unless
  //   - every output, including gradients and new state, is bit-identical to
  //     the optimised graph interpreted with kernels (RunWithKernels);
  //   - every fusion of that run is bit-identical to the typed interpreter on
  //     the same operands, if it has no reductions and keeps no intermediate
  //     unrounded. Otherwise its error against exact arithmetic is at most
  //     twice the typed interpreter's, plus 1e-6 of the result's norm, plus the
  //     error of f32 sums that cancel.
  // If `share` is not 0, also compares outputs with exact arithmetic. An
  // output's error must be at most 10 times the typed interpreter's plus
  // `share` of its norm, since a step amplifies errors of reordered sums. The
  // loss must be within `share` of the typed interpreter's.
  void Step(int index, double share = 0);
  // Runs the program. Returns the failures of the first two checks. REQUIRES:
  // one rank.
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
  std::vector<std::unique_ptr<ir::Graph>> references_;  // for several ranks
};

}  // namespace fusor::test
