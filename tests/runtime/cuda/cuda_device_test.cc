// The CUDA device on a driver that emulates a GPU: its driver calls, and
// training on it. Needs no GPU.

#include "runtime/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/data/datasets/synthetic.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "runtime/train/training_loop.h"
#include "tests/fakes/emulated_device.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using ir::Tensor;
using runtime::Session;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kBatch = 4;

using BuildGraph =
    std::function<std::unique_ptr<ir::Graph>(models::Phase phase)>;

std::unique_ptr<ir::Graph> SmallVgg(models::Phase phase) {
  return NarrowVgg16Bn(phase, kBatch);
}

std::unique_ptr<ir::Graph> ResNet18(models::Phase phase) {
  return models::BuildModel(
             "resnet18", phase,
             {.batch = kBatch, .image_size = 32, .num_classes = 10})
      .graph;
}

// Options of a training session.
struct Setting {
  DType dtype = DType::kF32;
  bool graph = true;
  BuildGraph build = SmallVgg;
  bool train_alone = false;  // without accumulation and evaluation
  int64_t graph_steps = 1;
  codegen::WarningHandler warning{};
};

class Training {
 public:
  Training(runtime::Backend& backend, const Setting& setting)
      : session_(backend, {.graph = setting.graph,
                           .graph_steps = setting.graph_steps,
                           .warning = setting.warning}),
        build_(setting.build) {
    options_.passes.precision.dtype = setting.dtype;
    options_.passes.loss_scale.dynamic = setting.dtype == DType::kF16;
    if (!setting.train_alone) {
      options_.passes.micro_batches = passes::MicroBatches::kFinish;
    }
    Add(models::Phase::kTrain, ProgramKind::kTrain);
    if (!setting.train_alone) {
      Add(models::Phase::kTrain, ProgramKind::kAccumulate);
      Add(models::Phase::kEval, ProgramKind::kEval);
    }
    session_.state().Initialize(1);
  }

  // Runs the program on a new batch, whose host memory is overwritten at once.
  void Step(int program, uint64_t seed) {
    Set(program, seed, /*slot=*/0);
    session_.programs()[program]->Run();
  }
  void Set(int program, uint64_t seed, int64_t slot) {
    const auto set = [&](const std::string& name, const Tensor& tensor) {
      Set(program, name, tensor, slot);
    };
    set("images",
        RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}}, seed, 0, 256));
    set("labels", RandomTensor({DType::kI32, {kBatch}, {}}, seed, 0, 10));
    set("weights", MakeTensor({DType::kF32, {kBatch}, {}},
                              std::vector<double>(kBatch, 1)));
    set(ir::kLearningRate, MakeTensor({DType::kF32, {}, {}}, {0.01}));
    set("random_key", MakeTensor({DType::kI64, {}, {}}, {7}));
    set("step", MakeTensor({DType::kI32, {}, {}}, {static_cast<double>(seed)}));
  }

  // Runs two updates of two micro-batches each and an evaluation, without
  // waiting in between.
  std::map<std::string, std::vector<float>> Train() {
    for (uint64_t seed = 1; seed <= 4; ++seed)
      Step(seed % 2 == 0 ? 0 : 1, seed);
    Step(2, 5);
    auto state = AllState(session_);
    for (const char* name : {"loss_sum", "top1"}) {
      const runtime::Program& evaluation = *session_.programs()[2];
      const auto output = evaluation.Read(evaluation.FindOutput(name)).data;
      state[name] = {output.begin(), output.end()};
    }
    return state;
  }

  Session& session() { return session_; }
  runtime::Program& program() { return *session_.programs()[0]; }

 private:
  void Add(models::Phase phase, ProgramKind kind) {
    session_.Compile(build_(phase), kind, options_);
  }
  void Set(int index, const std::string& name, const Tensor& tensor,
           int64_t slot) {
    runtime::Program& program = *session_.programs()[index];
    if (!program.HasInput(name)) return;
    std::vector<char> bytes(static_cast<size_t>(tensor.type.num_bytes()));
    ir::StoreTensor(tensor, bytes.data());
    program.SetInput(program.FindInput(name), bytes.data(), bytes.size(), slot);
    std::fill(bytes.begin(), bytes.end(), '\x5a');
  }

  codegen::CompileOptions options_;
  Session session_;
  BuildGraph build_;
};

