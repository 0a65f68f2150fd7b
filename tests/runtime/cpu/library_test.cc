// Compares library calls with the interpreter in every layout that the backend
// offers.

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <limits>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/runtime/cpu/one_node.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::Attrs;
using ir::DType;
using ir::Layout;
using ir::Tensor;
using ir::TensorType;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Ints = std::vector<int64_t>;

// Cases with blocked, few, odd or grouped channels, strides, padding and
// dilation.
const ConvCase kConvCases[] = {
    {2, 16, 32, 9, 3, 1, 1, 1, 1},
    {2, 32, 16, 8, 1, 1, 0, 1, 1, true, true},
    {1, 64, 64, 14, 3, 1, 1, 1, 1, true, false},
    {2, 32, 48, 10, 3, 2, 1, 1, 1},
    {2, 16, 32, 9, 1, 2, 0, 1, 1},
    {2, 3, 64, 30, 7, 2, 3, 1, 1},
    {2, 3, 16, 12, 3, 1, 1, 1, 1, true, true},
    {1, 24, 40, 7, 3, 1, 1, 1, 1},
    {2, 5, 7, 8, 3, 2, 1, 1, 1, true, false},
    {1, 16, 16, 12, 3, 1, 2, 2, 1},
    {1, 32, 32, 8, 3, 1, 1, 1, 2},
    {2, 16, 16, 8, 3, 1, 1, 1, 16},
    {2, 32, 32, 11, 5, 2, 2, 1, 32},
    {1, 48, 48, 9, 7, 1, 3, 1, 48, true, false},
    {2, 20, 20, 8, 3, 1, 1, 1, 20},
    {2, 8, 32, 8, 3, 1, 1, 1, 8},
    {1, 1, 1, 5, 5, 1, 0, 1, 1},
    {3, 16, 16, 1, 1, 1, 0, 1, 1},
};

// oneDNN would divide by the number of pixels, which overflows to 0.
TEST(CpuLibraryTest, ImagesTooLargeForOneDnnAreNamed) {
  const ConvCase huge{1, 1, 1, 65536, 3, 1, 1, 1, 1};
  for (const auto& one : ConvNodes(huge, DType::kF32)) {
    const auto message = [&](auto call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kGraph);
        return error.what();
      }
      return "nothing was thrown";
    };
    const auto names_it =
        AllOf(HasSubstr("CPU backend: " + std::string(one->node->op_name())),
              HasSubstr("f32[1,1,65536,65536]"),
              HasSubstr("at most 2147483647 pixels, got 4294967296"));
    EXPECT_THAT(message([&] { Cpu::Get().compiler().Candidates(*one->node); }),
                names_it);
    LibraryCall call = one->PlainCall();
    EXPECT_THAT(message([&] { Cpu::Get().compiler().PrepareCall(call); }),
                names_it);
  }
}

// No block of channels divides 36 channels or is one of their groups.
TEST(CpuLibraryTest, ConvolutionsOfUnblockedChannelsCopyNoWindows) {
  for (const int64_t groups : {1, 3}) {
    const ConvCase c{2, 36, 36, 9, 3, 1, 1, 1, groups};
    for (const auto& one : ConvNodes(c, DType::kF32)) {
      const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
      ASSERT_FALSE(candidates.empty()) << one->node->op_name();
      EXPECT_THAT(candidates[0].implementation, Not(HasSubstr("gemm")))
          << one->node->op_name() << ", groups " << groups;
    }
  }
}

TEST(CpuLibraryTest, ConvolutionsInTheLayoutsOfTheirCandidates) {
  // oneDNN has bf16 convolutions only for AVX-512.
  const bool has_bf16 = ir::DefaultCpuTarget().name != "cpu-avx2";
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ConvCase& c : kConvCases) {
      for (const auto& one : ConvNodes(c, dtype)) {
        const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
        // oneDNN's ReLU turns NaN into 0, so it is not a candidate.
        const bool relu = ir::IsLibraryFusion(*one->node);
        ASSERT_EQ(candidates.empty(),
                  relu || (dtype == DType::kBF16 && !has_bf16))
            << one->node->op_name();
        for (const ir::LibraryCandidate& candidate : candidates) {
          LibraryCall call = one->Call(candidate.operands, candidate.results,
                                       candidate.algorithm);
          Cpu::Get().compiler().PrepareCall(call);
          EXPECT_EQ(call.implementation, candidate.implementation);
          EXPECT_EQ(call.workspace_bytes, candidate.workspace_bytes);
          ExpectClose(*one, call);
        }
      }
    }
  }
}

