// How candidates are measured on a GPU: launches that are replayed as a graph,
// on memory beyond its cache, by the time of the device. The stand-in driver
// takes a millisecond for each piece of work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/compiler.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/memory_copy.h"
#include "runtime/tune.h"
#include "tests/runtime/cuda/stand_in_driver.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using ::testing::Contains;
using ::testing::Each;

// What launches of each candidate take, by its name.
const std::map<std::string, int>& Pieces() {
  static const std::map<std::string, int> pieces{
      {"eng1", 2}, {"eng2", 1}, {"eng3", 3}};
  return pieces;
}

// Has them for every convolution, in this order.
class ThreeEngines : public ChannelsLastCompiler {
 public:
  using ChannelsLastCompiler::ChannelsLastCompiler;
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const auto plain = ChannelsLastCompiler::Candidates(node);
    if (!node.attrs().Has("groups")) return plain;
    std::vector<ir::LibraryCandidate> engines;
    for (const auto& [name, pieces] : Pieces()) {
      engines.push_back(plain.at(0));
      engines.back().name = engines.back().algorithm = name;
    }
    return engines;
  }
  void PrepareCall(codegen::LibraryCall& call) const override {
    if (cuda::PrepareMemoryCopy(call)) return;
    call.implementation = "cudnn " + call.attrs.String("algorithm");
    call.workspace_bytes = 1000;
  }
};

// Only takes time, and notes where its first operand lies.
class IdleCall : public cuda::DeviceCall {
 public:
  IdleCall(StandIn& driver, int pieces, std::set<void*>& operands)
      : driver_(driver), pieces_(pieces), operands_(operands) {}
  void Enqueue(CUstream stream, void* const* args) const override {
    operands_.insert(args[0]);
    for (int i = 0; i < pieces_; ++i) {
      ASSERT_EQ(driver_.LaunchHost(
                    stream, [](void*) {}, nullptr),
                CUDA_SUCCESS);
    }
  }

 private:
  StandIn& driver_;
  const int pieces_;
  std::set<void*>& operands_;
};

class CudaTuneTest : public testing::Test {
 protected:
  runtime::TuneResult Tune(bool graph) {
    const auto make = [this](const codegen::LibraryCall& call)
        -> std::unique_ptr<cuda::DeviceCall> {
      if (auto copy = cuda::MakeMemoryCopy(call)) return copy;
      const int pieces = Pieces().at(call.attrs.String("algorithm"));
      return std::make_unique<IdleCall>(driver_, pieces, operands_);
    };
    const auto device = cuda::OpenCudaDevice(0, {.graph = graph}, make);
    return runtime::Tune(*SmallResidual(), codegen::ProgramKind::kTrain,
                         ThreeEngines("nvidia-h200"), *device, {},
                         {.rounds = 2});
  }

  StandIn& driver_ = LoadStandIn();
  std::set<void*> operands_;
};

TEST_F(CudaTuneTest, ChoosesWhatTakesTheDeviceTheLeastTime) {
  const runtime::TuneResult result = Tune(true);
  EXPECT_TRUE(result.complete);
  std::map<std::string, int> candidates;  // of each problem
  for (const runtime::TunedCandidate& c : result.measured) {
    EXPECT_EQ(c.ms, Pieces().at(c.name)) << c.problem;
    EXPECT_EQ(c.copies_ms, 0);
    ++candidates[c.problem];
  }
  EXPECT_GE(candidates.size(), 9);
  EXPECT_THAT(candidates, Each(testing::Pair(testing::_, 3)));
  EXPECT_EQ(result.choices.candidates.size(), candidates.size());
  EXPECT_THAT(result.choices.candidates,
              Each(testing::Pair(testing::_, "eng2")));
  EXPECT_EQ(result.choices.origin.target, "nvidia-h200");
  EXPECT_EQ(result.choices.origin.device,
            "NVIDIA H200, sm_90, 132 multiprocessors");
  EXPECT_EQ(driver_.problem(), "");
  EXPECT_EQ(driver_.used_bytes(), 0);
}

// One launch to begin with, one by the clock, then graphs: no launch finds the
// operands of the one before.
TEST_F(CudaTuneTest, ReplaysGraphsOfLaunchesInOtherPlaces) {
  const runtime::TuneResult result = Tune(true);
  const auto calls = driver_.TakeCalls();
  // Of each in the first round, and of what is not too slow in two more; of the
  // copy once a problem and round, and to begin with.
  const auto problems = static_cast<int64_t>(result.choices.candidates.size());
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuGraphLaunch"),
            3 * problems + 2 * problems + 3 * problems + 1);
  EXPECT_GT(operands_.size(), 32);
}

TEST_F(CudaTuneTest, MeasuresWithoutGraphsWhereTheyAreOff) {
  const runtime::TuneResult result = Tune(false);
  EXPECT_TRUE(result.complete);
  EXPECT_FALSE(result.choices.candidates.empty());
  EXPECT_THAT(driver_.TakeCalls(), testing::Not(Contains("cuGraphLaunch")));
}

}  // namespace
}  // namespace fusor::test
