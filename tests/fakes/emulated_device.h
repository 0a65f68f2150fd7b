#pragma once

// An emulated GPU: a backend that runs plans made for a target of the CUDA
// backend on the host. Kernels are the text printed by PrintCuda, compiled as
// C++ and emulated (emulated_gpu.h, EmulatedChecks::kBounds). Library calls are
// interpreted. All buffers have their planned offsets. Streams are queues.
// Their work runs when it must, or earlier, in an order drawn from a seed among
// those that streams and events allow.

#include <functional>
#include <memory>

#include "codegen/plan/plan.h"
#include "runtime/backend/backend.h"

namespace fusor::test {

struct EmulatedOptions {
  // Creates the compiler that makes plans. Machine code is always CUDA text.
  // Required.
  std::function<std::unique_ptr<codegen::TargetCompiler>()> compiler;
  uint64_t seed = 1;  // for the order of work and threads
  int64_t memory_bytes = int64_t{1} << 40;
  int world_size = 1;  // of communicators
};

class EmulatedMachine;

class EmulatedBackend : public runtime::Backend {
 public:
  explicit EmulatedBackend(EmulatedOptions options);
  ~EmulatedBackend() override;

  // Expects all further work of streams and communicators to be the plan's
  // steps, each once, checked by a PlanWatch. After the last step, nothing is
  // expected. A later call throws the errors that the watch finds.
  void Expect(const codegen::Plan& plan);
  // Counts the kernels run so far, and the distinct texts.
  int64_t num_launches() const;
  int64_t num_texts() const;

  // Returns a communicator of one rank among several that hold the same data:
  // sums multiply by the number of ranks.
  std::unique_ptr<runtime::Communicator> Connect();

  std::string name() const override { return "emulated"; }
  int device_count() const override { return 1; }
  std::vector<std::string> Diagnose() const override;
  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override;
  // Ignores `target`: compiles for the target of EmulatedOptions::compiler.
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string& target,
      const runtime::BackendOptions& options) override;

 private:
  const EmulatedOptions options_;
  std::shared_ptr<EmulatedMachine> machine_;
};

}  // namespace fusor::test
