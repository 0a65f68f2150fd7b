// Generated kernels on the fake driver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "codegen/cuda/cuda_printer.h"
#include "codegen/lower/lower.h"
#include "codegen/plan/plan.h"
#include "ir/support/error.h"
#include "tests/fakes/fake_cuda_backend.h"
#include "tests/testing/graph_text.h"

namespace fusor::test {
namespace {

using ir::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaKernel, FailsInTheNextCallThatWaits) {
  FakeCudaBackend backend;
  codegen::CompiledKernel compiled;
  codegen::Kernel& k = compiled.kernel;
  k.name = "store";
  k.lanes = k.width = 4;
  k.buffers = {{"y", DType::kF32, 4, true}};
  k.registers = {{DType::kF32}};
  k.phases.emplace_back();
  compiled.binary = codegen::PrintCuda(k);
  const size_t body = compiled.binary.rfind('}');
  compiled.binary.insert(body, "Put(b0 + 100, 1.0f);\n");
  const auto device = backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  const auto memory = device->Allocate(16);
  const auto kernel = device->LoadKernel(compiled);
  void* args[] = {memory->data()};
  EXPECT_THAT(
      [&] {
        stream->Launch(*kernel, args, 1);
        stream->Synchronize();
      },
      testing::ThrowsMessage<Error>(AllOf(HasSubstr("CUDA_ERROR_LAUNCH_FAILED"),
                                          HasSubstr("outside all buffers"))));
}

// A contraction of two steps has 63 KB. A block has 48 without asking.
TEST(CudaKernel, AsksForSharedMemory) {
  FakeCudaBackend backend;
  const auto body = ParseOrDie(R"(graph g {
    %a = data : f16[128,128]
    %b = data : f16[128,64]
    %y = matmul(%a, %b) : f16[128,64]
    return %y as "y"
  })");
  codegen::CompiledKernel compiled{
      codegen::LowerTensorCore(*body, ir::FindTarget("nvidia-h200"), false)
          .kernel};
  compiled.binary = codegen::PrintCuda(compiled.kernel);
  const auto device = backend.OpenDevice(0, {});
  const auto kernel = device->LoadKernel(compiled);
  std::vector<std::shared_ptr<runtime::Memory>> memories;
  std::vector<void*> args;
  for (const codegen::KernelBuffer& buffer : compiled.kernel.buffers) {
    memories.push_back(device->Allocate(buffer.num_bytes()));
    args.push_back(memories.back()->data());
  }
  const auto stream = device->CreateStream();
  stream->Launch(*kernel, args.data(), static_cast<int>(args.size()));
  stream->Synchronize();
  EXPECT_EQ(backend.driver().problem(), "");
}

}  // namespace
}  // namespace fusor::test