std::string FailureOf(const std::function<void()>& act, ErrorCode code) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

// The emulated GPU has no graphs, no pinned memory and only one stream.
TEST(CudaDevice, TrainsAsTheEmulatedGpuDoes) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    EmulatedBackend emulated({.compiler = FakePlanner});
    const auto expected = Training(emulated, {.dtype = dtype}).Train();
    for (const bool graph : {true, false}) {
      FakeCudaBackend backend({.seed = graph ? 3u : 4u});
      EXPECT_EQ(Training(backend, {dtype, graph}).Train(), expected)
          << DTypeName(dtype) << (graph ? " with graphs" : " without");
      EXPECT_EQ(backend.driver().problem(), "");
      EXPECT_EQ(backend.driver().used_bytes(), 0);
      EXPECT_EQ(backend.driver().pinned_bytes(), 0);
    }
  }
}

// The network has residual blocks, and overlapping pooling windows in its stem.
TEST(CudaDevice, TrainsResNet18AsTheEmulatedGpuDoes) {
  const Setting setting{
      .dtype = DType::kF16, .build = ResNet18, .train_alone = true};
  const auto two_steps = [](Training& training) {
    training.Step(0, 1);
    training.Step(0, 2);
    return AllState(training.session());
  };
  EmulatedBackend emulated({.compiler = FakePlanner});
  Training reference(emulated, setting);
  FakeCudaBackend backend({.seed = 8});
  Training training(backend, setting);
  EXPECT_EQ(two_steps(training), two_steps(reference));
  EXPECT_EQ(backend.driver().problem(), "");
  for (const codegen::LibraryCall& call : training.program().plan().calls) {
    EXPECT_FALSE(call.attrs.Has("window")) << codegen::Print(call);
  }
}

TEST(CudaDevice, AStepIsOneLaunch) {
  FakeCudaBackend backend;
  Training training(backend, {});
  training.program().Run();
  backend.driver().TakeCalls();
  training.program().Run();
  EXPECT_THAT(backend.driver().TakeCalls(), ElementsAre("cuGraphLaunch"));
}

// Returns the driver calls of a step without a graph.
std::vector<std::string> CallsOneByOne(Training& training) {
  std::vector<std::string> expected;
  const codegen::Plan& plan = training.program().plan();
  for (const codegen::Step& step : plan.steps) {
    if (step.kind == codegen::StepKind::kLibrary) {
      expected.emplace_back("cuLaunchHostFunc");
    } else {
      const auto& kernel = plan.kernels[step.index].kernel;
      expected.insert(expected.end(), kernel.phases.size(), "cuLaunchKernel");
    }
  }
  return expected;
}

TEST(CudaDevice, AStepWithoutGraphIsItsKernelsAndCalls) {
  FakeCudaBackend backend;
  Training training(backend, {.graph = false});
  backend.driver().TakeCalls();
  for (int step = 0; step < 2; ++step) {
    training.program().Run();
    EXPECT_EQ(backend.driver().TakeCalls(), CallsOneByOne(training));
  }
}

// The first step is not captured: libraries may allocate in their first call,
// which a capture forbids.
TEST(CudaDevice, TheFirstStepRunsBeforeItIsCaptured) {
  FakeCudaBackend backend;
  Training training(backend, {});
  backend.driver().TakeCalls();
  training.program().Run();
  const std::vector<std::string> launches = CallsOneByOne(training);
  std::vector<std::string> expected = launches;
  expected.emplace_back("cuStreamBeginCapture");
  expected.insert(expected.end(), launches.begin(), launches.end());
  for (const char* call : {"cuStreamEndCapture", "cuGraphInstantiate",
                           "cuGraphDestroy", "cuGraphUpload"}) {
    expected.emplace_back(call);
  }
  EXPECT_EQ(backend.driver().TakeCalls(), expected);
}

