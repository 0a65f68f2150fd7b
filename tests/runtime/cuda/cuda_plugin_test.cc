// Tests the CUDA plug-in on the fake driver: which GPUs and drivers it accepts,
// and what it compiles for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/cuda/cuda_device.h"
#include "tests/fakes/fake_driver.h"

namespace fusor::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string FailureOf(const std::function<void()>& act, ErrorCode code) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(CudaPlugIn, ChoosesTheTargetOfTheGpu) {
  const auto target = [](const FakeBackendOptions& options) {
    LoadFakeDriver().Reset(options);
    return cuda::TargetOfDevice()->name;
  };
  EXPECT_EQ(target({.name = "NVIDIA H200"}), "nvidia-h200");
  EXPECT_EQ(target({.name = "NVIDIA H100 80GB HBM3"}), "nvidia-h100");
  EXPECT_EQ(target({.name = "NVIDIA GH200 480GB"}), "nvidia-h200");
  EXPECT_EQ(target({.name = "NVIDIA H20"}), "nvidia-h100");
  EXPECT_EQ(target({.name = "NVIDIA A100-SXM4-80GB", .major = 8}),
            "nvidia-a100");
  // A GPU without a target uses that of the newest older GPU.
  EXPECT_EQ(target({.name = "NVIDIA L40S", .major = 8, .minor = 9}), "sm_89");
  EXPECT_EQ(cuda::TargetOfDevice()->compute_capability, 89);
  EXPECT_EQ(cuda::TargetOfDevice()->memory_gb_per_s,
            ir::FindTarget("nvidia-a100").memory_gb_per_s);
  EXPECT_EQ(target({.name = "NVIDIA B300", .major = 10, .minor = 3}), "sm_103");
  EXPECT_THAT(
      FailureOf([&] { target({.name = "Tesla T4", .major = 7, .minor = 5}); },
                ErrorCode::kDevice),
      HasSubstr("Tesla T4: no target describes sm_75"));
}

TEST(CudaPlugInDeathTest, RejectsOldDrivers) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  LoadFakeDriver().Reset({.version = 11080});
  EXPECT_EXIT(
      {
        try {
          cuda::OpenCudaDevice(0, {}, nullptr);
        } catch (const Error& error) {
          fprintf(stderr, "%s\n", error.what());
          _exit(error.code() == ErrorCode::kDevice ? 6 : 1);
        }
        _exit(0);
      },
      ::testing::ExitedWithCode(6),
      "CUDA: the driver is for CUDA 11.8, expected driver 525.60 .CUDA 12.0. "
      "or "
      "newer");
}

// Loads the real plug-in. Its cubins are for a GPU, so they do not run.
TEST(CudaPlugIn, OpensTheDevice) {
  LoadFakeDriver();
  runtime::Backend& cuda = runtime::LoadBackend("cuda");
  EXPECT_EQ(cuda.device_count(), 1);
  EXPECT_THAT(cuda.Diagnose(), Contains("driver: CUDA 13.0, 1 devices"));
  const auto device = cuda.OpenDevice(0, {});
  codegen::CompiledKernel kernel;
  kernel.kernel.name = "nothing";
  kernel.kernel.phases.emplace_back();
  const auto compiler = cuda.CreateCompiler("", {});
  EXPECT_EQ(compiler->target().name, "nvidia-h200");
  kernel.binary = compiler->CompileKernel(kernel.kernel);
  EXPECT_THAT(
      FailureOf([&] { device->LoadKernel(kernel); }, ErrorCode::kDevice),
      HasSubstr("kernel nothing on NVIDIA H200: cuModuleLoadData: "
                "CUDA_ERROR_NO_BINARY_FOR_GPU"));
  // NVRTC does not know this GPU, so the driver compiles PTX for it.
  LoadFakeDriver().Reset({.name = "NVIDIA X", .major = 33});
  const auto newer = cuda.CreateCompiler("", {});
  EXPECT_EQ(newer->target().name, "sm_330");
  EXPECT_THAT(newer->Codegen().device, StartsWith("compute_1"));
  const std::string ptx = newer->CompileKernel(kernel.kernel);
  EXPECT_THAT(ptx,
              AllOf(HasSubstr(".target sm_1"), HasSubstr(".entry fusor_p0(")));
  EXPECT_THAT(newer->Resources(ptx), ::testing::IsEmpty());
  const auto artifacts = newer->KernelArtifacts(kernel.kernel);
  EXPECT_EQ(artifacts.size(), 2u);
  EXPECT_EQ(newer->CompileArtifact(kernel.kernel, artifacts[0].text, "mine.cu"),
            ptx);
  // Code of CUDA 13 needs a driver for CUDA 13.
  LoadFakeDriver().Reset({.version = 12080});
  if (compiler->Codegen().compiler < "nvrtc 13") return;
  EXPECT_THAT(
      FailureOf([&] { cuda.CreateCompiler("", {}); }, ErrorCode::kDevice),
      AllOf(StartsWith("CUDA backend: nvrtc 13."),
            HasSubstr(": the driver is for CUDA 12.8, expected libraries of "
                      "CUDA 12, or driver 580 (CUDA 13.0) or newer")));
}

}  // namespace
}  // namespace fusor::test
