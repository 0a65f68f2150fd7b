// Kernels compiled by NVRTC. It compiles for a GPU on machines without it.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "codegen/compiler.h"
#include "codegen/lower/lower.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using ir::DType;
using ir::ScalarOp;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Creates a compiler. NVRTC's warnings about the printed text fail the test.
std::unique_ptr<codegen::TargetCompiler> Compiler(const std::string& target) {
  return runtime::LoadBackend("cuda").CreateCompiler(
      target,
      {.warning = [](const std::string& text) { ADD_FAILURE() << text; }});
}

// Computes the maxima of the rows of x f16[8,1024] with 128 threads each.
Kernel RowMaxima() {
  Kernel k;
  k.name = "row_maxima";
  k.lanes = 1024;
  k.width = 8;
  k.buffers = {{"x", DType::kF16, 8192}, {"y", DType::kF32, 8, true}};
  k.axes = {{"r", 8}, {"c", 1024, true}};
  k.registers = {{DType::kF32, true}, {DType::kF16, true}, {DType::kF32}};
  k.phases.push_back(
      {{0},
       {Init(ScalarOp::kMaximum, 0),
        Loop(1, {Load(1, 0, {0, {{0, 1024}, {1, 1}}}),
                 Accumulate(ScalarOp::kMaximum, 0, 1)}),
        ReduceLanes(ScalarOp::kMaximum, 2, 0), Store(1, {0, {{0, 1}}}, 2)}});
  return k;
}

std::string FailureOf(const std::function<void()>& act, ErrorCode code) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code);
    return e.what();
  }
  return "";
}

TEST(NvrtcTest, MakesCubinsForEveryGpu) {
  for (const std::string& name : ir::TargetNames()) {
    if (!ir::FindTarget(name).simt) continue;
    const auto compiler = Compiler(name);
    const std::string cubin = compiler->CompileKernel(RowMaxima());
    EXPECT_THAT(cubin, StartsWith("\177ELF")) << name;
    Kernel renamed = RowMaxima();
    renamed.name = "another_name";
    EXPECT_EQ(compiler->CompileKernel(renamed), cubin) << name;
  }
}

TEST(NvrtcTest, FactsNameWhatTheCodeDependsOn) {
  const codegen::CodegenFingerprint h200 = Compiler("nvidia-h200")->Codegen();
  EXPECT_THAT(h200.compiler, StartsWith("nvrtc 1"));
  EXPECT_EQ(h200.device, "sm_90a");
  EXPECT_THAT(h200.options, HasSubstr("--prec-div=true"));
  EXPECT_EQ(Compiler("nvidia-a100")->Codegen().device, "sm_80");
  EXPECT_EQ(Compiler("nvidia-b200")->Codegen().device, "sm_100");
}

TEST(NvrtcTest, ShowsTextPtxAndResources) {
  const auto artifacts = Compiler("nvidia-h200")->KernelArtifacts(RowMaxima());
  ASSERT_GE(artifacts.size(), 3);
  EXPECT_EQ(artifacts[0].suffix, ".cu");
  EXPECT_THAT(artifacts[0].text,
              StartsWith("// " + KernelStamp(RowMaxima()) + "\n"));
  EXPECT_EQ(artifacts[1].suffix, ".ptx");
  EXPECT_THAT(artifacts[1].text, HasSubstr(".entry fusor_p0("));
  // Loads eight halves at once.
  EXPECT_THAT(artifacts[1].text, HasSubstr("ld.global.v4"));
  EXPECT_EQ(artifacts.back().suffix, ".resources");
  EXPECT_THAT(artifacts.back().text,
              ContainsRegex("fusor_p0: [1-9][0-9]* registers, 0 bytes of "
                            "stack\n"));
}

