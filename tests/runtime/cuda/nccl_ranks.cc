#include "tests/runtime/cuda/nccl_ranks.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "ir/support/hash.h"
#include "ir/tensor_bytes.h"
#include "ir/training_names.h"
#include "models/model.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/session.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

using ir::DType;

constexpr int64_t kBatch = 4;

codegen::CompileOptions OptionsOf(const TrainedModel& model, int world_size) {
  codegen::CompileOptions options;
  options.verify = true;
  options.passes.world_size =
      model.planned_ranks > 0 ? model.planned_ranks : world_size;
  options.passes.shard_optimizer = model.sharded;
  options.passes.buckets = passes::ParseBucketPolicy("buckets", model.buckets);
  return options;
}

int RunRank(const runtime::StoreOptions& options,
            const std::function<void(Rank&)>& run) {
  void* nccl = dlopen(FUSOR_STAND_IN_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  try {
    Rank rank(options);
    rank.plant = reinterpret_cast<void (*)(const char*)>(
        dlsym(nccl, "FusorPlantNcclFault"));
    rank.allocated =
        reinterpret_cast<int (*)()>(dlsym(nccl, "FusorNcclAllocated"));
    rank.registered =
        reinterpret_cast<int (*)()>(dlsym(nccl, "FusorNcclRegistered"));
    rank.dangling =
        reinterpret_cast<int (*)()>(dlsym(nccl, "FusorNcclDangling"));
    run(rank);
  } catch (const std::exception& error) {
    fprintf(stderr, "rank %d: %s\n", options.rank, error.what());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

}  // namespace

Rank::Rank(const runtime::StoreOptions& options)
    : backend({.seed = static_cast<uint64_t>(options.rank) + 1}),
      store(std::make_unique<runtime::TcpStore>(options)) {}

void Rank::Connect(runtime::CommunicatorOptions options) {
  communicator =
      cuda::ConnectNccl(*store, options, backend.CreateCompiler("", {}));
}

void OnRanks(int world_size, const std::function<void(Rank&)>& run,
             int exit_code) {
  const int port = runtime::Socket::Listen("127.0.0.1", 0).port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(RunRank({.host = "127.0.0.1",
                     .port = port,
                     .rank = rank,
                     .world_size = world_size},
                    run));
    }
    children.push_back(child);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_TRUE(WIFEXITED(status)) << "rank " << rank;
    EXPECT_EQ(WEXITSTATUS(status), exit_code) << "rank " << rank;
  }
}

TrainedModel NarrowVgg(uint64_t seed) {
  return {.build = [] { return NarrowVgg16Bn(models::Phase::kTrain, kBatch); },
          .seed = seed};
}

TrainedModel Resnet18(uint64_t seed) {
  const models::ModelOptions options{
      .batch = kBatch, .image_size = 32, .num_classes = 10};
  return {.build =
              [options] {
                return models::BuildModel("resnet18", models::Phase::kTrain,
                                          options)
                    .graph;
              },
          .buckets = "cap:10",
          .seed = seed};
}

int CompileAhead(const TrainedModel& model, int world_size) {
  StandInBackend backend;
  const auto compiled =
      Compile(model.build(), codegen::ProgramKind::kTrain,
              *backend.CreateCompiler("", {}), OptionsOf(model, world_size));
  const auto device = backend.OpenDevice(0, {});
  std::vector<std::unique_ptr<runtime::Executable>> loaded;
  for (const codegen::CompiledKernel& kernel : compiled.plan.kernels) {
    loaded.push_back(device->LoadKernel(kernel));
  }
  backend.driver().CompileTexts();
  const auto& steps = compiled.plan.steps;
  return static_cast<int>(
      std::count_if(steps.begin(), steps.end(), [](const codegen::Step& step) {
        return step.kind == codegen::StepKind::kCollective;
      }));
}

std::map<std::string, std::vector<float>> Train(
    runtime::Backend& backend, runtime::Communicator& communicator,
    const TrainedModel& model) {
  runtime::Session session(backend, {.graph = model.graph}, &communicator);
  const int program =
      session.AddProgram(model.build(), codegen::ProgramKind::kTrain,
                         OptionsOf(model, communicator.world_size()));
  session.InitializeState(1);
  const auto set = [&](const std::string& name, const ir::Tensor& tensor) {
    const std::vector<uint8_t> bytes = ir::TensorBytes(tensor);
    session.SetInput(program, session.FindInput(program, name), bytes.data(),
                     bytes.size());
  };
  for (int step = 0; step < model.steps; ++step) {
    const uint64_t seed = model.seed + static_cast<uint64_t>(step);
    set("images",
        RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}}, seed, 0, 256));
    set("labels", RandomTensor({DType::kI32, {kBatch}, {}}, seed, 0, 10));
    set(ir::kLearningRate, MakeTensor({DType::kF32, {}, {}}, {0.01}));
    for (const auto& [name, tensor] :
         {std::pair{"random_key", MakeTensor({DType::kI64, {}, {}}, {7})},
          {"step", MakeTensor({DType::kI32, {}, {}}, {1})}}) {
      if (session.HasInput(program, name)) set(name, tensor);
    }
    session.Step(program);
  }
  session.GatherParameters();
  auto state = AllState(session);
  std::erase_if(state, [&](const auto& entry) {
    return session.StateRole(entry.first) == ir::InputRole::kStatistic ||
           session.IsShard(entry.first);
  });
  return state;
}

uint64_t HashOf(const std::map<std::string, std::vector<float>>& state) {
  uint64_t hash = 0;
  for (const auto& [name, values] : state) {
    hash = HashCombine(hash, HashBytes(name));
    hash = HashCombine(hash,
                       HashBytes({reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float)}));
  }
  return hash;
}

}  // namespace fusor::test