TEST(CpuLibraryTest, ConvolutionsInRowMajorLayoutAndEveryDtype) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const ConvCase& c : kConvCases) {
      for (const auto& one : ConvNodes(c, dtype)) {
        ExpectClose(*one, one->PlainCall());
      }
    }
  }
}

bool CanBeIm2col(const ir::Node& node, const ConvCase& c, DType dtype) {
  if (c.groups != 1) return false;
  const bool narrow = dtype == DType::kBF16;
  if (narrow && !Cpu::Get().compiler().target().bf16_matmul) return false;
  return node.op_name() == "conv2d_grad_weight" ||
         (node.op_name() == "conv2d_grad_input" && narrow && c.kernel == 1 &&
          node.attrs().Ints("pad") == std::vector<int64_t>{0, 0});
}

// Runs the gradient by im2col, which is a candidate only for larger workspaces
// than a test's, or on CPUs with AMX.
void ExpectIm2colClose(const OneNode& one, const ConvCase& c) {
  const Layout channels_last{{0, 2, 3, 1}, {}};
  const Layout weight = c.kernel == 1 ? Layout{} : channels_last;
  const bool of_weight = one.node->op_name() == "conv2d_grad_weight";
  LibraryCall call =
      one.Call({channels_last, of_weight ? channels_last : weight},
               {of_weight ? weight : channels_last}, "im2col");
  Cpu::Get().compiler().PrepareCall(call);
  EXPECT_THAT(call.implementation, StartsWith("im2col:"))
      << ToString(call.operands[0]) << " " << ToString(call.operands[1])
      << " -> " << ToString(call.results[0]);
  ExpectClose(one, call);
}

// Runs every implementation of the case's convolutions on poisoned memory. They
// must not read unwritten memory, nor leave results unwritten.
void ExpectNoUnwrittenMemory(const ConvCase& c) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& one : ConvNodes(c, dtype)) {
      ExpectClose(*one, one->PlainCall());
      if (CanBeIm2col(*one->node, c, dtype)) ExpectIm2colClose(*one, c);
      for (const auto& candidate :
           Cpu::Get().compiler().Candidates(*one->node)) {
        ExpectClose(*one, one->Call(candidate.operands, candidate.results,
                                    candidate.algorithm));
      }
    }
  }
}

TEST(CpuLibraryTest, ConvolutionsOfOddGeometryUseNoUnwrittenMemory) {
  for (const ConvCase& c : OddConvCases(60)) ExpectNoUnwrittenMemory(c);
}

// oneDNN's 1x1 weight gradient reads beyond x if the channels do not fill a
// block.
TEST(CpuLibraryTest, StridedConvolutionsOfFewChannelsUseNoUnwrittenMemory) {
  for (const int64_t channels : {1, 2, 3, 12, 20}) {
    for (const int64_t width : {2, 6}) {
      ExpectNoUnwrittenMemory({.n = 5,
                               .c = channels,
                               .o = 24,
                               .size = 10,
                               .kernel = 1,
                               .stride = 2,
                               .pad = 0,
                               .dilation = 1,
                               .groups = 1,
                               .width = width});
    }
  }
}

// oneDNN's AMX weight gradients read beyond rows shorter than the stride, and
// crashed if the last row of windows was all padding.
TEST(CpuLibraryTest, ConvolutionsOfMorePaddingThanImageUseNoUnwrittenMemory) {
  ExpectNoUnwrittenMemory({.n = 2,
                           .c = 1,
                           .o = 1,
                           .size = 1,
                           .kernel = 2,
                           .stride = 2,
                           .pad = 1,
                           .dilation = 1,
                           .groups = 1});
  ExpectNoUnwrittenMemory({.n = 2,
                           .c = 16,
                           .o = 16,
                           .size = 2,
                           .kernel = 1,
                           .stride = 3,
                           .pad = 0,
                           .dilation = 1,
                           .groups = 1,
                           .width = 9,
                           .pad_width = 1,
                           .far_pad = 4,
                           .far_pad_width = 0});
}

