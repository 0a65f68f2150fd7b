#include "tests/runtime/cuda/nccl/nccl_ranks.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/cuda/nccl/nccl_communicator.h"

namespace fusor::test {
namespace {

int RunRank(const runtime::StoreOptions& options,
            const std::function<void(Rank&)>& run) {
  void* nccl = dlopen(FUSOR_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  try {
    Rank rank(options);
    rank.inject = reinterpret_cast<void (*)(const char*)>(
        dlsym(nccl, "FusorInjectNcclFault"));
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

int CompileAhead(const TrainedModel& model, int world_size) {
  FakeCudaBackend backend;
  const auto compiled = Compile(model.build(), codegen::ProgramKind::kTrain,
                                *backend.CreateCompiler("", {}),
                                CompileOptionsOf(model, world_size));
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

}  // namespace fusor::test
