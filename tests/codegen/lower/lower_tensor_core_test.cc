// Contractions on tensor cores, in the kernel interpreter and in the emulator.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/io/printer.h"
#include "ir/target/conv_problem.h"
#include "tests/fakes/emulated_gpu.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_contraction.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A body, its kernel, and its results in the interpreter.
class TensorCoreCase {
 public:
  TensorCoreCase(std::unique_ptr<ir::Graph> body, uint64_t seed)
      : body_(std::move(body)),
        lowered_(LowerTensorCore(*body_, ir::FindTarget("nvidia-h200"), false)),
        inputs_(test::RandomInputs(*body_, seed)) {
    Verify(lowered_.kernel);
    CheckResults(lowered_);
  }

  const ir::Graph& body() const { return *body_; }
  const Kernel& kernel() const { return lowered_.kernel; }
  std::vector<ir::Tensor>& inputs() { return inputs_; }

  std::vector<ir::Tensor> Expected(
      ir::EvalMode mode = ir::EvalMode::kTyped) const {
    return ir::Interpret(*body_, inputs_, mode);
  }

  std::vector<ir::Tensor> Interpreted() {
    Fill();
    std::vector<void*> pointers;
    for (auto& bytes : storage_) pointers.push_back(bytes.data());
    InterpretKernel(lowered_.kernel, pointers.data());
    return Results();
  }

  std::vector<ir::Tensor> Emulated(const test::EmulatedModule& module,
                                   size_t index) {
    Fill();
    std::vector<test::EmulatedBuffer> buffers;
    for (size_t b = 0; b < storage_.size(); ++b) {
      const KernelBuffer& buffer = lowered_.kernel.buffers[b];
      buffers.push_back({storage_[b].data(), buffer.num_bytes(), buffer.written,
                         !buffer.written});
    }
    EXPECT_EQ(
        module.Run(index, CudaLaunches(lowered_.kernel), buffers, index + 1),
        "");
    return Results();
  }

 private:
  void Fill() {
    storage_.clear();
    for (const ir::Tensor& input : inputs_) {
      storage_.push_back(ir::TensorBytes(input));
    }
    for (size_t b = storage_.size(); b < lowered_.kernel.buffers.size(); ++b) {
      storage_.emplace_back(lowered_.kernel.buffers[b].num_bytes());
    }
  }

  std::vector<ir::Tensor> Results() const {
    std::vector<ir::Tensor> results;
    for (size_t i = 0; i < body_->outputs().size(); ++i) {
      results.push_back(ir::LoadTensor(body_->outputs()[i].value->type(),
                                       storage_[inputs_.size() + i]));
    }
    return results;
  }

  std::unique_ptr<ir::Graph> body_;
  LoweredKernel lowered_;
  std::vector<ir::Tensor> inputs_;
  std::vector<std::vector<uint8_t>> storage_;  // by kernel buffer
};

test::EmulatedModule ModuleOf(const std::vector<TensorCoreCase>& cases,
                              MatrixUnit unit) {
  std::vector<std::string> texts;
  for (const TensorCoreCase& c : cases) {
    texts.push_back(PrintCuda(c.kernel(), unit));
  }
  return test::EmulatedModule(texts);
}

TEST(LowerTensorCore, RandomContractionsAgreeWithTheInterpreter) {
  std::vector<TensorCoreCase> cases;
  for (uint64_t seed = 0; seed < 48; ++seed) {
    cases.emplace_back(test::RandomTensorCoreContraction(seed), seed);
  }
  const test::EmulatedModule mma = ModuleOf(cases, MatrixUnit::kMma);
  const test::EmulatedModule wgmma = ModuleOf(cases, MatrixUnit::kWgmma);
  for (size_t c = 0; c < cases.size() && !HasFailure(); ++c) {
    SCOPED_TRACE(ir::Print(cases[c].body()));
    // Kernels do not round what they compute of a factor in registers.
    const auto expected = cases[c].Expected(ir::EvalMode::kExact);
    const double tolerance = test::ContractionTolerance(cases[c].body());
    const auto expect = [&](const std::vector<ir::Tensor>& actual,
                            const char* where) {
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT(test::MaxRelativeError(actual[i], expected[i]), tolerance)
            << where << ", output " << i;
      }
    };
    expect(cases[c].Interpreted(), "interpreter");
    expect(cases[c].Emulated(mma, c), "mma.sync");
    expect(cases[c].Emulated(wgmma, c), "wgmma");
  }
}