// State, warnings and driver calls of three training steps.
struct ThreeSteps {
  std::map<std::string, std::vector<float>> state;
  std::vector<std::string> warnings;
  std::set<std::string> calls;
};

ThreeSteps TrainThreeSteps(const std::string& rejected, int times) {
  ThreeSteps result;
  FakeCudaBackend backend;
  {
    Training training(
        backend, {.train_alone = true, .warning = [&](const std::string& text) {
                    result.warnings.push_back(text);
                  }});
    backend.driver().TakeCalls();
    backend.driver().Reject(rejected, times);
    for (uint64_t seed = 1; seed <= 3; ++seed) training.Step(0, seed);
    const auto calls = backend.driver().TakeCalls();
    result.calls = {calls.begin(), calls.end()};
    result.state = AllState(training.session());
  }
  EXPECT_EQ(backend.driver().problem(), "");
  EXPECT_EQ(backend.driver().used_bytes(), 0);
  return result;
}

// A step runs with the same results if the driver or a library rejects its
// capture: in relaxed mode after one rejection, without a graph after two.
TEST(CudaDevice, AStepRunsWhateverItsCaptureIsRejected) {
  const ThreeSteps reference = TrainThreeSteps("", 0);
  EXPECT_THAT(reference.warnings, ::testing::IsEmpty());
  EXPECT_THAT(reference.calls, Contains("cuGraphLaunch"));
  // The calls that capture and prepare a graph.
  for (const char* call :
       {"cuStreamBeginCapture", "cuLaunchKernel", "cuLaunchHostFunc",
        "cuStreamEndCapture", "cuGraphInstantiate", "cuGraphUpload"}) {
    ASSERT_THAT(reference.calls, Contains(call));
    for (const int times : {1, 2}) {
      const ThreeSteps result = TrainThreeSteps(call, times);
      EXPECT_EQ(result.state, reference.state) << call;
      const bool relaxed = times == 1;
      EXPECT_EQ(result.calls.contains("cuGraphLaunch"), relaxed) << call;
      ASSERT_EQ(result.warnings.size(), 1u) << call;
      EXPECT_THAT(
          result.warnings[0],
          AllOf(StartsWith("CUDA graph of a step: thread-local capture: "),
                HasSubstr(relaxed ? "; it is captured in relaxed mode"
                                  : "; relaxed capture: ")));
      EXPECT_EQ(result.warnings[0].find('\n'), std::string::npos);
      // A library calls cuLaunchHostFunc, and reports its own error.
      if (call != std::string("cuLaunchHostFunc")) {
        EXPECT_THAT(result.warnings[0],
                    HasSubstr(call + std::string(": CUDA_ERROR_NOT_SUPPORTED "
                                                 "(operation not supported)")));
      }
    }
  }
}

TEST(CudaDevice, AStepRunsWhereItsGraphCannotBeLaunched) {
  const ThreeSteps reference = TrainThreeSteps("", 0);
  const ThreeSteps result = TrainThreeSteps("cuGraphLaunch", 1);
  EXPECT_EQ(result.state, reference.state);
  EXPECT_THAT(
      result.warnings,
      ElementsAre("CUDA graph of a step: CUDA: cuGraphLaunch: "
                  "CUDA_ERROR_NOT_SUPPORTED (operation not supported); kernels "
                  "and calls are launched one by one"));
}

