// Injects faults into kernel text. The emulator must find them.

#include "tests/fakes/emulated_gpu.h"

#include <gmock/gmock.h>

#include <array>

#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::CudaLaunch;
using ir::DType;
using ir::ScalarOp;
using ::testing::HasSubstr;

// Runs `body` in two blocks of 64 threads on float in[256] and out[256]. Only
// `in` is initialised.
std::string Emulate(const std::string& body) {
  codegen::Kernel empty;
  empty.name = "empty";
  empty.phases.emplace_back();
  std::string text = PrintCuda(empty);
  text =
      text.substr(0, text.find("extern \"C\"")) +
      "extern \"C\" __global__ void fusor_p0(const float* in, float* out) {\n"
      "  __shared__ __align__(16) float shared[64];\n"
      "  FUSOR_ON_SHARED(shared, 256);\n"
      "  const int t = threadIdx.x, b = blockIdx.x;\n" +
      body + "}\n";
  constexpr int64_t kBytes = 256 * sizeof(float);
  alignas(64) std::array<float, 1024> memory{};
  const EmulatedBuffer buffers[] = {{memory.data() + 64, kBytes, false, true},
                                    {memory.data() + 512, kBytes, true, false}};
  const CudaLaunch launch{"fusor_p0", 2, 64};
  return EmulatedModule(std::span(&text, 1))
      .Run(0, std::span(&launch, 1), buffers);
}

TEST(EmulatedGpu, SoundKernelsPass) {
  EXPECT_EQ(Emulate("Put(out + b * 64 + t, Get(in + t));"), "");
  EXPECT_EQ(Emulate("PutShared(shared + t, Get(in + t));\n"
                    "__syncthreads();\n"
                    "Put(out + b * 64 + t, GetShared(shared + 63 - t));"),
            "");
  // A thread may overwrite what it has read itself. Other threads may do so
  // after a barrier.
  EXPECT_EQ(Emulate("Put(out + b * 64 + t, 1.0f);\n"
                    "const float x = Get(out + b * 64 + t);\n"
                    "__syncthreads();\n"
                    "if (t == 0) Put(out + b * 64 + 1, x);"),
            "");
}

TEST(EmulatedGpu, AccessesOutsideBuffers) {
  EXPECT_THAT(Emulate("Get(in + 200 + t);"),
              HasSubstr("reads 4 bytes outside"));
  EXPECT_THAT(Emulate("Get(in - 1);"), HasSubstr("reads 4 bytes outside"));
  EXPECT_THAT(Emulate("Put(out + 256 + b * 64 + t, 1.0f);"),
              HasSubstr("writes 4 bytes outside"));
  EXPECT_THAT(Emulate("PutShared(shared + t + 1, 1.0f);"),
              HasSubstr("writes 4 bytes at byte 256 of shared memory, which "
                        "has 256"));
}

TEST(EmulatedGpu, AddressesThatAreNotAligned) {
  EXPECT_THAT(
      Emulate("float r[4]; Load<F32, 4>(r, in + 1);"),
      HasSubstr("reads 16 bytes at an address that they do not divide"));
}

TEST(EmulatedGpu, WritesToOperands) {
  EXPECT_THAT(Emulate("Put(const_cast<float*>(in) + b * 64 + t, 1.0f);"),
              HasSubstr("writes b0, which is an operand"));
}

TEST(EmulatedGpu, ReadsOfWhatNobodyHasWritten) {
  EXPECT_THAT(Emulate("Get(out + t);"), HasSubstr("which nobody has written"));
}

TEST(EmulatedGpu, RacesBetweenBlocks) {
  EXPECT_THAT(Emulate("Put(out + t, 1.0f);"), HasSubstr("races with thread"));
  EXPECT_THAT(Emulate("if (b == 0) Put(out + t, 1.0f);\n"
                      "__syncthreads();\n"
                      "if (b == 1 || t == 0) Get(out);"),
              ::testing::AnyOf(HasSubstr("races with"),
                               HasSubstr("nobody has written")));
}