// Three directions of a 1x1 convolution with 64 -> 128 channels; the weight
// gradient's sums are in chunks.
constexpr const char* kDirections[] = {
    R"(graph forward {
      %x = data : bf16[2,64,16,16]{acdb}
      %w = data : bf16[128,64,1,1]{acdb}
      %y = conv2d(%x, %w) : bf16[2,128,16,16]{acdb}
      return %y as "y"
    })",
    R"(graph grad_input {
      %dy = data : bf16[2,128,16,16]{acdb}
      %w = data : bf16[128,64,1,1]{acdb}
      %dx = conv2d_grad_input(%dy, %w) {input_shape=[2,64,16,16]}
        : bf16[2,64,16,16]{acdb}
      return %dx as "dx"
    })",
    R"(graph grad_weight {
      %x = data : bf16[8,64,16,16]{acdb}
      %dy = data : bf16[8,128,16,16]{acdb}
      %dw = conv2d_grad_weight(%x, %dy) {weight_shape=[128,64,1,1]}
        : bf16[128,64,1,1]{acdb}
      return %dw as "dw"
    })"};

// Sums of small integers are exact in any order.
TEST(LowerTensorCore, SumsOfIntegersAreExact) {
  std::vector<TensorCoreCase> cases;
  for (const char* text : kDirections) {
    cases.emplace_back(test::ParseOrDie(text), 1);
    for (ir::Tensor& input : cases.back().inputs()) {
      for (double& value : input.data) value = std::floor(value);
    }
  }
  EXPECT_TRUE(std::ranges::any_of(
      cases[2].kernel().buffers,
      [](const KernelBuffer& buffer) { return buffer.name == "partial"; }));
  for (const MatrixUnit unit : {MatrixUnit::kMma, MatrixUnit::kWgmma}) {
    const test::EmulatedModule module = ModuleOf(cases, unit);
    for (size_t c = 0; c < cases.size(); ++c) {
      SCOPED_TRACE(kDirections[c]);
      const auto expected = cases[c].Expected();
      EXPECT_EQ(cases[c].Interpreted()[0].data, expected[0].data);
      EXPECT_EQ(cases[c].Emulated(module, c)[0].data, expected[0].data);
    }
  }
}

// The result has 67 tiles of rows: a prime, and more than one block adds.
TEST(LowerTensorCore, AddsColumnSumsInGroups) {
  TensorCoreCase c(test::ParseOrDie(R"(graph sums {
    %a = data : f16[8576,64]
    %b = data : f16[64,64]
    %y = matmul(%a, %b) : f16[8576,64]
    %wide = cast(%y) {dtype="f32"} : f32[8576,64]
    %sum = reduce(%wide) {kind="sum", dims=[0]} : f32[64]
    %mean = mul(%sum, %sum) : f32[64]
    return %mean as "mean", %y as "y"
  })"),
                   1);
  for (ir::Tensor& input : c.inputs()) {
    for (double& value : input.data) value = std::floor(value);
  }
  EXPECT_TRUE(std::ranges::any_of(
      c.kernel().buffers,
      [](const KernelBuffer& buffer) { return buffer.name == "group_sums"; }));
  const auto expected = c.Expected();
  const auto interpreted = c.Interpreted();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(interpreted[i].data, expected[i].data) << i;
  }
}

// The last tiles of rows and columns, and the only step, are not whole. Threads
// copy 16 bytes or zeros.
TEST(LowerTensorCore, RemaindersAreCopiedAsynchronously) {
  const TensorCoreCase c(test::ParseOrDie(R"(graph forward {
    %x = data : f16[3,24,7,7]{acdb}
    %w = data : f16[144,24,1,1]{acdb}
    %y = conv2d(%x, %w) : f16[3,144,7,7]{acdb}
    return %y as "y"
  })"),
                         1);
  const std::string text = PrintCuda(c.kernel());
  const std::string body = text.substr(text.find("extern \"C\""));
  EXPECT_THAT(body, ContainsRegex("CopyAsync\\(.* < 147 && .* < 24\\);"));
  EXPECT_THAT(body, ContainsRegex("CopyAsync\\(.* < 144 && .* < 24\\);"));
  EXPECT_THAT(body, Not(HasSubstr("active")));
  EXPECT_THAT(body, HasSubstr("Dot<F16, 2, 32,"));
}

// Returns the text without all occurrences of `what` in its last part, which
// starts with `from`.
std::string Without(std::string text, std::string_view what,
                    std::string_view from) {
  size_t at = text.find(from);
  EXPECT_NE(text.find(what, at), std::string::npos) << what;
  while ((at = text.find(what, at)) != std::string::npos) {
    text.erase(at, what.size());
  }
  return text;
}

