// Programmatic dependent launches on the fake driver. It checks that each
// directly follows a kernel, and that kernels wait before they access memory
// (tests/fakes/emulated_gpu.h).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "codegen/compiler.h"
#include "codegen/cuda/cuda_printer.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

using ir::DType;

constexpr int64_t kBatch = 4;

// A model that a session trains.
class Trained {
 public:
  Trained(runtime::Backend& backend, const runtime::BackendOptions& options)
      : session_(backend, options) {
    codegen::CompileOptions compile;
    compile.verification = passes::Verification::kPasses;  // no poison
    program_ = &session_.Compile(NarrowVgg16Bn(models::Phase::kTrain, kBatch),
                                 codegen::ProgramKind::kTrain, compile);
    session_.state().Initialize(1);
    Set("images",
        RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}}, 1, 0, 256));
    Set("labels", RandomTensor({DType::kI32, {kBatch}, {}}, 1, 0, 10));
    Set(ir::kLearningRate, MakeTensor({DType::kF32, {}, {}}, {0.01}));
    Set("random_key", MakeTensor({DType::kI64, {}, {}}, {7}));
    Set("step", MakeTensor({DType::kI32, {}, {}}, {1}));
  }

  runtime::Program& program() { return *program_; }
  std::map<std::string, std::vector<float>> State() {
    return AllState(session_);
  }

 private:
  void Set(const std::string& name, const ir::Tensor& tensor) {
    if (!program_->HasInput(name)) return;
    const std::vector<uint8_t> bytes = ir::TensorBytes(tensor);
    program_->SetInput(program_->FindInput(name), bytes.data(), bytes.size());
  }

  runtime::Session session_;
  runtime::Program* program_;
};

// Returns, for each kernel launch in plan order, whether it follows another
// kernel.
std::vector<bool> LaunchesBehindKernels(const codegen::Plan& plan) {
  std::vector<bool> behind;
  bool after_kernel = false;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kLaunch) {
      after_kernel = false;
      continue;
    }
    for (size_t p = 0; p < plan.kernels[step.index].kernel.phases.size(); ++p) {
      behind.push_back(std::exchange(after_kernel, true));
    }
  }
  return behind;
}

TEST(DependentLaunch, KernelsBehindKernelsAndNoOthers) {
  constexpr int kSteps = 3;  // one uncaptured, one captured, one replayed
  FakeCudaBackend reference;
  Trained expected(reference, {});
  for (int step = 0; step < kSteps; ++step) expected.program().Run();
  const auto state = expected.State();
  EXPECT_EQ(reference.driver().programmatic_edges(), 0);
  for (const bool graph : {true, false}) {
    FakeCudaBackend backend({.seed = 5});
    Trained training(backend, {.graph = graph, .dependent_launch = true});
    const auto behind = LaunchesBehindKernels(training.program().plan());
    const auto edges = std::count(behind.begin(), behind.end(), true);
    EXPECT_GT(edges, 0);
    backend.driver().TakeCalls();
    training.program().Run();
    std::vector<bool> launches;
    for (const std::string& call : backend.driver().TakeCalls()) {
      if (call == "cuStreamBeginCapture") break;
      if (!call.starts_with("cuLaunchKernel")) continue;
      launches.push_back(call == "cuLaunchKernelEx");
    }
    EXPECT_EQ(launches, behind);
    EXPECT_EQ(backend.driver().programmatic_edges(), graph ? edges : 0);
    for (int step = 1; step < kSteps; ++step) training.program().Run();
    EXPECT_EQ(training.State(), state);
    EXPECT_EQ(backend.driver().problem(), "");
  }
}

// A kernel must not start early after copies, events or captures.
TEST(DependentLaunch, OtherWorkEndsBeforeAKernelStarts) {
  FakeCudaBackend backend;
  codegen::CompiledKernel compiled;
  codegen::Kernel& k = compiled.kernel;
  k.name = "nothing";
  k.lanes = k.width = 4;
  k.buffers = {{"y", DType::kF32, 4, true}};
  k.phases.emplace_back();
  compiled.binary = codegen::PrintCuda(k);
  const auto device = backend.OpenDevice(0, {.dependent_launch = true});
  const auto stream = device->CreateStream();
  const auto event = device->CreateEvent();
  const auto memory = device->Allocate(16);
  const auto pinned = device->AllocateHost(16);
  const auto kernel = device->LoadKernel(compiled);
  void* args[] = {memory->data()};
  const auto launch = [&] { stream->Launch(*kernel, args, 1); };
  const auto is_dependent = [&] {
    backend.driver().TakeCalls();
    launch();
    const auto calls = backend.driver().TakeCalls();
    EXPECT_EQ(calls.size(), 1u);
    return calls.at(0) == "cuLaunchKernelEx";
  };
  launch();
  EXPECT_TRUE(is_dependent());
  std::unique_ptr<runtime::Executable> graph;
  const std::function<void()> others[] = {
      [&] { stream->CopyToDevice(memory->data(), pinned->data(), 16); },
      [&] { stream->CopyToHost(pinned->data(), memory->data(), 16); },
      [&] { stream->Record(*event); },
      [&] { stream->Wait(*event); },
      [&] { graph = stream->Capture(launch); },
      [&] { stream->Launch(*graph, nullptr, 0); },
      // NCCL records events on this stream.
      [&] { EXPECT_NE(cuda::DriverStreamOf(*stream), nullptr); },
  };
  for (const auto& other : others) {
    other();
    EXPECT_FALSE(is_dependent());
    EXPECT_TRUE(is_dependent());
  }
  stream->Synchronize();
  EXPECT_EQ(backend.driver().problem(), "");
}

TEST(DependentLaunch, SaysWhatItNeeds) {
  const auto open = [](const FakeBackendOptions& options) -> std::string {
    FakeCudaBackend backend(options);
    try {
      backend.OpenDevice(0, {.dependent_launch = true});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(open({.name = "NVIDIA A100-SXM4-80GB", .major = 8}),
            "dependent launch on NVIDIA A100-SXM4-80GB: expected sm_90 or "
            "newer, got sm_80");
  EXPECT_EQ(open({.version = 12020}),
            "dependent launch: the driver is for CUDA 12.2, expected CUDA 12.3 "
            "(driver 545.23) or newer");
}

}  // namespace
}  // namespace fusor::test