// After a rejected capture, other programs of the session neither try nor warn
// again.
TEST(CudaDevice, ProgramsShareWhatIsKnownOfCaptures) {
  FakeCudaBackend backend;
  std::vector<std::string> warnings;
  Training training(backend, {.warning = [&](const std::string& text) {
                      warnings.push_back(text);
                    }});
  backend.driver().Reject("cuGraphInstantiate", 1000);
  training.Train();
  EXPECT_EQ(warnings.size(), 1u);
  const auto calls = backend.driver().TakeCalls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuStreamBeginCapture"), 2);
}

// From the third batch on, the host may wait for the copy of the batch before
// the last, but never for a step.
TEST(CudaDevice, BatchesDoNotWaitForSteps) {
  FakeCudaBackend backend;
  Training training(backend, {});
  training.Step(1, 1);
  backend.driver().TakeCalls();
  training.Step(1, 2);
  const auto calls = backend.driver().TakeCalls();
  EXPECT_THAT(calls, Not(Contains("cuStreamSynchronize")));
  EXPECT_THAT(calls, Not(Contains("cuMemAlloc")));
  EXPECT_THAT(calls, Not(Contains("cuMemHostAlloc")));
  EXPECT_EQ(calls.back(), "cuGraphLaunch");
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuMemcpyHtoDAsync"),
            std::count(calls.begin(), calls.end(), "cuMemcpyDtoDAsync"));
}

// The loop enqueues step n + 1 before it reads the results of step n.
TEST(CudaDevice, ATrainingLoopNeverWaitsForTheStepThatItHasEnqueued) {
  constexpr int kSteps = 6;
  FakeCudaBackend backend({.seed = 5});
  Training training(backend, {.train_alone = true});
  runtime::SyntheticSource source({.batch_size = kBatch,
                                   .image_size = 32,
                                   .num_classes = 10,
                                   .distinct_batches = 2});
  backend.driver().TakeCalls();
  const runtime::TrainReport report = runtime::Train(
      training.session(), training.program(), source,
      {.iterations = kSteps, .print_every = 2, .lr = {.base = 1e-3}}, {},
      nullptr);
  EXPECT_EQ(report.losses.size(), kSteps);
  const auto calls = backend.driver().TakeCalls();
  // Between two steps, of which the second is a graph, the host starts to copy
  // the loss of the first, waits for the loss before that, and copies the next
  // batch.
  const auto launch = [&](auto from) {
    return std::find(from, calls.end(), "cuGraphLaunch");
  };
  int steps = 0;
  auto from = launch(calls.begin());
  for (auto to = launch(from + 1); to != calls.end();
       from = to, to = launch(from + 1)) {
    const std::vector<std::string> between(from + 1, to);
    EXPECT_THAT(between, Not(Contains("cuStreamSynchronize")));
    EXPECT_THAT(between, Not(Contains("cuMemHostAlloc")));
    EXPECT_THAT(std::vector(between.begin(), between.begin() + 3),
                ElementsAre("cuMemcpyDtoHAsync", "cuEventRecord",
                            "cuEventSynchronize"));
    EXPECT_THAT(between, Contains("cuMemcpyHtoDAsync"));
    ++steps;
  }
  EXPECT_GE(steps, kSteps - 3);
  EXPECT_EQ(backend.driver().problem(), "");
}

// Two epochs of four steps each: three in one graph, then one alone.
struct TwoEpochs {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> state;
  std::vector<std::string> calls;
  std::vector<std::string> warnings;
};