// Returns what the emulator says about the texts of a kernel, which differ
// after the prelude.
std::vector<std::string> ProblemsOf(const TensorCoreCase& c,
                                    const std::vector<std::string>& texts) {
  const test::EmulatedModule module(texts);
  std::vector<std::string> problems;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<std::vector<uint8_t>> storage;
    std::vector<test::EmulatedBuffer> buffers;
    for (const KernelBuffer& buffer : c.kernel().buffers) {
      storage.emplace_back(buffer.num_bytes());
      buffers.push_back({storage.back().data(), buffer.num_bytes(),
                         buffer.written, !buffer.written});
    }
    problems.push_back(module.Run(i, CudaLaunches(c.kernel()), buffers));
  }
  return problems;
}

// Expects that the kernel has that many barriers, and that the emulator finds a
// race without any of them.
void ExpectEachBarrierIsNeeded(const TensorCoreCase& c, size_t barriers,
                               MatrixUnit unit) {
  constexpr std::string_view kBarrier = "__syncthreads();";
  const std::string text = PrintCuda(c.kernel(), unit);
  std::vector<std::string> damaged;
  for (size_t at = text.find("extern \"C\"");
       (at = text.find(kBarrier, at)) != std::string::npos; ++at) {
    damaged.push_back(text);
    damaged.back().replace(at, kBarrier.size(), "");
  }
  ASSERT_EQ(damaged.size(), barriers);
  EXPECT_THAT(ProblemsOf(c, damaged),
              Each(AnyOf(HasSubstr("shared memory and races with"),
                         HasSubstr("shared memory without a fence after"))));
}

TEST(LowerTensorCore, TheEmulatorFindsMissingBarriers) {
  for (const MatrixUnit unit : {MatrixUnit::kMma, MatrixUnit::kWgmma}) {
    ExpectEachBarrierIsNeeded({test::ParseOrDie(kDirections[0]), 1}, 3, unit);
  }
}

constexpr const char* kFiveSteps = R"(graph g {
  %a = data : f16[128,320]
  %b = data : f16[320,64]
  %y = matmul(%a, %b) : f16[128,64]
  return %y as "y"
})";

// Two barriers in the loop over pairs of steps, one before the last step, one
// after it, and one after its sums are stored.
TEST(LowerTensorCore, TheEmulatorFindsMissingBarriersOfTwoHalves) {
  for (const MatrixUnit unit : {MatrixUnit::kMma, MatrixUnit::kWgmma}) {
    ExpectEachBarrierIsNeeded({test::ParseOrDie(kFiveSteps), 1}, 5, unit);
  }
}

TEST(LowerTensorCore, TheEmulatorFindsWhatWarpGroupsLack) {
  const TensorCoreCase c(test::ParseOrDie(kFiveSteps), 1);
  const std::string text = PrintCuda(c.kernel(), MatrixUnit::kWgmma);
  const auto without = [&](std::string_view what, std::string_view from) {
    return Without(text, what, from);
  };
  constexpr std::string_view kKernel = "extern \"C\"";
  constexpr std::string_view kDot = "void GroupDot(";
  std::string late = text;  // the fence is behind the barrier
  const size_t fence = late.find("PublishFactors();", late.find(kKernel));
  const size_t barrier = late.find("__syncthreads();", fence);
  late.insert(barrier + 16, " PublishFactors();");
  late.erase(fence, 17);
  const auto problem = [&](const std::string& damaged) {
    return ProblemsOf(c, {damaged})[0];
  };
  EXPECT_THAT(problem(without("PublishFactors();", kKernel)),
              HasSubstr("without a fence after thread"));
  EXPECT_THAT(problem(late), HasSubstr("without a fence after thread"));
  EXPECT_THAT(problem(without("BeginProducts(sums[0]);", kDot)),
              HasSubstr("without a fence after its sums were set"));
  EXPECT_THAT(problem(without("CommitProducts();", kDot)),
              HasSubstr("products that it does not wait for"));
  EXPECT_THAT(problem(without("WaitForProducts(r0);", kKernel)),
              HasSubstr("products that it does not wait for"));
}

// Tiles of 128x64 need two halves of 24 KB, which a block has without asking.
// The sums of a tile of 128x128 need more.
TEST(LowerTensorCore, LargeTilesHaveDynamicSharedMemory) {
  const auto launch = [](const std::string& text) {
    return CudaLaunches(TensorCoreCase(test::ParseOrDie(text), 1).kernel())[0];
  };
  std::string wide = kFiveSteps;
  for (size_t at; (at = wide.find(",64]")) != std::string::npos;) {
    wide.replace(at, 4, ",128]");
  }
  EXPECT_EQ(launch(kFiveSteps).dynamic_bytes, 0);
  EXPECT_EQ(launch(wide).dynamic_bytes, 128 * (128 + 8) * 4);
}