// In bf16, oneDNN's 1x1 data gradient ignored the weights of an odd last
// channel if there were 30 or 60 pixels.
TEST(CpuLibraryTest, DataGradientsOf1x1ReadOddChannels) {
  for (const int64_t channels : {1, 3, 21}) {
    for (const int64_t width : {6, 12}) {
      ExpectNoUnwrittenMemory({.n = 2,
                               .c = 16,
                               .o = channels,
                               .size = 5,
                               .kernel = 1,
                               .stride = 1,
                               .pad = 0,
                               .dilation = 1,
                               .groups = 1,
                               .width = width});
    }
  }
}

TEST(CpuLibraryTest, WinogradComesFirstWhereItApplies) {
  if (ir::DefaultCpuTarget().winograd_efficiency == 0) {
    GTEST_SKIP() << "no Winograd in f32";
  }
  const int64_t block = Cpu::Get().compiler().target().channel_block();
  for (const auto& one :
       ConvNodes({32, 64, 64, 28, 3, 1, 1, 1, 1}, DType::kF32)) {
    const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
    ASSERT_EQ(candidates.size(), 3);
    EXPECT_EQ(candidates[0].algorithm, "winograd");
    EXPECT_THAT(candidates[0].implementation, HasSubstr("wino"));
    EXPECT_EQ(candidates[1].algorithm, "direct");
    EXPECT_EQ(candidates[2].name, "direct-nhwc");
    EXPECT_LT(candidates[0].modelled_ns, candidates[1].modelled_ns);
    EXPECT_THAT(ToString(TensorType{
                    DType::kF32, {1, 64, 28, 28}, candidates[0].operands[0]}),
                HasSubstr(fmt::format("{{aBcd{}b}}", block)));
  }
  // For one small image, the workspace costs more than Winograd saves.
  for (const auto& one : ConvNodes(kConvCases[2], DType::kF32)) {
    const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
    ASSERT_EQ(candidates.size(), 3);
    EXPECT_EQ(candidates[0].algorithm, "direct");
    EXPECT_EQ(candidates[1].algorithm, "winograd");
  }
  // Winograd does not support strides.
  for (const auto& one : ConvNodes(kConvCases[3], DType::kF32)) {
    for (const auto& c : Cpu::Get().compiler().Candidates(*one->node)) {
      EXPECT_EQ(c.algorithm, "direct");
    }
  }
}

// Describes each image as one row of pixels.
TEST(CpuLibraryTest, WeightGradientsOf1x1InBf16AreFlat) {
  if (!Cpu::Get().compiler().target().bf16_matmul) {
    GTEST_SKIP() << "no blocks of 16 channels";
  }
  const auto names = [](const ConvCase& c, DType dtype) {
    std::vector<std::string> all;
    for (const auto& one : ConvNodes(c, dtype)) {
      for (const auto& candidate :
           Cpu::Get().compiler().Candidates(*one->node)) {
        if (candidate.name == "direct-flat") {
          EXPECT_EQ(one->node->op_name(), "conv2d_grad_weight");
        }
        all.push_back(candidate.name);
      }
    }
    return all;
  };
  EXPECT_THAT(names(kConvCases[1], DType::kBF16), Contains("direct-flat"));
  EXPECT_THAT(names(kConvCases[1], DType::kF32), Not(Contains("direct-flat")));
  // Neither 3x3 nor strided 1x1 convolutions are flat.
  EXPECT_THAT(names(kConvCases[2], DType::kBF16), Not(Contains("direct-flat")));
  EXPECT_THAT(names(kConvCases[4], DType::kBF16), Not(Contains("direct-flat")));
}