TwoEpochs TrainTwoEpochs(int64_t graph_steps, uint64_t seed,
                         const std::string& rejected = "") {
  TwoEpochs result;
  FakeCudaBackend backend({.seed = seed});
  {
    Training training(backend, {.train_alone = true,
                                .graph_steps = graph_steps,
                                .warning = [&](const std::string& text) {
                                  result.warnings.push_back(text);
                                }});
    const auto allocate = [&](size_t bytes) {
      const std::shared_ptr<runtime::Memory> pinned =
          training.session().AllocateHost(bytes);
      return std::shared_ptr<uint8_t>(pinned,
                                      static_cast<uint8_t*>(pinned->data()));
    };
    runtime::SyntheticSource source({.batch_size = kBatch,
                                     .image_size = 32,
                                     .num_classes = 10,
                                     .samples = 4 * kBatch,
                                     .distinct_batches = 5,
                                     .allocate = allocate});
    backend.driver().TakeCalls();
    if (!rejected.empty()) backend.driver().Reject(rejected, 1000);
    result.losses =
        runtime::Train(training.session(), training.program(), source,
                       {.epochs = 2,
                        .lr = {.base = 0.01},
                        .seed = 9,
                        .graph_steps = graph_steps},
                       {}, nullptr)
            .losses;
    result.calls = backend.driver().TakeCalls();
    result.state = AllState(training.session());
  }
  EXPECT_EQ(backend.driver().problem(), "");
  EXPECT_EQ(backend.driver().used_bytes(), 0);
  EXPECT_EQ(backend.driver().pinned_bytes(), 0);
  return result;
}

TEST(CudaDevice, StepsOfOneGraphAreThoseOfGraphsOfTheirOwn) {
  const TwoEpochs expected = TrainTwoEpochs(1, 1);
  EXPECT_EQ(
      std::count(expected.calls.begin(), expected.calls.end(), "cuGraphLaunch"),
      7);
  const TwoEpochs grouped = TrainTwoEpochs(3, 2);
  EXPECT_EQ(grouped.losses, expected.losses);
  EXPECT_EQ(grouped.state, expected.state);
  // The first group and the first single step run without a graph.
  EXPECT_EQ(
      std::count(grouped.calls.begin(), grouped.calls.end(), "cuGraphLaunch"),
      2);
  for (const char* rejected : {"cuGraphInstantiate", "cuGraphLaunch"}) {
    const TwoEpochs one_by_one = TrainTwoEpochs(3, 4, rejected);
    EXPECT_EQ(one_by_one.losses, expected.losses) << rejected;
    EXPECT_EQ(one_by_one.state, expected.state) << rejected;
    EXPECT_EQ(one_by_one.warnings.size(), 1u) << rejected;
  }
}

// The batches of a graph are copied while the previous graph runs. The host
// reads that graph's losses after it has enqueued the next one.
TEST(CudaDevice, GraphsOfStepsNeverWaitForTheOneThatIsEnqueued) {
  constexpr int kSteps = 2;
  FakeCudaBackend backend({.seed = 5});
  Training training(backend, {.train_alone = true, .graph_steps = kSteps});
  runtime::SyntheticSource source({.batch_size = kBatch,
                                   .image_size = 32,
                                   .num_classes = 10,
                                   .distinct_batches = 2});
  backend.driver().TakeCalls();
  runtime::Train(
      training.session(), training.program(), source,
      {.iterations = 5 * kSteps, .lr = {.base = 1e-3}, .graph_steps = kSteps},
      {}, nullptr);
  const auto calls = backend.driver().TakeCalls();
  const auto launch = [&](auto from) {
    return std::find(from, calls.end(), "cuGraphLaunch");
  };
  int graphs = 0;
  auto from = launch(calls.begin());
  for (auto to = launch(from + 1); to != calls.end();
       from = to, to = launch(from + 1)) {
    const std::vector<std::string> between(from + 1, to);
    for (const char* waits : {"cuStreamSynchronize", "cuMemAlloc",
                              "cuMemHostAlloc", "cuLaunchKernel"}) {
      EXPECT_THAT(between, Not(Contains(waits)));
    }
    EXPECT_THAT(std::vector(between.begin(), between.begin() + kSteps + 2),
                ElementsAre("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync",
                            "cuEventRecord", "cuEventSynchronize"));
    EXPECT_EQ(std::count(between.begin(), between.end(), "cuMemcpyHtoDAsync") %
                  kSteps,
              0);
    ++graphs;
  }
  EXPECT_EQ(graphs, 3);
  EXPECT_EQ(backend.driver().problem(), "");
}