// Expects that a contraction computes on tensor cores, from operands that are
// copied to shared memory while it computes, or that it computes, and that it
// holds its sums in registers. `columns`: of an instruction of a group of warps
// on an H200; 0 if single warps compute.
void ExpectTensorCoreCode(const ir::Graph& body, int columns) {
  for (const char* target : {"nvidia-h200", "nvidia-b200"}) {
    const auto compiler = Compiler(target);
    const auto artifacts = compiler->KernelArtifacts(
        codegen::LowerTensorCore(body, compiler->target(), false).kernel);
    const std::string& ptx = artifacts[1].text;
    if (compiler->target().has_wgmma() && columns > 0) {
      EXPECT_THAT(ptx,
                  HasSubstr(fmt::format(
                      "wgmma.mma_async.sync.aligned.m64n{}k16.f32.", columns)));
      EXPECT_THAT(ptx, HasSubstr("fence.proxy.async.shared::cta;"));
      EXPECT_THAT(ptx, Not(HasSubstr("mma.sync")));
    } else {
      EXPECT_THAT(ptx, HasSubstr("mma.sync.aligned.m16n8k16.row.col.f32."));
      EXPECT_THAT(ptx, HasSubstr("ldmatrix.sync.aligned.m8n8.x4."));
    }
    EXPECT_THAT(ptx, HasSubstr("cp.async.cg.shared.global"));
    EXPECT_THAT(artifacts.back().text,
                ContainsRegex("fusor_p0: ([1-9][0-9]|1[01][0-9]|12[0-8]) "
                              "registers, 0 bytes of stack\n"))
        << target;
  }
}

// A 1x1 convolution of 256 -> 64 channels and its gradients.
TEST(NvrtcTest, TensorCoreKernelsKeepTheirSumsInRegisters) {
  const std::pair<const char*, int> cases[] = {{R"(graph forward {
             %x = data : bf16[16,256,28,28]{acdb}
             %w = data : bf16[64,256,1,1]{acdb}
             %y = conv2d(%x, %w) : bf16[16,64,28,28]{acdb}
             return %y as "y"
           })",
                                                64},
                                               {R"(graph grad_input {
             %dy = data : f16[16,64,28,28]{acdb}
             %w = data : f16[64,256,1,1]{acdb}
             %dx = conv2d_grad_input(%dy, %w) {input_shape=[16,256,28,28]}
               : f16[16,256,28,28]{acdb}
             return %dx as "dx"
           })",
                                                128},
                                               {R"(graph grad_weight {
             %x = data : bf16[16,256,28,28]{acdb}
             %dy = data : bf16[16,64,28,28]{acdb}
             %dw = conv2d_grad_weight(%x, %dy) {weight_shape=[64,256,1,1]}
               : bf16[64,256,1,1]{acdb}
             return %dw as "dw"
           })",
                                                64},
                                               // Tiles extend beyond rows,
                                               // columns and sums.
                                               {R"(graph forward {
             %x = data : f16[3,24,7,7]{acdb}
             %w = data : f16[144,24,1,1]{acdb}
             %y = conv2d(%x, %w) : f16[3,144,7,7]{acdb}
             return %y as "y"
           })",
                                                0}};
  for (const auto& [text, columns] : cases) {
    SCOPED_TRACE(text);
    ExpectTensorCoreCode(*ParseOrDie(text), columns);
  }
}

// A convolution of a normalised image, with sums of its result.
TEST(NvrtcTest, TensorCoreKernelsWithStatisticsKeepTheirSumsInRegisters) {
  const auto graph = ParseOrDie(R"(graph g {
    %x = data : f16[16,256,28,28]{acdb}
    %y = data : f16[16,256,28,28]{acdb}
    %scale = data : f16[256]
    %shift = data : f16[256]
    %w = data : f16[64,256,1,1]{acdb}
    %z = conv2d(%x, %w) : f16[16,64,28,28]{acdb}
    return %z as "z"
  })");
  const auto input = [&](size_t i) { return graph->input(i); };
  ir::LibraryFusion fusion(*graph->nodes()[0]);
  fusion.AddChannelSums();
  fusion.SetPrologue({input(1), input(2), input(3)});
  const ir::Node* node = std::move(fusion).Build(*graph, nullptr);
  ExpectTensorCoreCode(*node->body(), 64);
}

// A data gradient that is masked, with sums of the gradient of a normalisation.
TEST(NvrtcTest, TensorCoreKernelsWithMasksKeepTheirSumsInRegisters) {
  const auto graph = ParseOrDie(R"(graph g {
    %dy = data : f16[16,64,28,28]{acdb}
    %w = data : f16[64,256,1,1]{acdb}
    %x = data : f16[16,256,28,28]{acdb}
    %shortcut = data : f16[16,256,28,28]{acdb}
    %mean = data : f32[256]
    %deviation = data : f32[256]
    %scale = data : f32[256]
    %bias = data : f32[256]
    %dx = conv2d_grad_input(%dy, %w) {input_shape=[16,256,28,28]}
        : f16[16,256,28,28]{acdb}
    return %dx as "dx"
  })");
  const auto input = [&](size_t i) { return graph->input(i); };
  const ir::SavedNorm norm{input(2), input(4), input(5), input(6), input(7)};
  ir::LibraryFusion fusion(*graph->nodes()[0]);
  fusion.MaskAndSum({&norm, 1}, input(3));
  const ir::Node* node = std::move(fusion).Build(*graph, nullptr);
  ExpectTensorCoreCode(*node->body(), 128);
}