TEST(CpuLibraryTest, NoCandidateOfAResidualNetworkIsAReferenceKernel) {
  for (size_t i : {0, 1, 2, 3, 4, 5}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& one : ConvNodes(kConvCases[i], dtype)) {
        for (const auto& c : Cpu::Get().compiler().Candidates(*one->node)) {
          EXPECT_THAT(c.implementation, Not(HasSubstr("ref")))
              << one->node->op_name() << " case " << i;
        }
      }
    }
  }
}

// oneDNN's kernels for groups need a blocked weight, too. With a row-major one
// it multiplies matrices, one per group.
TEST(CpuLibraryTest, ConvolutionsOfGroupsAreBlockedInFp32) {
  for (const ConvCase& c : {ConvCase{2, 32, 32, 14, 3, 1, 1, 1, 32},
                            ConvCase{2, 32, 32, 14, 5, 2, 2, 1, 32},
                            ConvCase{2, 64, 64, 7, 7, 1, 3, 1, 64},
                            ConvCase{2, 64, 64, 14, 3, 1, 1, 1, 2}}) {
    for (const auto& one : ConvNodes(c, DType::kF32)) {
      SCOPED_TRACE(fmt::format("{} kernel {}", one->node->op_name(), c.kernel));
      const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
      const ir::LibraryCandidate& first = candidates.at(0);
      EXPECT_THAT(first.implementation,
                  AllOf(Not(HasSubstr("gemm")), Not(HasSubstr("ref"))));
      EXPECT_THAT(first.operands,
                  Each(Not(Field(&ir::Layout::tiles, IsEmpty()))));
      EXPECT_THAT(first.results,
                  Each(Not(Field(&ir::Layout::tiles, IsEmpty()))));
    }
  }
}

// oneDNN multiplies matrices for these, one per group and image. Without a
// block of channels, neighbours are row-major, too.
TEST(CpuLibraryTest, ConvolutionsOfFewChannelsPerGroupAreNoMatrices) {
  const bool wide = Cpu::Get().compiler().target().channel_block() == 16;
  for (const ConvCase& c : {ConvCase{2, 58, 58, 14, 3, 1, 1, 1, 58},
                            ConvCase{2, 58, 58, 14, 3, 2, 1, 1, 58},
                            ConvCase{2, 64, 64, 14, 3, 2, 1, 1, 16}}) {
    for (const auto& one : ConvNodes(c, DType::kF32)) {
      SCOPED_TRACE(fmt::format("{} groups {}", one->node->op_name(), c.groups));
      const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
      const ir::LibraryCandidate& first = candidates.at(0);
      EXPECT_THAT(first.implementation,
                  AllOf(Not(HasSubstr("gemm")), Not(HasSubstr("ref"))));
      if (wide) continue;  // oneDNN has kernels for AVX-512
      EXPECT_EQ(first.algorithm, "grouped");
      const Layout blocked = ir::ParseLayout("aBcd8b");
      EXPECT_EQ(first.operands[0], c.groups == 16 ? blocked : Layout{});
    }
  }
}

// A block of 16 channels, or of 8, is no whole number of groups.
TEST(CpuLibraryTest, ConvolutionsOfGroupsAcrossBlocksAreInPlanes) {
  for (const int64_t per_group : {12, 24}) {
    const ConvCase c{2, 4 * per_group, 4 * per_group, 14, 3, 1, 1, 1, 4};
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& one : ConvNodes(c, dtype)) {
        const auto candidates = Cpu::Get().compiler().Candidates(*one->node);
        if (candidates.empty()) continue;  // oneDNN lacks bf16 on this machine
        // AMX's kernels need no blocks.
        EXPECT_THAT(candidates[0].implementation,
                    AnyOf(StartsWith("fusor_planes"), HasSubstr("amx")))
            << one->node->op_name() << ", channels per group " << per_group;
      }
    }
  }
}

struct GroupedCase {
  int64_t groups, in, out, size, kernel, stride, pad, dilation, width;
  bool bias = false;
};