// The last run of a group uses slot 0, which outputs are read from.
TEST(CudaDevice, ReadsTheLastRunOfAGroup) {
  FakeCudaBackend backend;
  Training training(backend, {.train_alone = true});
  runtime::Program& program = training.program();
  const int loss = program.FindOutput("loss");
  for (uint64_t seed = 1; seed <= 2; ++seed) training.Step(0, seed);
  const double last = program.ReadScalar(loss);
  const auto state = AllState(training.session());
  training.session().state().Initialize(1);
  program.SetGroup(2);
  training.Set(0, /*seed=*/1, /*slot=*/1);
  training.Set(0, /*seed=*/2, /*slot=*/0);
  program.RunGroup();
  EXPECT_EQ(program.ReadScalar(loss), last);
  EXPECT_EQ(AllState(training.session()), state);
}

TEST(CudaDevice, SaysHowManyStepsOfInputsDoNotFit) {
  FakeCudaBackend backend({.memory_bytes = static_cast<int64_t>(
                               cuda::kReservedBytes + (size_t{64} << 20))});
  Training training(backend, {.train_alone = true});
  EXPECT_THAT(
      FailureOf([&] { training.program().SetGroup(9000); },
                ErrorCode::kOutOfMemory),
      AllOf(HasSubstr("program narrow_vgg16_bn: 9000 steps in one graph need "),
            HasSubstr(" free: lower --cuda-graph-steps or the batch size")));
}

TEST(CudaDevice, LargeCopiesGoPieceByPiece) {
  constexpr size_t kBytes = (size_t{130} << 20) + 12345;
  FakeCudaBackend backend;
  const auto device = backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  const auto memory = device->Allocate(kBytes);
  std::vector<uint32_t> data(kBytes / 4 + 1);
  for (int round = 0; round < 2; ++round) {
    std::iota(data.begin(), data.end(), round);
    stream->CopyToDevice(memory->data(), data.data(), kBytes);
    std::fill(data.begin(), data.end(), 0);
  }
  stream->CopyToHost(data.data(), memory->data(), kBytes);
  stream->Synchronize();
  for (size_t i = 0; i < kBytes / 4; ++i) ASSERT_EQ(data[i], i + 1);
  EXPECT_LE(backend.driver().pinned_bytes(), int64_t{128} << 20);
  EXPECT_EQ(backend.driver().problem(), "");
}

// A slot that is too small is freed after its copy has ended.
TEST(CudaDevice, LargerCopiesWaitForThoseWhosePlaceTheyTake) {
  FakeCudaBackend backend({.seed = 5});
  const auto device = backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  constexpr size_t kBytes = 300'000;
  const auto memory = device->Allocate(4 * kBytes);
  auto* base = static_cast<char*>(memory->data());
  const auto copy = [&](size_t place, size_t bytes) {
    const std::vector<char> data(bytes, static_cast<char>('a' + place));
    stream->CopyToDevice(base + place * kBytes, data.data(), bytes);
  };
  // Uses both slots, then grows both.
  copy(0, kBytes / 2);
  copy(1, kBytes / 2);
  backend.driver().TakeCalls();
  copy(2, kBytes);
  copy(3, kBytes);
  const auto calls = backend.driver().TakeCalls();
  for (auto at = calls.begin();;) {
    at = std::find(at, calls.end(), "cuMemFreeHost");
    if (at == calls.end()) break;
    ASSERT_NE(at, calls.begin());
    EXPECT_EQ(*(at - 1), "cuEventSynchronize");
    ++at;
  }
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "cuMemFreeHost"), 2);
  std::vector<char> data(4 * kBytes);
  stream->CopyToHost(data.data(), base, data.size());
  stream->Synchronize();
  for (size_t i = 0; i < data.size(); ++i) {
    const size_t place = i / kBytes;
    const bool copied = place >= 2 || i % kBytes < kBytes / 2;
    ASSERT_EQ(data[i], copied ? static_cast<char>('a' + place) : '\0') << i;
  }
}

