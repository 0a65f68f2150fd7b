// Tests the ranges that the CUDA device reports to profilers, on the fake
// driver.

#define NVTX_NO_IMPL  // this file is the profiler
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>

#include "codegen/cuda/cuda_printer.h"
#include "runtime/cuda/cuda_device.h"
#include "tests/fakes/fake_driver.h"

namespace {

// The ranges that the profiler has received, indented by depth.
std::vector<std::string>& Ranges() {
  static std::vector<std::string> ranges;
  return ranges;
}
int depth = 0;

int Push(const char* name) {
  Ranges().push_back(std::string(static_cast<size_t>(depth), ' ') + name);
  return depth++;
}
int Pop() { return --depth; }

int Attach(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(
      get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(
                                  NVTX_CB_MODULE_CORE, &table, &size) == 0) {
    return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] =
      reinterpret_cast<NvtxFunctionPointer>(Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}

}  // namespace

// NVTX looks for its profiler here.
extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = Attach;
}

namespace fusor::test {
namespace {

TEST(NvtxRange, NamesKernelsCopiesAndSteps) {
  LoadFakeDriver();
  const auto device = cuda::OpenCudaDevice(0, {}, nullptr);
  const auto stream = device->CreateStream();
  const auto memory = device->Allocate(16);
  codegen::CompiledKernel compiled;
  compiled.kernel.name = "k_nothing";
  compiled.kernel.buffers = {{"x", ir::DType::kF32, 4}};
  compiled.kernel.phases.emplace_back();
  compiled.binary = codegen::PrintCuda(compiled.kernel);
  const auto kernel = device->LoadKernel(compiled);
  void* args[] = {memory->data()};
  const float numbers[4] = {};
  Ranges().clear();
  stream->CopyToDevice(memory->data(), numbers, sizeof(numbers));
  const auto step = stream->Capture([&] { stream->Launch(*kernel, args, 1); });
  stream->Launch(*step, nullptr, 0);
  stream->Synchronize();
  EXPECT_THAT(Ranges(),
              ::testing::ElementsAre("copy to device", "k_nothing", "step"));
  EXPECT_EQ(depth, 0);
}

}  // namespace
}  // namespace fusor::test