// Runs the convolution and its gradients by one of fusor's own algorithms, with
// images in every layout.
void ExpectGroupedClose(const GroupedCase& c, const std::string& algorithm) {
  const ConvCase geometry{.n = 3,
                          .c = c.groups * c.in,
                          .o = c.groups * c.out,
                          .size = c.size,
                          .kernel = c.kernel,
                          .stride = c.stride,
                          .pad = c.pad,
                          .dilation = c.dilation,
                          .groups = c.groups,
                          .bias = c.bias,
                          .width = c.width};
  std::vector<Layout> layouts{{}, {{0, 2, 3, 1}, {}}};
  for (const char* blocked : {"aBcd8b", "aBcd16b"}) {
    const Layout layout = ir::ParseLayout(blocked);
    const int64_t block = layout.tiles[0].size;
    if (geometry.c % block == 0 && geometry.o % block == 0) {
      layouts.push_back(layout);
    }
  }
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& one : ConvNodes(geometry, dtype)) {
      for (const Layout& layout : layouts) {
        Layout weight;
        if (!layout.tiles.empty() && c.in == 1) {
          weight = {{0, 1, 2, 3}, {{0, layout.tiles[0].size}}};
        }
        const bool gradient = one->node->op_name() == "conv2d_grad_weight";
        std::vector<Layout> operands{layout, gradient ? layout : weight};
        if (one->node->num_inputs() == 3) operands.emplace_back();
        LibraryCall call =
            one->Call(operands, {gradient ? weight : layout}, algorithm);
        Cpu::Get().compiler().PrepareCall(call);
        EXPECT_THAT(call.implementation, HasSubstr("fusor_" + algorithm));
        ExpectClose(*one, call);
      }
    }
  }
}

// Tails of blocks, of groups of pixels and of both; rows and columns between
// those that a strided filter meets.
TEST(CpuLibraryTest, ConvolutionsOfFewChannelsPerGroup) {
  const GroupedCase cases[] = {
      {58, 1, 1, 14, 3, 1, 1, 1, 14},      {58, 1, 1, 15, 3, 2, 1, 1, 20, true},
      {32, 1, 1, 7, 5, 1, 2, 1, 7, true},  {32, 1, 1, 12, 7, 3, 2, 2, 13},
      {16, 2, 2, 9, 3, 2, 1, 1, 11, true}, {5, 2, 2, 8, 4, 3, 0, 1, 10},
      {8, 4, 4, 9, 3, 1, 1, 1, 17, true},  {7, 4, 4, 8, 3, 2, 1, 1, 8},
      {4, 4, 4, 10, 3, 2, 1, 2, 12},       {3, 4, 4, 6, 3, 1, 1, 1, 9},
      {16, 1, 1, 1, 1, 1, 0, 1, 1},        {9, 1, 1, 1, 3, 1, 2, 1, 1},
      {16, 1, 1, 9, 2, 2, 0, 3, 9},        {16, 2, 2, 5, 1, 3, 0, 1, 40}};
  for (const GroupedCase& c : cases) ExpectGroupedClose(c, "grouped");
}

// Other numbers of channels before and after, tails of tiles and of vectors,
// groups that are no whole blocks, strides, and filters beyond the image.
TEST(CpuLibraryTest, GroupedConvolutionsInPlanes) {
  const GroupedCase cases[] = {
      {3, 24, 24, 14, 3, 1, 1, 1, 14}, {3, 24, 24, 15, 3, 2, 1, 1, 20, true},
      {2, 16, 32, 7, 3, 1, 1, 1, 7},   {4, 8, 12, 9, 5, 2, 2, 1, 11, true},
      {2, 64, 64, 5, 1, 1, 0, 1, 33},  {2, 40, 24, 8, 1, 2, 0, 1, 9, true},
      {5, 4, 4, 12, 7, 3, 2, 1, 13},   {3, 7, 9, 6, 3, 1, 2, 2, 40, true},
      {16, 3, 5, 6, 3, 1, 1, 1, 5},    {2, 16, 16, 1, 3, 1, 1, 1, 1},
      {2, 32, 8, 1, 1, 1, 0, 1, 1},    {2, 24, 24, 56, 3, 2, 1, 1, 56},
      {2, 6, 6, 4, 2, 3, 0, 1, 60},    {2, 16, 16, 5, 3, 2, 3, 3, 6, true}};
  for (const GroupedCase& c : cases) ExpectGroupedClose(c, "planes");
}

