// Training on several ranks of the CUDA device with a fake NCCL. Each rank is a
// process on a fake driver. Needs no GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tests/fakes/emulated_device.h"
#include "tests/runtime/cuda/nccl/nccl_ranks.h"

namespace fusor::test {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::Not;

const runtime::CommunicatorOptions kInOrder{.timeout = milliseconds(300'000),
                                            .deterministic = true};

// Ranks with equal batches must compute the same as the emulated device's
// ranks.
TEST(NcclTraining, IsAsOnTheEmulatedGpu) {
  for (const int world : {2, 4}) {
    EmulatedBackend emulated({.compiler = FakePlanner, .world_size = world});
    const auto communicator = emulated.Connect();
    const uint64_t expected =
        HashOf(Train(emulated, *communicator, NarrowVgg(1)));
    OnRanks(world, [expected](Rank& rank) {
      rank.Connect();
      EXPECT_EQ(HashOf(Train(rank.backend, *rank.communicator, NarrowVgg(1))),
                expected);
    });
  }
}

// Trains with a different batch per rank. Returns the hash of the state.
uint64_t TrainApart(Rank& rank, TrainedModel model) {
  model.seed = static_cast<uint64_t>(100 * rank.store->rank() + 1);
  return HashOf(Train(rank.backend, *rank.communicator, model));
}

void ExpectTheSameOnAllRanks(Rank& rank, uint64_t hash) {
  const auto hashes =
      rank.store->Gather("hash", std::to_string(hash), milliseconds(60'000));
  EXPECT_THAT(hashes, ::testing::Each(hashes[0]));
}

TEST(NcclTraining, RanksWithTheirOwnBatchesStayTogether) {
  CompileAhead(NarrowVgg(1), 2);
  OnRanks(2, [](Rank& rank) {
    rank.Connect();
    ExpectTheSameOnAllRanks(rank, TrainApart(rank, NarrowVgg(1)));
  });
}

// A step is one graph including its collectives, also those of a sharded
// optimizer. Its results equal those without a graph.
TEST(NcclTraining, CapturesCollectivesInTheGraph) {
  for (const bool in_order : {false, true}) {
    const int world = in_order ? 3 : 2;
    CompileAhead(NarrowVgg(1), world);
    OnRanks(world, [in_order](Rank& rank) {
      rank.Connect(
          {.timeout = milliseconds(60'000), .deterministic = in_order});
      TrainedModel model = NarrowVgg(1);
      model.sharded = in_order;
      rank.backend.driver().TakeCalls();
      const uint64_t captured = TrainApart(rank, model);
      const auto calls = rank.backend.driver().TakeCalls();
      EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"),
                model.steps - 1);
      model.graph = false;
      EXPECT_EQ(TrainApart(rank, model), captured);
      const auto launched = rank.backend.driver().TakeCalls();
      EXPECT_THAT(launched, Not(Contains("cuGraphLaunch")));
      // Host functions record the start and end of collectives. Neither kernels
      // nor collectives wait for them.
      EXPECT_GE(rank.backend.driver().captured_host_functions(), 2);
      EXPECT_EQ(rank.backend.driver().work_behind_host_functions(), 0);
      EXPECT_EQ(rank.backend.driver().problem(), "");
    });
  }
}

// Collectives of the sharded optimizer span two steps.
TEST(NcclTraining, CapturesCollectivesOfSeveralStepsInOneGraph) {
  TrainedModel model = NarrowVgg(1);
  model.sharded = true;
  model.steps = 4;
  CompileAhead(model, 2);
  OnRanks(2, [&model](Rank& rank) {
    rank.Connect();
    const uint64_t expected = TrainApart(rank, model);
    TrainedModel grouped = model;
    grouped.group = 2;
    rank.backend.driver().TakeCalls();
    EXPECT_EQ(TrainApart(rank, grouped), expected);
    const auto calls = rank.backend.driver().TakeCalls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"), 1);
    EXPECT_EQ(rank.backend.driver().work_behind_host_functions(), 0);
    EXPECT_EQ(rank.backend.driver().problem(), "");
  });
}

// If one rank's driver rejects the graph, no rank uses one. Results are the
// same.
TEST(NcclTraining, NoRankLaunchesAGraphThatAnotherLacks) {
  TrainedModel model = NarrowVgg(1);
  model.steps = 3;
  CompileAhead(model, 2);
  OnRanks(2, [&model](Rank& rank) {
    rank.Connect();
    const uint64_t expected = TrainApart(rank, model);
    // After one rejection, rank 1 captures in relaxed mode, which yields a
    // graph.
    for (const int times : {1, 2}) {
      if (rank.store->rank() == 1) {
        rank.backend.driver().Reject("cuLaunchHostFunc", times);
      }
      rank.backend.driver().TakeCalls();
      EXPECT_EQ(TrainApart(rank, model), expected);
      const auto calls = rank.backend.driver().TakeCalls();
      EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"),
                times == 1 ? model.steps - 1 : 0);
    }
    rank.communicator->Check();
    EXPECT_EQ(rank.backend.driver().problem(), "");
  });
}

// One rank runs a plan for two ranks, so each sum has one term.
TEST(NcclTraining, CapturesOneRankAlone) {
  OnRanks(1, [](Rank& rank) {
    rank.Connect();
    TrainedModel model = NarrowVgg(1);
    model.planned_ranks = 2;
    rank.backend.driver().TakeCalls();
    Train(rank.backend, *rank.communicator, model);
    const auto calls = rank.backend.driver().TakeCalls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"),
              model.steps - 1);
    EXPECT_GT(rank.communicator->TakeTimes().size(), 0);
    EXPECT_EQ(rank.backend.driver().problem(), "");
  });
}

// Arenas are allocated and registered by NCCL for their whole lifetime.
TEST(NcclTraining, RegistersArenas) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect();
    const auto device = rank.backend.OpenDevice(0, {});
    auto memory = rank.communicator->Allocate(*device, 1000);
    EXPECT_EQ(rank.registered(), 1);
    memory.reset();
    EXPECT_EQ(rank.allocated(), 0);
    {
      runtime::Session session(rank.backend, {}, rank.communicator.get());
      codegen::CompileOptions options;
      options.passes.world_size = 2;
      session.Compile(NarrowVgg(1).build(), codegen::ProgramKind::kTrain,
                      options);
      EXPECT_EQ(rank.registered(), 2);  // state and temporaries
    }
    EXPECT_EQ(rank.registered(), 0);
    EXPECT_EQ(rank.allocated(), 0);
  });
}

// Trains with different batches per rank. NCCL in graphs must match Gloo bit
// for bit, both in rank order. The plans are those of the CUDA target.
void ExpectGloosResults(int world, const TrainedModel& model) {
  CompileAhead(model, world);
  OnRanks(world, [&model](Rank& rank) {
    rank.Connect(kInOrder);
    const uint64_t by_nccl = TrainApart(rank, model);
    const auto gloo =
        runtime::LoadBackend("cpu").Connect(*rank.store, kInOrder);
    TrainedModel apart = model;
    apart.seed = static_cast<uint64_t>(100 * rank.store->rank() + 1);
    EXPECT_EQ(HashOf(Train(rank.backend, *gloo, apart)), by_nccl);
    ExpectTheSameOnAllRanks(rank, by_nccl);
    EXPECT_EQ(rank.backend.driver().problem(), "");
  });
}

TEST(NcclTraining, Resnet18OnFourRanksIsGloosBitForBit) {
  ExpectGloosResults(4, Resnet18(1));
}

TEST(NcclTraining, AShardedOptimizerIsGloosBitForBit) {
  TrainedModel model = NarrowVgg(1);
  model.sharded = true;
  ExpectGloosResults(3, model);
}

}  // namespace
}  // namespace fusor::test
