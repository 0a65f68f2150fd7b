#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/distributed/tcp_store.h"
#include "runtime/null/null_device.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/fakes/fake_compiler.h"

namespace fusor::null {
namespace {

using runtime::Backend;
using runtime::LoadBackend;
using runtime::Session;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

NullLog& Log() {
  LoadBackend("null");
  const std::string file = runtime::BackendFolder() + "/fusor_null.so";
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) throw std::runtime_error(dlerror());
  void* entry = dlsym(library, kNullLogEntry);
  if (entry == nullptr) throw std::runtime_error(dlerror());
  return *reinterpret_cast<NullLog* (*)()>(entry)();
}

// A model with two layers and a loss, enough for every kind of step.
std::unique_ptr<ir::Graph> Mlp() {
  auto graph = std::make_unique<ir::Graph>("mlp");
  ir::Builder b(*graph);
  const auto input = [&](ir::InputRole role, const char* name,
                         ir::Shape shape) {
    return graph->AddInput({ir::DType::kF32, std::move(shape), {}}, role, name);
  };
  ir::Value* x = input(ir::InputRole::kData, "images", {4, 6});
  ir::Value* w1 = input(ir::InputRole::kWeight, "w1", {8, 6});
  ir::Value* b1 = input(ir::InputRole::kBias, "b1", {8});
  ir::Value* w2 = input(ir::InputRole::kWeight, "w2", {3, 8});
  ir::Value* hidden = b.Relu(b.Linear(x, w1, b1));
  ir::Value* y = b.Linear(hidden, w2, nullptr);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0, 1}), "loss");
  return graph;
}

codegen::CompileOptions Verified() {
  codegen::CompileOptions options;
  options.verification = passes::Verification::kAll;
  return options;
}

// Returns the name of a step in the log.
std::string NameOf(const codegen::Plan& plan, const codegen::Step& step) {
  return step.kind == codegen::StepKind::kLaunch
             ? "launch " + plan.kernels[step.index].kernel.name
             : "call " + std::string(plan.calls[step.index].op_name());
}

TEST(NullBackend, ASessionRunsThePlansStepsInTheirOrder) {
  NullLog& log = Log();
  Session session(LoadBackend("null"), {});
  runtime::Program& program =
      session.Compile(Mlp(), codegen::ProgramKind::kTrain, {});
  const codegen::Plan& plan = program.plan();
  ASSERT_GT(plan.steps.size(), 5);
  log.Take();
  program.Run();
  const std::vector<std::string> lines = log.Take();
  ASSERT_EQ(lines.size(), plan.steps.size());
  for (size_t s = 0; s < lines.size(); ++s) {
    EXPECT_THAT(lines[s],
                StartsWith("stream 0 " + NameOf(plan, plan.steps[s]) + " m"));
  }
}

// Connects rank 0 of two.
std::unique_ptr<runtime::Communicator> Communicator() {
  const int port = runtime::Socket::Listen("127.0.0.1", 0).port();
  const auto options = [port](int rank) {
    return runtime::StoreOptions{
        .host = "127.0.0.1", .port = port, .rank = rank, .world_size = 2};
  };
  std::thread other([&] { runtime::TcpStore(options(1)); });
  runtime::TcpStore store(options(0));
  auto communicator = LoadBackend("null").Connect(store, {});
  other.join();
  return communicator;
}

// An all-reduce starts once its gradients are ready, overlapped with the rest
// of the backward pass. Each update waits only for its own all-reduce.
TEST(NullBackend, SumsOverlapWithTheBackwardPass) {
  NullLog& log = Log();
  const auto communicator = Communicator();
  Session session(LoadBackend("null"), {}, communicator.get());
  codegen::CompileOptions options = Verified();
  options.passes.world_size = 2;
  options.passes.buckets = passes::ParseBucketPolicy("policy", "cap:0.000001");
  runtime::Program& program =
      session.Compile(Mlp(), codegen::ProgramKind::kTrain, options);
  log.Take();
  program.Run();
  std::vector<std::string> kinds;  // of the lines, without repetitions
  for (const std::string& line : log.Take()) {
    const std::string kind =
        line.starts_with("collective") ? line : "computation";
    if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
  }
  EXPECT_THAT(
      kinds, ElementsAre("computation", "collective 0 starts all_reduce f32 32",
                         "computation", "collective 1 starts all_reduce f32 16",
                         "computation", "collective 2 starts all_reduce f32 48",
                         "collective 0 is waited for", "computation",
                         "collective 1 is waited for", "computation",
                         "collective 2 is waited for", "computation"));
}