TEST(CpuLibraryTest, ForwardAndGradientShareTheWeightLayoutInFp32) {
  for (size_t i : {0, 3, 4, 5}) {
    const auto nodes = ConvNodes(kConvCases[i], DType::kF32);
    const auto direct = [](const ir::Node& node) {
      const auto candidates = Cpu::Get().compiler().Candidates(node);
      return *std::find_if(candidates.begin(), candidates.end(),
                           [](const auto& c) { return c.name == "direct"; });
    };
    EXPECT_EQ(direct(*nodes[0]->node).operands[1],
              direct(*nodes[2]->node).results[0])
        << "case " << i;
  }
}

// One process may have compilers for different numbers of threads.
TEST(CpuLibraryTest, CandidatesAreThoseOfTheNumberOfThreads) {
  const auto nodes = ConvNodes({8, 64, 64, 28, 3, 1, 1, 1, 1}, DType::kF32);
  const auto modelled = [&](int threads) {
    return Cpu::Get()
        .backend()
        .CreateCompiler("cpu-avx2", {.threads = threads})
        ->Candidates(*nodes[0]->node)
        .at(0)
        .modelled_ns;
  };
  const int64_t one = modelled(1);
  EXPECT_LT(modelled(4), one);
  EXPECT_EQ(modelled(1), one);
}

TEST(CpuLibraryTest, RejectsWinogradWhereThereIsNone) {
  const auto nodes = ConvNodes(kConvCases[3], DType::kF32);
  LibraryCall call = nodes[0]->PlainCall("winograd");
  try {
    Cpu::Get().compiler().PrepareCall(call);
    ADD_FAILURE() << call.implementation;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr("there is no Winograd implementation"));
  }
}

struct PoolCase {
  int64_t n, c, size, window, stride, pad;
};

// Overlapping windows, uncovered input, padding, global pooling, and rows of
// more than eight windows.
constexpr PoolCase kPoolCases[] = {
    {2, 16, 9, 3, 2, 1}, {2, 16, 8, 2, 2, 0}, {1, 32, 8, 3, 2, 0},
    {2, 5, 7, 3, 1, 1},  {2, 64, 7, 7, 1, 0}, {1, 16, 11, 4, 3, 2},
    {1, 3, 39, 3, 2, 1}, {2, 4, 21, 2, 1, 0}, {1, 2, 32, 2, 2, 0}};

Attrs PoolGeometry(const PoolCase& c) {
  return {{"window", Ints{c.window, c.window}},
          {"stride", Ints{c.stride, c.stride}},
          {"pad", Ints{c.pad, c.pad}}};
}

std::vector<Layout> PoolLayouts(int64_t channels) {
  std::vector<Layout> layouts{{}, ir::ParseLayout("acdb")};
  if (channels % 8 == 0) layouts.push_back(ir::ParseLayout("aBcd8b"));
  if (channels % 16 == 0) layouts.push_back(ir::ParseLayout("aBcd16b"));
  return layouts;
}

TEST(CpuLibraryTest, AveragePoolingAndItsGradient) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const PoolCase& c : kPoolCases) {
      for (bool include_pad : {false, true}) {
        Attrs attrs = PoolGeometry(c);
        attrs.Set("count_include_pad", include_pad);
        const TensorType x{dtype, {c.n, c.c, c.size, c.size}, {}};
        const OneNode forward("avg_pool", {x}, attrs);
        attrs.Set("input_shape", x.shape);
        const OneNode grad("avg_pool_grad", {forward.node->output()->type()},
                           attrs);
        for (const Layout& layout : PoolLayouts(c.c)) {
          ExpectClose(forward, forward.Call({layout}, {layout}));
          ExpectClose(grad, grad.Call({layout}, {layout}));
        }
      }
    }
  }
}