TEST(NvrtcTest, ShowsSassWhereThereIsADisassembler) {
  const auto artifacts = Compiler("nvidia-h200")->KernelArtifacts(RowMaxima());
  const std::vector<std::string> lines =
      runtime::LoadBackend("cuda").Diagnose();
  if (artifacts.size() == 3) {
    EXPECT_THAT(lines, Contains(StartsWith("nvdisasm: missing")));
    GTEST_SKIP() << "no nvdisasm";
  }
  EXPECT_THAT(lines, Contains(AllOf(StartsWith("nvdisasm: "),
                                    Not(HasSubstr("missing")))));
  EXPECT_EQ(artifacts[2].suffix, ".sass");
  EXPECT_THAT(artifacts[2].text,
              AllOf(HasSubstr(".text.fusor_p0"), HasSubstr("LDG.E.128"),
                    HasSubstr("EXIT")));
}

TEST(NvrtcTest, EditedTextStandsInForItsKernel) {
  const auto compiler = Compiler("nvidia-h200");
  const Kernel kernel = RowMaxima();
  std::string text = compiler->KernelArtifacts(kernel)[0].text;
  EXPECT_EQ(compiler->CompileArtifact(kernel, text, "mine.cu"),
            compiler->CompileKernel(kernel));
  text.replace(text.find("MaxOp, 128"), 5, "MinOp");
  EXPECT_NE(compiler->CompileArtifact(kernel, text, "mine.cu"),
            compiler->CompileKernel(kernel));
  EXPECT_THAT(
      FailureOf([&] { compiler->CompileArtifact(kernel, "", "mine.cu"); },
                ErrorCode::kUsage),
      HasSubstr("mine.cu: no extern \"C\" __global__ function fusor_p0"));
  EXPECT_THAT(FailureOf(
                  [&] {
                    compiler->CompileArtifact(
                        kernel, "typedef int x;\nnonsense y;\n", "mine.cu");
                  },
                  ErrorCode::kUsage),
              StartsWith("mine.cu:2: "));
}

TEST(NvrtcTest, TellsWhatNvrtcWarnsOf) {
  std::vector<std::string> warnings;
  const auto compiler = runtime::LoadBackend("cuda").CreateCompiler(
      "nvidia-h200",
      {.warning = [&](const std::string& text) { warnings.push_back(text); }});
  const Kernel kernel = RowMaxima();
  std::string text = compiler->KernelArtifacts(kernel)[0].text;
  EXPECT_THAT(warnings, ::testing::IsEmpty());
  text += "\n__device__ int Nothing(unsigned x) {\n  int y;\n  return y;\n}\n";
  compiler->CompileArtifact(kernel, text, "mine.cu");
  EXPECT_THAT(
      warnings,
      ::testing::ElementsAre(AllOf(
          ContainsRegex("^kernel row_maxima: NVRTC: mine.cu:[0-9]+: "),
          HasSubstr("used before its value is set"), Not(HasSubstr("\n")))));
}

TEST(NvrtcTest, RejectsTargetsThatAreNoGpu) {
  EXPECT_THAT(FailureOf([] { Compiler("cpu-avx2"); }, ErrorCode::kUsage),
              HasSubstr("target cpu-avx2 is not an NVIDIA GPU"));
}

TEST(NvrtcTest, OpensNoDeviceWithoutDriver) {
  runtime::Backend& cuda = runtime::LoadBackend("cuda");
  if (cuda.device_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(FailureOf([&] { cuda.OpenDevice(0, {}); }, ErrorCode::kDevice),
              HasSubstr("CUDA d"));
}

TEST(NvrtcTest, DoctorNamesEveryLibrary) {
  const std::vector<std::string> lines =
      runtime::LoadBackend("cuda").Diagnose();
  for (const char* library :
       {"NVRTC", "nvdisasm", "driver", "cuDNN", "cuBLASLt", "NCCL"}) {
    EXPECT_THAT(lines, Contains(StartsWith(library)));
  }
}

}  // namespace
}  // namespace fusor::test