TEST(EmulatedGpu, RacesBetweenThreads) {
  EXPECT_THAT(Emulate("Put(out + b * 64 + t / 2, 1.0f);"),
              HasSubstr("races with thread"));
  EXPECT_THAT(Emulate("PutShared(shared + t, 1.0f);\n"
                      "GetShared(shared + 63 - t);"),
              HasSubstr("of shared memory and races with"));
  EXPECT_THAT(Emulate("Put(out + b * 64 + t, 1.0f);\n"
                      "__syncthreads();\n"
                      "Get(out + b * 64 + t);\n"
                      "Get(out + b * 64 + (t + 1) % 64);\n"
                      "Put(out + b * 64 + t, 2.0f);"),
              HasSubstr("races with"));
}

TEST(EmulatedGpu, BarriersThatNotAllThreadsReach) {
  EXPECT_THAT(Emulate("if (t < 10) __syncthreads();"),
              HasSubstr("10 of 64 threads wait"));
  EXPECT_THAT(Emulate("if (t < 10) __shfl_down_sync(0xffffffffu, 1, 1, 32);"),
              HasSubstr("10 of 64 threads wait"));
}

TEST(EmulatedGpu, ShufflesOutsideTheirMask) {
  EXPECT_THAT(Emulate("__shfl_sync(0xfu, 1, t % 4, 32);"),
              HasSubstr("shuffles without being in the mask"));
  EXPECT_THAT(Emulate("if (t % 32 < 4) __shfl_sync(0xfu, 1, 9, 32);"),
              HasSubstr("shuffles from outside the mask"));
}

TEST(EmulatedGpu, BankConflicts) {
  const auto store = [](const std::string& place) {
    return Emulate(
        "__shared__ __align__(16) float wide[512];\n"
        "FUSOR_ON_SHARED(wide, 2048);\n"
        "PutShared(wide + (" +
        place + "), 1.0f);\n");
  };
  EXPECT_EQ(store("t"), "");
  EXPECT_EQ(store("t % 32 * 2 + t / 32"), "");
  EXPECT_THAT(store("t % 32 * 8 + t / 32"),
              HasSubstr("writes shared memory with a bank conflict of 4 ways"));
}

TEST(EmulatedGpu, SaysWhatTheCompilerSays) {
  EXPECT_THROW(Emulate("no_such_thing();"), std::runtime_error);
}

// Sums rows of 512 columns, then all elements. Removes each barrier of the
// reductions in turn.
TEST(EmulatedGpu, EveryBarrierOfAReductionIsNeeded) {
  codegen::Kernel k;
  k.name = "sum";
  k.lanes = 512;
  k.width = 4;
  k.buffers = {{"x", DType::kF32, 1024}, {"y", DType::kF32, 4, true}};
  k.axes = {{"r", 2, false, true}, {"c", 512, true}};
  k.registers = {
      {DType::kF32, true}, {DType::kF32, true}, {DType::kF32}, {DType::kF32}};
  std::vector<Stmt> body;
  for (int i = 0; i < 2; ++i) {  // twice, so that shared memory is reused
    body.push_back(Init(ScalarOp::kAdd, 0));
    body.push_back(Loop(1, {Load(1, 0, {0, {{0, 512}, {1, 1}}}),
                            Accumulate(ScalarOp::kAdd, 0, 1)}));
    body.push_back(ReduceLanes(ScalarOp::kAdd, 2, 0));
    body.push_back(ReduceBlock(ScalarOp::kAdd, 3, 2));
    body.push_back(Store(1, {i, {{0, 2}}}, 3));
  }
  k.phases.push_back({{0}, body});
  Verify(k);
  alignas(64) std::array<float, 1024> x{};
  alignas(64) std::array<float, 4> y{};
  const EmulatedBuffer buffers[] = {{x.data(), sizeof(x), false, true},
                                    {y.data(), sizeof(y), true, false}};
  const auto run = [&](const std::string& text) {
    return EmulatedModule(std::span(&text, 1)).Run(0, CudaLaunches(k), buffers);
  };
  const std::string text = PrintCuda(k);
  EXPECT_EQ(run(text), "");
  const std::string barrier = "__syncthreads();";
  int barriers = 0;
  for (size_t at = text.find(barrier); at != std::string::npos;
       at = text.find(barrier, at + 1)) {
    std::string without = text;
    without.replace(at, barrier.size(), "");
    EXPECT_NE(run(without), "") << "barrier " << barriers;
    ++barriers;
  }
  EXPECT_GE(barriers, 7);
}

}  // namespace
}  // namespace fusor::test