// Few distinct values, so that windows have several maxima. NaN is greater than
// any number.
TEST(CpuLibraryTest, MaxPoolingFindsTheFirstMaximum) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const PoolCase& c : kPoolCases) {
      const TensorType x{dtype, {c.n, c.c, c.size, c.size}, {}};
      const OneNode forward("max_pool", {x}, PoolGeometry(c));
      Tensor operand = RandomTensor({DType::kI32, x.shape, {}}, 7, -3, 4);
      operand.type = x;
      for (size_t i = 3; i < operand.data.size(); i += 29) {
        operand.data[i] = std::numeric_limits<double>::quiet_NaN();
      }
      const auto expected = forward.Expected({operand});
      for (const Layout& layout : PoolLayouts(c.c)) {
        LibraryCall call = forward.Call({layout}, {layout, layout});
        const auto actual = RunCall(call, {operand});
        EXPECT_TRUE(AllClose(actual[0], expected[0], 0)) << call.implementation;
        EXPECT_EQ(actual[1].data, expected[1].data) << call.implementation;
      }
    }
  }
}

TEST(CpuLibraryTest, MaxPoolingGradientFollowsTheIndex) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (const PoolCase& c : kPoolCases) {
      const TensorType x{dtype, {c.n, c.c, c.size, c.size}, {}};
      const OneNode forward("max_pool", {x}, PoolGeometry(c));
      const Tensor operand = RandomTensor(x, 7);
      const Tensor index = forward.Expected({operand})[1];
      Attrs attrs = PoolGeometry(c);
      attrs.Set("input_shape", x.shape);
      const TensorType y = forward.node->output()->type();
      const OneNode grad("max_pool_grad", {y, index.type}, attrs);
      const Tensor dy = RandomTensor(y, 8);
      const auto expected = grad.Expected({dy, index});
      for (const Layout& layout : PoolLayouts(c.c)) {
        LibraryCall call = grad.Call({layout, layout}, {layout});
        const auto actual = RunCall(call, {dy, index});
        EXPECT_LE(MaxRelativeError(actual[0], expected[0]),
                  LibraryTolerance(dtype))
            << call.implementation;
      }
    }
  }
}

TEST(CpuLibraryTest, MatrixProducts) {
  struct Case {
    Ints batch;
    int64_t m, n, k;
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kF16}) {
    for (const Case& c :
         {Case{{}, 8, 10, 2048}, Case{{}, 33, 17, 5}, Case{{}, 1, 1, 1},
          Case{{3}, 4, 7, 9}, Case{{2, 3}, 5, 1, 6}, Case{{}, 1, 64, 64}}) {
      for (bool ta : {false, true}) {
        for (bool tb : {false, true}) {
          TensorType a{dtype, c.batch, {}}, b{dtype, c.batch, {}};
          for (int64_t e : ta ? Ints{c.k, c.m} : Ints{c.m, c.k}) {
            a.shape.push_back(e);
          }
          for (int64_t e : tb ? Ints{c.n, c.k} : Ints{c.k, c.n}) {
            b.shape.push_back(e);
          }
          const OneNode one("matmul", {a, b},
                            {{"transpose_a", ta}, {"transpose_b", tb}});
          ExpectClose(one, one.PlainCall());
        }
      }
    }
  }
}

// fold_transposes gives matmuls operands and results in other orders.
TEST(CpuLibraryTest, MatrixProductsInOtherOrders) {
  const Layout row_major;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool transposed : {false, true}) {
      const OneNode one(
          "matmul", {{dtype, {2, 3, 19, 32}, {}}, {dtype, {2, 3, 32, 19}, {}}},
          {{"transpose_a", transposed}, {"transpose_b", transposed}});
      const Tensor a = RandomTensor(one.node->input(0)->type(), 1);
      const Tensor b = RandomTensor(one.node->input(1)->type(), 2);
      const Tensor expected = one.Expected({a, b})[0];
      for (const char* order :
           {"acbd", "cabd", "bacd", "bcad", "cbad", "abdc", "adcb", "dcba"}) {
        const Layout other = ir::ParseLayout(order);
        for (LibraryCall call : {one.Call({other, row_major}, {row_major}),
                                 one.Call({row_major, other}, {row_major}),
                                 one.Call({row_major, row_major}, {other}),
                                 one.Call({other, other}, {other})}) {
          EXPECT_LE(MaxRelativeError(RunCall(call, {a, b})[0], expected),
                    LibraryTolerance(dtype))
              << order << " by " << call.implementation;
        }
      }
    }
  }
}

