#pragma once

// A few steps of a small model by one rank of a CUDA backend.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/graph.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"

namespace fusor::test {

struct TrainedModel {
  // Its forward graph.
  std::function<std::unique_ptr<ir::Graph>()> build;
  std::string buckets = "cap:0.1";
  uint64_t seed = 1;  // of the batches, 4 images of 32 x 32 in ten classes
  int steps = 2;
  int group = 1;          // steps that are enqueued at once; divides `steps`
  bool graph = true;      // a step is one graph of the device
  bool sharded = false;   // the optimizer
  int planned_ranks = 0;  // what the plan is made for; 0: as many as there are
};
TrainedModel NarrowVgg(uint64_t seed);
TrainedModel Resnet18(uint64_t seed);

codegen::CompileOptions CompileOptionsOf(const TrainedModel& model,
                                         int world_size);

// What it is after its steps: all state but what each rank has of its own,
// running statistics and parts of optimizer state.
std::map<std::string, std::vector<float>> Train(
    runtime::Backend& backend, runtime::Communicator& communicator,
    const TrainedModel& model);
uint64_t HashOf(const std::map<std::string, std::vector<float>>& state);

}  // namespace fusor::test
