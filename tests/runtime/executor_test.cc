#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "runtime/poison.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/counted_new.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"

// Counts the allocations of the process.
namespace {
std::atomic<int64_t> allocations = 0;
}  // namespace

void OnAllocation() { ++allocations; }

namespace fusor::runtime {
namespace {

// An executable of the plan, numbered in the order of loading.
struct Loaded : Executable {
  explicit Loaded(int n) : number(n) {}
  int number;
};

// A device that records the launches of one run in a fixed array.
class RecordingDevice : public Device {
 public:
  struct Call {
    int executable;
    size_t num_args;
    void* args[16];
  };

  std::string description() const override { return "recording"; }
  std::unique_ptr<Memory> Allocate(size_t) override { return nullptr; }
  size_t free_bytes() const override { return 0; }
  std::unique_ptr<Stream> CreateStream() override {
    return std::make_unique<RecordingStream>(*this);
  }
  std::unique_ptr<Event> CreateEvent() override { return nullptr; }
  std::unique_ptr<Executable> LoadKernel(
      const codegen::CompiledKernel&) override {
    return std::make_unique<Loaded>(num_loaded++);
  }
  std::unique_ptr<Executable> LoadCall(const codegen::LibraryCall&) override {
    return std::make_unique<Loaded>(num_loaded++);
  }

  int num_loaded = 0;
  size_t num_calls = 0;
  Call calls[256];

 private:
  class RecordingStream : public Stream {
   public:
    explicit RecordingStream(RecordingDevice& device) : device_(device) {}
    void Launch(const Executable& executable, void* const* args,
                size_t num_args) override {
      Call& call = device_.calls[device_.num_calls++];
      call.executable = static_cast<const Loaded&>(executable).number;
      call.num_args = num_args;
      std::copy(args, args + num_args, call.args);
    }
    void CopyToDevice(void* device, const void* host, size_t bytes) override {
      std::memcpy(device, host, bytes);
    }
    void CopyToHost(void* host, const void* device, size_t bytes) override {
      std::memcpy(host, device, bytes);
    }
    void Record(Event&) override {}
    void Wait(const Event&) override {}
    void Synchronize() override {}

   private:
    RecordingDevice& device_;
  };
};

struct Bound {
  explicit Bound(const codegen::Plan& plan) {
    for (const codegen::Arena& arena : plan.arenas) {
      arenas.emplace_back(arena.bytes + 64);
      bases.push_back(arenas.back().data());
    }
  }
  std::vector<std::vector<char>> arenas;
  ArenaBases bases;
};

codegen::Plan SomePlan() {
  const test::FakeCompiler compiler;
  return test::FuseAndPlan(*test::RandomGraph(11, {.nodes = 40}), compiler)
      .plan;
}

TEST(Executor, LaunchesEveryStepInOrderWithItsBuffers) {
  const codegen::Plan plan = SomePlan();
  Bound memory(plan);
  RecordingDevice device;
  const auto stream = device.CreateStream();
  Executor executor(plan, device);
  executor.Bind(std::span(&memory.bases, 1), *stream);
  executor.Run(*stream);
  ASSERT_EQ(device.num_calls, plan.steps.size());
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const codegen::Step& step = plan.steps[s];
    const RecordingDevice::Call& call = device.calls[s];
    const int kernels = static_cast<int>(plan.kernels.size());
    EXPECT_EQ(call.executable, step.kind == codegen::StepKind::kLaunch
                                   ? step.index
                                   : kernels + step.index);
    ASSERT_EQ(call.num_args, step.args.size());
    for (size_t a = 0; a < step.args.size(); ++a) {
      const codegen::Buffer& buffer = plan.buffers[step.args[a]];
      EXPECT_EQ(call.args[a],
                memory.arenas[buffer.arena].data() + buffer.offset);
      EXPECT_EQ(call.args[a], executor.address(step.args[a]));
    }
  }
}

// Rank 0 of two. Records the collectives that it is asked to wait for.
class NotingCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  std::string description() const override { return "noting"; }
  int64_t Start(const Collective&, Stream&) override { return started++; }
  void Wait(int64_t number, Stream&) override { awaited.push_back(number); }
  void Abort(const std::string&) noexcept override {}
  std::vector<CollectiveTime> TakeTimes() override { return {}; }

  int64_t started = 0;
  std::vector<int64_t> awaited;
};

// All collectives must have ended when the next step starts, whether or not a
// step of the plan waits for them.
TEST(Executor, NoCollectiveOutlastsTheStep) {
  const test::FakeCompiler compiler;
  for (const char* result : {"%g", "%r"}) {
    const auto graph = test::ParseOrDie(std::string(R"(graph gathers {
      %x = data : f32[64]
      %g = all_gather(%x) {ranks=2} : f32[2,64]
      %r = relu(%g) : f32[2,64]
      return )") + result + R"( as "y"
    })");
    const codegen::Plan plan = test::FuseAndPlan(*graph, compiler).plan;
    Bound memory(plan);
    RecordingDevice device;
    const auto stream = device.CreateStream();
    NotingCommunicator communicator;
    Executor executor(plan, device, &communicator);
    executor.Bind(std::span(&memory.bases, 1), *stream);
    executor.Run(*stream);
    executor.Run(*stream);
    EXPECT_EQ(communicator.started, 2) << result;
    EXPECT_EQ(communicator.awaited, (std::vector<int64_t>{0, 1})) << result;
  }
}