TEST(CpuLibraryTest, CopiesRoundToTheirResultDtype) {
  const TensorType type{DType::kF32, {32, 16, 3, 3}, {}};
  const OneNode one("copy", {type},
                    {{"layout", std::string("ABcd8b16a2b")},
                     {"result_dtype", std::string("bf16")}});
  LibraryCall call = one.Call({Canonical(ir::ParseLayout("ABcd16b16a"))},
                              {Canonical(ir::ParseLayout("ABcd8b16a2b"))});
  const Tensor tensor = RandomTensor(type, 5, -1, 1);
  const Tensor copy = RunCall(call, {tensor})[0];
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    ASSERT_EQ(copy.data[i], ir::RoundTo(DType::kBF16, tensor.data[i])) << i;
  }
}

TEST(CpuLibraryTest, CopiesBetweenAllLayouts) {
  const char* layouts[] = {"abcd",       "acdb", "aBcd16b",  "aBcd8b",
                           "ABcd16b16a", "cdba", "ABcd8b8a", "Acdb16a"};
  for (DType dtype : ir::kAllDTypes) {
    const TensorType type{dtype, {32, 16, 3, 5}, {}};
    const Tensor tensor = RandomTensor(type, 3, 0, 100);
    for (const char* from : layouts) {
      for (const char* to : layouts) {
        const OneNode one("copy", {type}, {{"layout", std::string(to)}});
        LibraryCall call = one.Call({Canonical(ir::ParseLayout(from))},
                                    {Canonical(ir::ParseLayout(to))});
        EXPECT_EQ(RunCall(call, {tensor})[0].data, tensor.data)
            << DTypeName(dtype) << " " << from << " -> " << to << " by "
            << call.implementation;
      }
    }
  }
}

TEST(CpuLibraryTest, RejectsAPlanWithTooSmallAWorkspace) {
  LibraryCall call;
  for (const ConvCase& c : kConvCases) {
    for (const auto& one : ConvNodes(c, DType::kF32)) {
      for (const auto& candidate :
           Cpu::Get().compiler().Candidates(*one->node)) {
        if (candidate.workspace_bytes == 0) continue;
        call = one->Call(candidate.operands, candidate.results,
                         candidate.algorithm);
      }
    }
  }
  Cpu::Get().compiler().PrepareCall(call);
  ASSERT_GT(call.workspace_bytes, 0);
  call.workspace_bytes /= 2;
  try {
    Cpu::Get().device().LoadCall(call);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_THAT(error.what(), HasSubstr("needs a workspace of"));
  }
}

// oneDNN would compute only the convolution.
TEST(CpuLibraryTest, TheInterpreterRunsLibraryFusions) {
  OneNode one(
      "conv2d",
      {{DType::kF32, {2, 3, 5, 5}, {}}, {DType::kF32, {4, 3, 3, 3}, {}}}, {});
  ir::LibraryFusion fusion(*one.node);
  fusion.AddChannelSums();
  const ir::Node* node = std::move(fusion).Build(one.graph, nullptr);
  LibraryCall call = codegen::CallOf(*node);
  const std::vector<Tensor> operands = one.Operands();
  const std::vector<Tensor> actual = RunCall(call, operands);
  EXPECT_EQ(call.implementation, "reference");
  ASSERT_EQ(actual.size(), 3u);
  const Tensor y = one.Expected(operands)[0];
  Tensor sums{{DType::kF32, {4}, {}}, std::vector<double>(4)};
  for (size_t i = 0; i < y.data.size(); ++i) sums.data[i / 9 % 4] += y.data[i];
  EXPECT_LE(MaxRelativeError(actual[0], y), 1e-6);
  EXPECT_LE(MaxRelativeError(actual[1], sums), 1e-6);
}

}  // namespace
}  // namespace fusor::test