TEST(NullBackend, ProgramsShareStateAndActivations) {
  NullLog& log = Log();
  Session session(LoadBackend("null"), {});
  session.Compile(Mlp(), codegen::ProgramKind::kTrain, Verified());
  log.Take();
  session.Compile(Mlp(), codegen::ProgramKind::kEval, Verified());
  // Training has allocated the rest: only an input, an output and constants are
  // new.
  int allocations = 0;
  for (const std::string& line : log.Take()) {
    if (line.starts_with("allocate")) ++allocations;
  }
  EXPECT_EQ(allocations, 3);
}

TEST(NullBackend, MemoryKeepsWhatWasCopiedThere) {
  Session session(LoadBackend("null"), {});
  session.Compile(Mlp(), codegen::ProgramKind::kTrain, Verified());
  session.state().Write("b1", std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(session.state().Read("b1"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// The null backend, with a workspace for every library call.
class WorkspaceBackend : public Backend {
 public:
  std::string name() const override { return "null"; }
  int device_count() const override { return 1; }
  std::vector<std::string> Diagnose() const override { return {}; }
  std::unique_ptr<runtime::Device> OpenDevice(
      int ordinal, const runtime::BackendOptions& options) override {
    return LoadBackend("null").OpenDevice(ordinal, options);
  }
  std::unique_ptr<codegen::TargetCompiler> CreateCompiler(
      const std::string&, const runtime::BackendOptions&) override {
    class Compiler : public test::FakeCompiler {
      void PrepareCall(codegen::LibraryCall& call) const override {
        FakeCompiler::PrepareCall(call);
        call.workspace_bytes = 100;
      }
    };
    return std::make_unique<Compiler>();
  }
};

// The null device computes nothing, so memory keeps what was there before the
// launch.
TEST(NullBackend, FullVerificationPoisonsResultsAndWorkspaces) {
  for (const auto verification :
       {passes::Verification::kOff, passes::Verification::kPasses,
        passes::Verification::kAll}) {
    WorkspaceBackend backend;
    Session session(backend, {});
    codegen::CompileOptions options;
    options.verification = verification;
    runtime::Program& program =
        session.Compile(Mlp(), codegen::ProgramKind::kEval, options);
    program.Run();
    const codegen::Plan& plan = program.plan();
    int results = 0;
    int workspaces = 0;
    for (const codegen::Step& step : plan.steps) {
      const bool launch = step.kind == codegen::StepKind::kLaunch;
      for (size_t a = 0; a < step.args.size(); ++a) {
        const bool workspace = !launch && a + 1 == step.args.size();
        const bool written =
            launch ? plan.kernels[step.index].kernel.buffers[a].written
                   : a >= plan.calls[step.index].operands.size();
        if (!written) continue;
        ++(workspace ? workspaces : results);
        const std::vector<uint8_t> bytes = program.ReadBuffer(step.args[a]);
        std::vector<float> values(bytes.size() / sizeof(float));
        std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
        for (const float value : values) {
          EXPECT_EQ(std::isnan(value),
                    verification == passes::Verification::kAll)
              << step.name << ", argument " << a;
        }
      }
    }
    EXPECT_GE(results, 3);
    EXPECT_EQ(workspaces, 2);
  }
}

TEST(NullBackend, RecordsStreamsEventsAndCopies) {
  NullLog& log = Log();
  const auto device = LoadBackend("null").OpenDevice(0, {});
  log.Take();
  {
    const auto memory = device->Allocate(256);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0);
    const auto first = device->CreateStream();
    const auto second = device->CreateStream();
    const auto event = device->CreateEvent();
    const int word = 7;
    int back = 0;
    char* place = static_cast<char*>(memory->data()) + 64;
    first->CopyToDevice(place, &word, sizeof(word));
    first->Record(*event);
    second->Wait(*event);
    second->CopyToHost(&back, place, sizeof(back));
    second->Synchronize();
    EXPECT_EQ(back, 7);
  }
  EXPECT_THAT(log.Take(), ElementsAre("allocate m0 256 bytes",
                                      "stream 0 to device m0+64 4 bytes",
                                      "stream 0 record e0", "stream 1 wait e0",
                                      "stream 1 to host m0+64 4 bytes",
                                      "stream 1 synchronize", "free m0"));
}

TEST(NullBackend, RejectsMemoryThatIsNotItsOwn) {
  const auto device = LoadBackend("null").OpenDevice(0, {});
  const auto stream = device->CreateStream();
  int word = 0;
  EXPECT_THROW(stream->CopyToHost(&word, &word, sizeof(word)), Error);
  EXPECT_THROW(LoadBackend("null").OpenDevice(1, {}), Error);
}

TEST(NullBackend, CompilesForAnyTarget) {
  Backend& backend = LoadBackend("null");
  EXPECT_EQ(backend.CreateCompiler("", {})->target().name, "cpu-avx2");
  EXPECT_TRUE(backend.CreateCompiler("nvidia-h200", {})->target().simt);
  EXPECT_THROW(backend.CreateCompiler("abacus", {}), Error);
}

}  // namespace
}  // namespace fusor::null
