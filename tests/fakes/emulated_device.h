#pragma once

// A GPU without a GPU: a backend that runs plans made for a target of the CUDA
// backend. Kernels are the text that PrintCuda prints, compiled as C++ and
// emulated (emulated_gpu.h, EmulatedChecks::kBounds); library calls are the
// interpreter's; everything lies at its planned place. Streams are queues:
// their work runs when it must, or earlier, in an order drawn from a seed among
// those that streams and events allow.

#include <functional>
#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"

namespace fusor::test {

struct EmulatedOptions {
  // What plans are made with; machine code is the device's own. Required.
  std::function<std::unique_ptr<codegen::TargetCompiler>()> compiler;
  uint64_t seed = 1;  // of the order of work and threads
  int64_t memory_bytes = int64_t{1} << 40;
  int world_size = 1;  // of its communicators
};

class EmulatedMachine;

class EmulatedBackend : public runtime::Backend {
 public:
  explicit EmulatedBackend(EmulatedOptions options);
  ~EmulatedBackend() override;

  // What streams and communicators are given from now on are the plan's steps,
  // each once, watched by a PlanWatch; then nothing is expected again. What a
  // watch finds is thrown like any error of a device, by a later call.
  void Expect(const codegen::Plan& plan);
  // Kernels run so far, and distinct texts compiled.
  int64_t num_launches() const;
  int64_t num_texts() const;

  // A communicator of one rank among several that all hold the same data: sums
  // multiply by their number.
  std::unique_ptr<runtime::Communicator> Connect();

  std::string name() const override { return "emulated"; }
  int device_count() const override { return 1; }
  std::vector<std::string> Diagnose() const override;
  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override;
  // For the target of EmulatedOptions::compiler, whatever the name.
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target,
      const runtime::BackendOptions& options) override;

 private:
  const EmulatedOptions options_;
  std::shared_ptr<EmulatedMachine> machine_;
};

}  // namespace fusor::test