TEST(Executor, LoadsEqualKernelsAndCallsOnce) {
  const codegen::Plan plan = SomePlan();
  RecordingDevice device;
  const Executor executor(plan, device);
  EXPECT_EQ(device.num_loaded,
            static_cast<int>(plan.kernels.size() + plan.calls.size()));
  EXPECT_EQ(executor.num_steps(), plan.steps.size());
}

TEST(Executor, RunsWithoutAllocation) {
  const codegen::Plan plan = SomePlan();
  Bound memory(plan);
  RecordingDevice device;
  const auto stream = device.CreateStream();
  Executor executor(plan, device);
  executor.Bind(std::span(&memory.bases, 1), *stream);
  const int64_t before = allocations;
  executor.Run(*stream);
  EXPECT_EQ(allocations, before);
  ASSERT_GT(before, 0);  // the counter works
}

// The fake device computes nothing, so results still have their contents from
// before the launch.
TEST(Executor, PoisonsResultsBeforeTheLaunch) {
  const test::FakeCompiler compiler;
  const auto graph = test::ParseOrDie(R"(graph g {
  %x = data : f32[100]
  %y = neg(%x) : f32[100]
  return %y as "y"
})");
  const codegen::Plan plan = test::FuseAndPlan(*graph, compiler).plan;
  ASSERT_EQ(plan.steps.size(), 1U);
  for (const bool poison : {false, true}) {
    Bound memory(plan);
    RecordingDevice device;
    const auto stream = device.CreateStream();
    Executor executor(plan, device, nullptr, poison);
    executor.Bind(std::span(&memory.bases, 1), *stream);
    executor.Run(*stream);
    const RecordingDevice::Call& call = device.calls[0];
    ASSERT_EQ(call.num_args, 2U);
    const auto* x = static_cast<const float*>(call.args[0]);
    const auto* y = static_cast<const float*>(call.args[1]);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(x[i], 0) << i;
      EXPECT_EQ(std::isnan(y[i]), poison) << i;
    }
  }
}

TEST(Poison, IsNanInEveryFloatDtypeAndNeither0Nor1InOthers) {
  RecordingDevice device;
  const auto stream = device.CreateStream();
  for (const ir::DType dtype : ir::kAllDTypes) {
    const ir::TensorType type{dtype, {16}, {}};
    const auto size = static_cast<size_t>(type.num_bytes());
    std::vector<uint8_t> bytes(size + 1, 0);
    Poison(*stream, bytes.data(), size);
    EXPECT_EQ(bytes.back(), 0) << ir::DTypeName(dtype);
    bytes.pop_back();
    if (dtype == ir::DType::kBool) {
      for (const uint8_t byte : bytes) EXPECT_GT(byte, 1);
      continue;
    }
    for (const double value : ir::LoadTensor(type, bytes).data) {
      EXPECT_EQ(std::isnan(value), ir::IsFloat(dtype)) << ir::DTypeName(dtype);
      EXPECT_NE(value, 0) << ir::DTypeName(dtype);
      EXPECT_NE(value, 1) << ir::DTypeName(dtype);
    }
  }
}

// A large buffer takes several copies.
TEST(Poison, FillsLargeBuffers) {
  RecordingDevice device;
  const auto stream = device.CreateStream();
  std::vector<float> values((size_t{3} << 18) + 7, 0);
  Poison(*stream, values.data(), values.size() * sizeof(float));
  EXPECT_TRUE(std::all_of(values.begin(), values.end(),
                          [](float value) { return std::isnan(value); }));
}

TEST(Executor, FollowsArenasThatMove) {
  const codegen::Plan plan = SomePlan();
  Bound first(plan);
  Bound second(plan);
  RecordingDevice device;
  const auto stream = device.CreateStream();
  Executor executor(plan, device);
  executor.Bind(std::span(&first.bases, 1), *stream);
  executor.Bind(std::span(&second.bases, 1), *stream);
  executor.RunStep(0, *stream);
  const codegen::Buffer& buffer = plan.buffers[plan.steps[0].args[0]];
  EXPECT_EQ(device.calls[0].args[0],
            second.arenas[buffer.arena].data() + buffer.offset);
}

TEST(Executor, PutsConstantsInTheirPlace) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : u8[4]
      %c = constant() {dtype="u8", shape=[4], value=[1.0, 2.0, 3.0, 4.0]}
        : u8[4]
      %y = add(%x, %c) : u8[4]
      return %y as "y"
    })");
  const codegen::Plan plan =
      codegen::BuildPlan(*graph, {}, test::FakeCompiler());
  Bound memory(plan);
  RecordingDevice device;
  const auto stream = device.CreateStream();
  Executor executor(plan, device);
  executor.Bind(std::span(&memory.bases, 1), *stream);
  ASSERT_EQ(plan.constants.size(), 1);
  const char expected[] = {1, 2, 3, 4};
  EXPECT_EQ(std::memcmp(executor.address(plan.constants[0].buffer), expected,
                        sizeof(expected)),
            0);
}

}  // namespace
}  // namespace fusor::runtime
