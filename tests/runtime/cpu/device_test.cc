#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>

#include "ir/support/error.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::ScalarOp;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Function>
std::string Failure(ErrorCode code, Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

TEST(CpuDeviceTest, SaysWhatItIs) {
  EXPECT_THAT(Cpu::Get().device().description(), HasSubstr("2 threads"));
  EXPECT_EQ(Cpu::Get().backend().name(), "cpu");
  EXPECT_EQ(Cpu::Get().backend().device_count(), 1);
  EXPECT_THAT(
      Cpu::Get().backend().Diagnose(),
      AllOf(Contains(HasSubstr("threads, target cpu-a")),
            Contains(StartsWith("llvm 19")), Contains(StartsWith("oneDNN ")),
            Contains(StartsWith("huge pages")),
            Contains(StartsWith("memory: "))));
}

TEST(CpuDeviceTest, RejectsOtherDevicesTargetsAndThreadCounts) {
  runtime::Backend& backend = Cpu::Get().backend();
  EXPECT_THAT(Failure(ErrorCode::kDevice, [&] { backend.OpenDevice(1, {}); }),
              HasSubstr("CPU device 1"));
  EXPECT_THAT(Failure(ErrorCode::kUsage,
                      [&] { backend.CreateCompiler("nvidia-h200", {}); }),
              HasSubstr("nvidia-h200 is not a CPU"));
  EXPECT_THAT(Failure(ErrorCode::kUsage,
                      [&] { backend.CreateCompiler("cpu-avx513", {}); }),
              HasSubstr("cpu-avx512"));
  EXPECT_THAT(Failure(ErrorCode::kUsage, [&] { backend.OpenDevice(0, {-1}); }),
              HasSubstr("-1 threads"));
  EXPECT_THAT(
      Failure(ErrorCode::kUsage, [&] { backend.OpenDevice(0, {100000}); }),
      HasSubstr("100000 threads: expected 0 (all cores) to 1024"));
  EXPECT_THAT(
      Failure(ErrorCode::kUsage, [&] { backend.CreateCompiler("", {100000}); }),
      HasSubstr("100000 threads"));
}

TEST(CpuDeviceTest, CompilersHaveTheThreadsAskedFor) {
  runtime::Backend& backend = Cpu::Get().backend();
  EXPECT_EQ(backend.CreateCompiler("", {3})->target().threads, 3);
  EXPECT_EQ(backend.CreateCompiler("", {})->target(), ir::DefaultCpuTarget());
}

TEST(CpuDeviceTest, CodeForTheOlderTargetRunsToo) {
  const auto compiler = Cpu::Get().backend().CreateCompiler("cpu-avx2", {1});
  // If cpu-avx2 is this machine's target, code is for the exact CPU.
  if (ir::DefaultCpuTarget().name != "cpu-avx2") {
    EXPECT_THAT(compiler->CodegenVersion(), HasSubstr("x86-64-v3"));
  }
  codegen::CompiledKernel compiled;
  codegen::Kernel& k = compiled.kernel;
  k.name = "negate";
  k.lanes = 8;
  k.buffers = {{"x", DType::kBF16, 21, true}};
  k.axes = {{"i", 21, true}};
  k.registers = {{DType::kBF16, true}};
  k.phases.push_back(
      {{0},
       {Load(0, 0, {0, {{0, 1}}}), Compute(ScalarOp::kNeg, 0, {0}),
        Store(0, {0, {{0, 1}}}, 0)}});
  compiled.binary = compiler->CompileKernel(k);
  const auto executable = Cpu::Get().device().LoadKernel(compiled);
  const auto memory = Cpu::Get().device().Allocate(42);
  std::vector<double> x;
  for (int i = 0; i < 21; ++i) x.push_back(i * 0.5);
  std::memcpy(memory->data(), ToBytes(DType::kBF16, x).data(), 42);
  void* arg = memory->data();
  Cpu::Get().device().CreateStream()->Launch(*executable, &arg, 1);
  for (double& value : x) value = -value;
  EXPECT_EQ(FromBytes(DType::kBF16,
                      std::string(static_cast<char*>(memory->data()), 42)),
            x);
}

TEST(CpuDeviceTest, MemoryIsZeroedAndAligned) {
  for (size_t bytes : {size_t{1}, size_t{5000}, (size_t{4} << 20) + 3}) {
    const auto memory = Cpu::Get().device().Allocate(bytes);
    EXPECT_EQ(memory->bytes(), bytes);
    const auto address = reinterpret_cast<uintptr_t>(memory->data());
    EXPECT_EQ(address % (bytes > (2 << 20) ? 2 << 20 : 4096), 0);
    const auto* data = static_cast<const char*>(memory->data());
    EXPECT_EQ(std::count(data, data + bytes, 0),
              static_cast<std::ptrdiff_t>(bytes));
  }
}

TEST(CpuDeviceTest, SaysAskedAndFreeBytesWhenMemoryIsShort) {
  runtime::Device& device = Cpu::Get().device();
  EXPECT_THAT(Failure(ErrorCode::kOutOfMemory,
                      [&] { device.Allocate(size_t{1} << 50); }),
              AllOf(HasSubstr("asked for 1125899906842624 bytes"),
                    HasSubstr("are free")));
  EXPECT_GT(device.free_bytes(), 0);
}

TEST(CpuDeviceTest, EventsTellTime) {
  runtime::Device& device = Cpu::Get().device();
  const auto stream = device.CreateStream();
  const auto start = device.CreateEvent(), end = device.CreateEvent();
  stream->Record(*start);
  const auto memory = device.Allocate(size_t{16} << 20);
  stream->Record(*end);
  end->Synchronize();
  EXPECT_GT(end->ElapsedMs(*start), 0);
  EXPECT_LT(end->ElapsedMs(*start), 60000);
}

TEST(CpuDeviceTest, RejectsBytesThatAreNoObject) {
  codegen::CompiledKernel compiled;
  compiled.kernel.name = "broken";
  compiled.kernel.phases.push_back({});
  for (const std::string bytes : {"", "no object at all", "\x7f\x45\x4c\x46"}) {
    compiled.binary = bytes;
    EXPECT_THAT(Failure(ErrorCode::kInternal,
                        [&] { Cpu::Get().device().LoadKernel(compiled); }),
                HasSubstr("broken"))
        << bytes;
  }
}

// Kernels flush subnormals, but the caller's arithmetic must not.
TEST(CpuDeviceTest, LaunchesLeaveTheCallersRoundingAlone) {
  codegen::Kernel k;
  k.name = "halve";
  k.lanes = 16;
  k.buffers = {{"x", DType::kF32, 16, true}};
  k.axes = {{"i", 16, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32}};
  k.phases.push_back(
      {{0},
       {Constant(1, 0.5), Load(0, 0, {0, {{0, 1}}}),
        Compute(ScalarOp::kMul, 0, {0, 1}), Store(0, {0, {{0, 1}}}, 0)}});
  const auto x = As<float>(
      Cpu::Get().Run(k, {Bytes(std::vector<float>(16, 0x1p-126f))})[0]);
  EXPECT_EQ(x[0], 0);
  volatile float smallest = 0x1p-126f;
  EXPECT_EQ(std::fpclassify(smallest * 0.5f), FP_SUBNORMAL);
}

}  // namespace
}  // namespace fusor::test
