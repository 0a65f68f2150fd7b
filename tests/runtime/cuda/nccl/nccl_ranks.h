#pragma once

// Ranks of the CUDA backend on a fake NCCL and a fake driver, one process each.
// Needs no GPU.

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/backend/communicator.h"
#include "runtime/distributed/tcp_store.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/runtime/cuda/trained_model.h"

namespace fusor::test {

// A rank in its own process.
struct Rank {
  FakeCudaBackend backend;
  std::unique_ptr<runtime::TcpStore> store;
  std::unique_ptr<runtime::Communicator> communicator;
  // Functions of fake_nccl.cc.
  void (*inject)(const char* fault) = nullptr;
  int (*allocated)() = nullptr;   // number of NCCL's allocations
  int (*registered)() = nullptr;  // number of registered ones
  int (*dangling)() = nullptr;    // number of calls aborted while they ran

  explicit Rank(const runtime::StoreOptions& options);
  void Connect(runtime::CommunicatorOptions options = {
                   .timeout = std::chrono::milliseconds(60'000)});
  void Connect(std::chrono::milliseconds timeout) {
    Connect(runtime::CommunicatorOptions{.timeout = timeout});
  }
};

// Runs `run` in one process per rank. Fails the test if a rank throws or fails
// an expectation, or does not exit with `exit_code`.
void OnRanks(int world_size, const std::function<void(Rank&)>& run,
             int exit_code = 0);

// Compiles the kernels before processes are forked. Returns the number of
// collectives per step.
int CompileAhead(const TrainedModel& model, int world_size);

}  // namespace fusor::test