TEST(CudaDevice, MemoryIsZeroAtFirst) {
  FakeCudaBackend backend;
  const auto device = backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  const auto memory = device->Allocate(1000);
  std::vector<char> data(1000, 1);
  stream->CopyToHost(data.data(), memory->data(), data.size());
  stream->Synchronize();
  EXPECT_THAT(data, Each(0));
}

TEST(CudaDevice, EventsTellTheTimeOfEachStep) {
  FakeCudaBackend backend;
  Training training(backend, {});
  const codegen::Plan& plan = training.program().plan();
  const std::vector<double> ms = training.program().Profile();
  ASSERT_EQ(ms.size(), plan.steps.size());
  for (size_t s = 0; s < ms.size(); ++s) {
    const codegen::Step& step = plan.steps[s];
    const size_t launches = step.kind == codegen::StepKind::kLaunch
                                ? plan.kernels[step.index].kernel.phases.size()
                                : 1;
    EXPECT_EQ(ms[s], static_cast<double>(launches)) << step.name;
  }
}

TEST(CudaDevice, SaysAtPlanTimeWhatDoesNotFit) {
  FakeCudaBackend backend(
      {.memory_bytes = static_cast<int64_t>(cuda::kReservedBytes) + 100'000});
  EXPECT_THAT(
      FailureOf([&] { Training(backend, {}); }, ErrorCode::kOutOfMemory),
      AllOf(HasSubstr("plan narrow_vgg16_bn needs"),
            HasSubstr("limit 100000")));
  EXPECT_EQ(backend.driver().used_bytes(), 0);
}

TEST(CudaDevice, SaysWhatIsFreeWhereMemoryIsAskedFor) {
  FakeCudaBackend backend({.memory_bytes = 1'000'000});
  const auto device = backend.OpenDevice(0, {});
  const auto memory = device->Allocate(600'000);
  EXPECT_THAT(
      FailureOf([&] { device->Allocate(500'000); }, ErrorCode::kOutOfMemory),
      HasSubstr("NVIDIA H200: 500000 bytes asked for, 400000 free"));
  EXPECT_EQ(device->free_bytes(), 0);
}

TEST(CudaDevice, SaysWhichDevicesThereAre) {
  FakeCudaBackend backend;
  EXPECT_THAT(FailureOf([&] { backend.OpenDevice(3, {}); }, ErrorCode::kDevice),
              HasSubstr("CUDA device 3: the driver offers 1 devices"));
  EXPECT_EQ(backend.OpenDevice(0, {})->description(),
            "NVIDIA H200, sm_90, 132 multiprocessors");
}

// With several visible devices, a rank uses the one with its local rank. With
// one visible device, it uses that.
TEST(CudaDevice, IsTheOneOfTheRank) {
  const auto device_of = [](const char* local_rank, int devices) {
    setenv("RANK", "5", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("LOCAL_RANK", local_rank, 1);
    setenv("LOCAL_WORLD_SIZE", "4", 1);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("MASTER_PORT", "12345", 1);
    FakeCudaBackend backend({.devices = devices});
    try {
      return backend.OpenDevice(0, {})->description();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      return std::string(error.what());
    }
  };
  EXPECT_THAT(device_of("1", 2), StartsWith("NVIDIA H200 1, sm_90"));
  EXPECT_THAT(device_of("0", 2), StartsWith("NVIDIA H200 0, sm_90"));
  EXPECT_THAT(device_of("3", 1), StartsWith("NVIDIA H200, sm_90"));
  EXPECT_EQ(device_of("3", 2),
            "rank 5, number 3 of this host: the driver offers 2 devices, "
            "expected one for each of 4 ranks");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
  FakeCudaBackend alone({.devices = 2});
  EXPECT_THAT(alone.OpenDevice(0, {})->description(),
              StartsWith("NVIDIA H200 0, sm_90"));
}

TEST(CudaDevice, RejectsLibraryCallsThatNobodyRuns) {
  FakeCudaBackend backend;
  const auto device = cuda::OpenCudaDevice(0, {}, nullptr);
  codegen::LibraryCall call;
  call.op = ir::OpKind::kConv2d;
  EXPECT_THAT(FailureOf([&] { device->LoadCall(call); }, ErrorCode::kDevice),
              HasSubstr("conv2d: the CUDA backend has no library"));
}

// Needs a workspace that its program lacks.
class LargeCall : public cuda::DeviceCall {
 public:
  LargeCall(int64_t bytes, std::vector<void*>& workspaces)
      : bytes_(bytes), workspaces_(workspaces) {}
  void Enqueue(CUstream, void* const* args) const override {
    workspaces_.push_back(args[1]);
  }
  int64_t unplanned_workspace_bytes() const override { return bytes_; }

 private:
  int64_t bytes_;
  std::vector<void*>& workspaces_;
};

// Calls that need more than is planned share memory of the device. A call that
// was loaded before keeps its own, whose address a graph may contain.
TEST(CudaDevice, AllocatesWorkspacesThatProgramsLack) {
  FakeCudaBackend backend;
  std::vector<void*> workspaces;
  int64_t bytes = 0;
  const auto device =
      cuda::OpenCudaDevice(0, {}, [&](const codegen::LibraryCall&) {
        return std::make_unique<LargeCall>(bytes, workspaces);
      });
  const int64_t before = backend.driver().used_bytes();
  codegen::LibraryCall call;
  call.op = ir::OpKind::kConv2d;
  call.results = {{DType::kF32, {1}, {}}};
  char planned = 0;
  void* const args[] = {nullptr, &planned};
  {
    const auto stream = device->CreateStream();
    std::vector<std::unique_ptr<runtime::Executable>> loaded;
    for (const int64_t size : {0, 1000, 500, 2000}) {
      bytes = size;
      call.workspace_bytes = size == 1000 ? 0 : 10;
      loaded.push_back(device->LoadCall(call));
    }
    for (const auto& executable : loaded) {
      stream->Launch(*executable, args, executable == loaded[1] ? 1 : 2);
    }
    ASSERT_EQ(workspaces.size(), 4);
    EXPECT_EQ(workspaces[0], &planned);
    EXPECT_NE(workspaces[1], &planned);
    EXPECT_EQ(workspaces[2], workspaces[1]);
    EXPECT_NE(workspaces[3], workspaces[1]);
    EXPECT_EQ(backend.driver().used_bytes(), before + 3000);
  }
  EXPECT_EQ(backend.driver().used_bytes(), before + 2000);
}

TEST(CudaDevice, AFailedCaptureLeavesTheStreamUsable) {
  FakeCudaBackend backend;
  std::vector<std::string> warnings;
  const auto device = backend.OpenDevice(
      0,
      {.warning = [&](const std::string& text) { warnings.push_back(text); }});
  const auto stream = device->CreateStream();
  // An error of the captured work itself is not a rejected capture.
  EXPECT_EQ(
      FailureOf(
          [&] {
            stream->Capture([] { ThrowError(ErrorCode::kPeerLost, "gone"); });
          },
          ErrorCode::kPeerLost),
      "gone");
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  const auto graph = stream->Capture([] {});
  ASSERT_NE(graph, nullptr);
  stream->Launch(*graph, nullptr, 0);
  stream->Synchronize();
  EXPECT_EQ(stream->Capture([&] { stream->Synchronize(); }), nullptr);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("while a stream captures")));
  stream->Synchronize();
}

}  // namespace
}  // namespace fusor::test