// An instruction loads 16 bytes of each of eight rows.
TEST(LowerTensorCore, TheEmulatorFindsBankConflictsOfMatrices) {
  for (const char* direction : kDirections) {
    const TensorCoreCase c(test::ParseOrDie(direction), 1);
    std::string linear = PrintCuda(c.kernel(), MatrixUnit::kMma);
    const std::string_view swizzled = "index ^ (index >> 6 & 7) << 3";
    linear.replace(linear.find(swizzled), swizzled.size(), "index");
    EXPECT_THAT(ProblemsOf(c, {linear})[0],
                HasSubstr("loads a matrix with a bank conflict"));
  }
}

TEST(LowerTensorCore, FitsConvolutionsOfWholeVectors) {
  const auto fits = [](const std::string& text) {
    return ir::FitsTensorCores(*test::ParseOrDie(text)->nodes()[0]);
  };
  for (const char* text : kDirections) EXPECT_TRUE(fits(text)) << text;
  const auto with = [](std::string from, std::string to) {
    std::string text = kDirections[0];
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
         at += to.size()) {
      text.replace(at, from.size(), to);
    }
    return text;
  };
  EXPECT_FALSE(fits(with("bf16", "f32")));
  EXPECT_FALSE(fits(with("128", "100")));
  EXPECT_TRUE(fits(with("128", "24")));
  EXPECT_TRUE(fits(with("16,16", "7,7")));
  EXPECT_FALSE(fits(R"(graph pixel {
    %x = data : f16[1,64,1,1]{acdb}
    %w = data : f16[128,64,1,1]{acdb}
    %y = conv2d(%x, %w) : f16[1,128,1,1]{acdb}
    return %y as "y"
  })"));
}

TEST(LowerTensorCore, FitsMatmulsOfWholeVectors) {
  const auto fits = [](const std::string& a, const std::string& b,
                       const std::string& y, const std::string& attributes) {
    const auto graph = test::ParseOrDie(fmt::format(
        R"(graph g {{
          %a = data : {}
          %b = data : {}
          %y = matmul(%a, %b) {} : {}
          return %y as "y"
        }})",
        a, b, attributes, y));
    return ir::FitsTensorCores(*graph->nodes()[0]);
  };
  EXPECT_TRUE(fits("f16[3,24]", "f16[24,40]", "f16[3,40]", ""));
  EXPECT_TRUE(fits("f16[24,16]", "f16[40,24]", "f16[16,40]",
                   "{transpose_a=true, transpose_b=true}"));
  EXPECT_TRUE(fits("bf16[2,4,3,24]", "bf16[2,4,24,8]", "bf16[2,4,3,8]", ""));
  EXPECT_FALSE(fits("f32[3,24]", "f32[24,40]", "f32[3,40]", ""));
  EXPECT_FALSE(fits("f16[1,24]", "f16[24,40]", "f16[1,40]", ""));
  EXPECT_FALSE(fits("f16[3,24]", "f16[24,100]", "f16[3,100]", ""));
  EXPECT_FALSE(fits("f16[3,20]", "f16[20,40]", "f16[3,40]", ""));
}

// The second fusion returns what the convolution reads.
TEST(LowerTensorCore, FitsLibraryFusionsThatReturnNoOperand) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f16[1,64,8,8]{acdb}
    %w = data : f16[64,64,1,1]{acdb}
    %y, %s = fusion(%x, %w) {kind="library"} : f16[1,64,8,8]{acdb}, f32[64] {
      %x = data : f16[1,64,8,8]{acdb}
      %w = data : f16[64,64,1,1]{acdb}
      %y = conv2d(%x, %w) : f16[1,64,8,8]{acdb}
      %wide = cast(%y) {dtype="f32"} : f32[1,64,8,8]{acdb}
      %s = reduce(%wide) {dims=[0,2,3], kind="sum"} : f32[64]
      return %y as "y", %s as "s"
    }
    %z, %r = fusion(%x, %w) {kind="library"}
           : f16[1,64,8,8]{acdb}, f16[1,64,8,8]{acdb} {
      %x = data : f16[1,64,8,8]{acdb}
      %w = data : f16[64,64,1,1]{acdb}
      %r = relu(%x) : f16[1,64,8,8]{acdb}
      %z = conv2d(%r, %w) : f16[1,64,8,8]{acdb}
      return %z as "z", %r as "r"
    }
    return %y as "y", %s as "s", %z as "z", %r as "r"
  })");
  EXPECT_TRUE(ir::FitsTensorCores(*graph->nodes()[0]));
  EXPECT_FALSE(ir::FitsTensorCores(*graph->nodes()[1]));
}

}  // namespace
}  // namespace fusor::codegen
