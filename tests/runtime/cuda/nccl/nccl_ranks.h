#pragma once

// Ranks of the CUDA backend on a fake NCCL and a fake driver, each a
// process. No GPU takes part.

#include <chrono>
#include <functional>
#include <memory>

#include "runtime/backend/communicator.h"
#include "runtime/distributed/tcp_store.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/runtime/cuda/trained_model.h"

namespace fusor::test {

// One rank, in a process of its own.
struct Rank {
  FakeCudaBackend backend;
  std::unique_ptr<runtime::TcpStore> store;
  std::unique_ptr<runtime::Communicator> communicator;
  // Of fake_nccl.cc.
  void (*inject)(const char* fault) = nullptr;
  int (*allocated)() = nullptr;   // pieces of memory that NCCL has given
  int (*registered)() = nullptr;  // those of them that are registered
  int (*dangling)() = nullptr;    // calls that an abort came between

  explicit Rank(const runtime::StoreOptions& options);
  void Connect(runtime::CommunicatorOptions options = {
                   .timeout = std::chrono::milliseconds(60'000)});
  void Connect(std::chrono::milliseconds timeout) {
    Connect(runtime::CommunicatorOptions{.timeout = timeout});
  }
};

// Fails the test when a rank throws or fails an expectation, or where `run` was
// to end its process otherwise.
void OnRanks(int world_size, const std::function<void(Rank&)>& run,
             int exit_code = 0);

// Compiles the texts of kernels, for processes that are forked later. Returns
// how many collectives a step has.
int CompileAhead(const TrainedModel& model, int world_size);

}  // namespace fusor::test
