#pragma once

// Ranks of the CUDA backend on a stand-in NCCL and a stand-in driver, each a
// process. No GPU takes part.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/communicator.h"
#include "runtime/ranks/tcp_store.h"
#include "tests/runtime/cuda/stand_in_backend.h"

namespace fusor::test {

// One rank, in a process of its own.
struct Rank {
  StandInBackend backend;
  std::unique_ptr<runtime::TcpStore> store;
  std::unique_ptr<runtime::Communicator> communicator;
  // Of stand_in_nccl.cc.
  void (*plant)(const char* fault) = nullptr;
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

struct TrainedModel {
  // Its forward graph.
  std::function<std::unique_ptr<ir::Graph>()> build;
  std::string buckets = "cap:0.1";
  uint64_t seed = 1;  // of the batches, 4 images of 32 x 32 in ten classes
  int steps = 2;
  bool graph = true;      // a step is one graph of the device
  bool sharded = false;   // the optimizer
  int planned_ranks = 0;  // what the plan is made for; 0: as many as there are
};
TrainedModel NarrowVgg(uint64_t seed);
TrainedModel Resnet18(uint64_t seed);

// Compiles the texts of kernels, for processes that are forked later. Returns
// how many collectives a step has.
int CompileAhead(const TrainedModel& model, int world_size);

// What it is then: all state but what each rank has of its own, running
// statistics and parts of optimizer state.
std::map<std::string, std::vector<float>> Train(
    runtime::Backend& backend, runtime::Communicator& communicator,
    const TrainedModel& model);
uint64_t HashOf(const std::map<std::string, std::vector<float>>& state);

}  // namespace fusor::test
