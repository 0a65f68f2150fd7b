#pragma once

// Trains a small model for a few steps as one rank of a CUDA backend.

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
  // Builds the forward graph.
  std::function<std::unique_ptr<ir::Graph>()> build;
  std::string buckets = "cap:0.1";
  uint64_t seed = 1;  // for the batches: 4 images of 32 x 32 in ten classes
  int steps = 2;
  int group = 1;          // steps enqueued at once; must divide `steps`
  bool graph = true;      // launch each step as a device graph
  bool sharded = false;   // shard the optimizer
  int planned_ranks = 0;  // ranks of the plan; 0: the actual number
};
TrainedModel NarrowVgg(uint64_t seed);
TrainedModel Resnet18(uint64_t seed);

codegen::CompileOptions CompileOptionsOf(const TrainedModel& model,
                                         int world_size);

// Returns the state after the last step, except running statistics and shards
// of optimizer state, which differ between ranks.
std::map<std::string, std::vector<float>> Train(
    runtime::Backend& backend, runtime::Communicator& communicator,
    const TrainedModel& model);
uint64_t HashOf(const std::map<std::string, std::vector<float>>& state);

}  // namespace fusor::test
