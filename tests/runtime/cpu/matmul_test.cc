// Compares fusor's own matmuls with the interpreter. A CPU without AMX runs the
// same loops with plain tiles, one without AVX-512 those of f32 with other
// vectors.

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/runtime/cpu/one_node.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::DType;
using ir::Layout;
using ir::Shape;
using ir::Tensor;
using ir::TensorType;

constexpr char kAmx[] = "fusor_amx";
constexpr char kSgemm[] = "fusor_sgemm";
constexpr char kSplitAmx[] = "fusor_amx_bf16x6";

struct MatmulCase {
  int64_t m, k, n;
  bool transpose_a = false, transpose_b = false;
  DType result = DType::kBF16;
  bool transposed_result = false;  // its columns are contiguous
  DType dtype = DType::kBF16;      // of the operands
};

MatmulCase InF32(int64_t m, int64_t k, int64_t n, bool transpose_a = false,
                 bool transpose_b = false, bool transposed_result = false) {
  return {m,
          k,
          n,
          transpose_a,
          transpose_b,
          DType::kF32,
          transposed_result,
          DType::kF32};
}

OneNode NodeOf(const MatmulCase& c) {
  const auto type = [&](int64_t rows, int64_t columns) {
    return TensorType{c.dtype, {rows, columns}, {}};
  };
  return {"matmul",
          {c.transpose_a ? type(c.k, c.m) : type(c.m, c.k),
           c.transpose_b ? type(c.n, c.k) : type(c.k, c.n)},
          {{"transpose_a", c.transpose_a},
           {"transpose_b", c.transpose_b},
           {"result_dtype", std::string(c.result == c.dtype ? "" : "f32")}}};
}

LibraryCall CallBy(const std::string& implementation, const MatmulCase& c) {
  LibraryCall call = NodeOf(c).PlainCall();
  if (c.transposed_result) call.results[0].layout = Layout{{1, 0}, {}};
  call.implementation = implementation;
  call.workspace_bytes = int64_t{32} << 20;
  return call;
}

// Runs the matmul by each of fusor's own implementations, on poisoned memory.
void ExpectMatmulClose(const MatmulCase& c) {
  SCOPED_TRACE(testing::Message() << c.m << "x" << c.k << "x" << c.n << " "
                                  << c.transpose_a << c.transpose_b);
  const std::vector<std::string> implementations =
      c.dtype == DType::kF32 ? std::vector<std::string>{kSgemm, kSplitAmx}
                             : std::vector<std::string>{kAmx};
  for (const std::string& implementation : implementations) {
    ExpectClose(NodeOf(c), CallBy(implementation, c));
  }
}

// Both operands in both orders, as both dtypes of the result.
void ExpectAllClose(int64_t m, int64_t k, int64_t n) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      ExpectMatmulClose({m, k, n, a, b});
    }
    ExpectMatmulClose({m, k, n, a, a, DType::kF32});
    ExpectMatmulClose({m, k, n, a, !a, DType::kF32, true});
  }
}

// No size is a multiple of a tile's, or one is.
TEST(AmxMatmulTest, OddSizesUseNoUnwrittenMemory) {
  const Shape cases[] = {{1, 1, 1},    {3, 5, 2},    {17, 31, 33},
                         {40, 33, 71}, {64, 32, 32}, {48, 64, 50},
                         {97, 65, 16}, {32, 40, 96}, {16, 96, 15}};
  for (const Shape& c : cases) ExpectAllClose(c[0], c[1], c[2]);
}

// More than one block of rows, of columns and of the depth.
TEST(AmxMatmulTest, SeveralBlocks) {
  ExpectMatmulClose({1100, 40, 600});
  ExpectMatmulClose({48, 2100, 560, false, true});
  ExpectMatmulClose({560, 2080, 300, true, false, DType::kF32});
}

// The threads divide the depth of a small result.
TEST(AmxMatmulTest, DeepSums) {
  ExpectAllClose(40, 2500, 33);
  ExpectMatmulClose({96, 8192, 64, true, false, DType::kF32});
}

// 1x1 convolutions' gradients: a data gradient of many products, and weight
// gradients of few sums and with strides.
TEST(AmxMatmulTest, GradientsOfConvolutions) {
  const Layout channels_last{{0, 2, 3, 1}, {}};
  const auto compiler = Cpu::Get().backend().CreateCompiler("cpu-amx", {2});
  int tried = 0;
  for (const ConvCase& c : {ConvCase{2, 704, 768, 16, 1, 1, 0, 1, 1},
                            ConvCase{6, 64, 72, 27, 1, 2, 0, 1, 1}}) {
    for (const auto& one : ConvNodes(c, DType::kBF16)) {
      if (one->node->op_name() == "conv2d") continue;
      const bool of_weight = one->node->op_name() == "conv2d_grad_weight";
      LibraryCall call =
          one->Call({channels_last, of_weight ? channels_last : Layout{}},
                    {of_weight ? Layout{} : channels_last}, "im2col");
      compiler->PrepareCall(call);
      if (call.implementation != "im2col:fusor_amx") continue;
      ExpectClose(*one, call);
      ++tried;
    }
  }
  EXPECT_EQ(tried, 3);
}

// Activations are in blocks if these divide their channels.
LibraryCall PointwiseCall(const OneNode& one) {
  const auto layout = [](const ir::Value* activations) {
    return activations->type().shape[1] % 16 == 0
               ? Layout{{0, 1, 2, 3}, {{1, 16}}}
               : Layout{};
  };
  const ir::Node& node = *one.node;
  const std::string_view op = node.op_name();
  LibraryCall call =
      op == "conv2d_grad_weight"
          ? one.Call({layout(node.input(0)), layout(node.input(1))}, {Layout{}},
                     "matmul")
          : one.Call({layout(node.input(0)), Layout{}}, {layout(node.output())},
                     "matmul");
  Cpu::Get().compiler().PrepareCall(call);
  EXPECT_EQ(call.implementation, kSplitAmx) << op;
  return call;
}

// 1x1 convolutions of f32 in blocks of channels, row-major, and in both
// layouts. Tiles of pixels span images, and those of channels are half empty.
TEST(SplitAmxTest, PointwiseConvolutions) {
  const ConvCase cases[] = {
      {3, 48, 80, 7, 1, 1, 0, 1, 1},  {1, 16, 32, 6, 1, 1, 0, 1, 1},
      {5, 96, 112, 9, 1, 1, 0, 1, 1}, {2, 1040, 48, 8, 1, 1, 0, 1, 1},
      {8, 32, 32, 14, 1, 1, 0, 1, 1}, {3, 24, 58, 7, 1, 1, 0, 1, 1},
      {5, 40, 72, 14, 1, 1, 0, 1, 1}, {2, 1036, 44, 9, 1, 1, 0, 1, 1},
      {3, 48, 40, 7, 1, 1, 0, 1, 1},  {8, 20, 32, 14, 1, 1, 0, 1, 1},
      {1, 3, 5, 6, 1, 1, 0, 1, 1}};
  for (const ConvCase& c : cases) {
    for (const auto& one : ConvNodes(c, DType::kF32)) {
      SCOPED_TRACE(one->node->op_name());
      ExpectClose(*one, PointwiseCall(*one));
    }
  }
}

// A part of the product has the special number, the others are finite.
TEST(SplitAmxTest, PointwiseConvolutionsOfSpecialNumbers) {
  std::vector<std::unique_ptr<OneNode>> nodes;
  for (const ConvCase& c : {ConvCase{2, 48, 32, 6, 1, 1, 0, 1, 1},
                            ConvCase{2, 40, 24, 6, 1, 1, 0, 1, 1},
                            ConvCase{3, 40, 32, 7, 1, 1, 0, 1, 1}}) {
    for (auto& one : ConvNodes(c, DType::kF32)) nodes.push_back(std::move(one));
  }
  for (const auto& one : nodes) {
    SCOPED_TRACE(ToString(one->node->input(0)->type()) + " " +
                 std::string(one->node->op_name()));
    LibraryCall call = PointwiseCall(*one);
    std::vector<Tensor> operands = one->Operands();
    operands[0].data[45] = std::numeric_limits<double>::infinity();
    const Tensor exact = one->Expected(operands)[0];
    const Tensor y = RunCall(call, operands)[0];
    int finite = 0;
    for (size_t i = 0; i < y.data.size(); ++i) {
      if (std::isfinite(exact.data[i])) {
        ++finite;
        EXPECT_NEAR(y.data[i], exact.data[i],
                    1e-5 * (1 + std::fabs(exact.data[i])));
      } else {
        EXPECT_FALSE(std::isfinite(y.data[i])) << i;
      }
    }
    EXPECT_GT(finite, 0);
    EXPECT_LT(finite, static_cast<int>(y.data.size()));
  }
}

// Only a CPU with AMX plans it, and only where oneDNN is slower.
TEST(AmxMatmulTest, IsPlannedForLargeMatmuls) {
  const auto implementation = [](const char* target, const MatmulCase& c) {
    LibraryCall call = NodeOf(c).PlainCall();
    Cpu::Get().backend().CreateCompiler(target, {2})->PrepareCall(call);
    return call.implementation;
  };
  const MatmulCase large{1024, 768, 512, false, true};
  EXPECT_EQ(implementation("cpu-amx", large), kAmx);
  EXPECT_NE(implementation("cpu-avx512", large), kAmx);
  EXPECT_NE(implementation("cpu-amx", {128, 768, 512, false, true}), kAmx);
  EXPECT_NE(implementation("cpu-amx", {1024, 64, 512, false, true}), kAmx);
  // Both operands of these are packed.
  EXPECT_NE(implementation("cpu-amx", {512, 3072, 768, true}), kAmx);
  EXPECT_EQ(implementation("cpu-amx", {1536, 3072, 768, true}), kAmx);
  EXPECT_EQ(implementation("cpu-amx", {256, 3072, 64, true}), kAmx);
  EXPECT_NE(implementation("cpu-amx", {16, 3072, 64, false, true}), kAmx);
  // oneDNN is slow where rows of the second operand of f32 are as far apart as
  // these.
  EXPECT_EQ(implementation("cpu-amx", InF32(64, 768, 3072)), kSgemm);
  EXPECT_EQ(implementation("cpu-amx", InF32(64, 768, 3072, true)), kSgemm);
  EXPECT_NE(implementation("cpu-avx512", InF32(64, 768, 3072)), kSgemm);
  EXPECT_NE(implementation("cpu-amx", InF32(64, 768, 3072, false, true)),
            kSgemm);
  EXPECT_EQ(implementation("cpu-amx", InF32(1024, 768, 512)), kSplitAmx);
  EXPECT_NE(implementation("cpu-avx512", InF32(1024, 768, 512)), kSplitAmx);
  EXPECT_NE(implementation("cpu-amx", InF32(4096, 768, 80)), kSplitAmx);
  EXPECT_NE(implementation("cpu-amx", InF32(1024, 48, 512)), kSplitAmx);
  EXPECT_NE(implementation("cpu-amx", InF32(64, 768, 4096)), kSgemm);
  EXPECT_NE(implementation("cpu-amx", InF32(64, 768, 3000)), kSgemm);
}

// Row-major images need more products per element than images in blocks.
TEST(SplitAmxTest, IsOfferedForLargePointwiseConvolutions) {
  const auto compiler = Cpu::Get().backend().CreateCompiler("cpu-amx", {2});
  const auto is_first = [&](int64_t in, int64_t out, size_t direction) {
    const auto nodes = ConvNodes({16, in, out, 14, 1, 1, 0, 1, 1}, DType::kF32);
    const auto candidates = compiler->Candidates(*nodes[direction]->node);
    return !candidates.empty() && candidates[0].algorithm == "matmul";
  };
  for (size_t direction = 0; direction < 3; ++direction) {
    EXPECT_TRUE(is_first(256, 256, direction)) << direction;
    EXPECT_TRUE(is_first(408, 408, direction)) << direction;
    EXPECT_TRUE(is_first(408, 912, direction)) << direction;
    EXPECT_FALSE(is_first(104, 104, direction)) << direction;
  }
  EXPECT_TRUE(is_first(128, 128, 0));
  EXPECT_FALSE(is_first(132, 132, 0));
}

TEST(SplitAmxTest, SeveralBlocks) {
  ExpectMatmulClose(InF32(1100, 40, 600));
  ExpectMatmulClose(InF32(560, 1600, 300, true, false));
}

TEST(SplitAmxTest, DeepSums) {
  ExpectMatmulClose(InF32(96, 2500, 64, true, false));
  ExpectMatmulClose(InF32(33, 1100, 40, false, true, true));
}

// Each sum's error is relative to the sum of its products' magnitudes. The root
// of the mean square is compared with that of multiplications in f32.
// Magnitudes of the operands differ by up to 2^`spread`.
TEST(SplitAmxTest, IsAsAccurateAsF32) {
  const MatmulCase c = InF32(61, 700, 45);
  for (const int spread : {0, 8, 40}) {
    std::vector<Tensor> operands = NodeOf(c).Operands();
    for (Tensor& operand : operands) {
      for (size_t i = 0; i < operand.data.size(); ++i) {
        const auto exponent = static_cast<int>(i * 17 % 41) * spread / 40;
        operand.data[i] = std::ldexp(operand.data[i], exponent - spread / 2);
      }
    }
    const auto error = [&](const char* implementation) {
      LibraryCall call = CallBy(implementation, c);
      const Tensor y = RunCall(call, operands)[0];
      double squares = 0;
      for (int64_t row = 0; row < c.m; ++row) {
        for (int64_t column = 0; column < c.n; ++column) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < c.k; ++k) {
            const double product = operands[0].data[row * c.k + k] *
                                   operands[1].data[k * c.n + column];
            sum += product;
            magnitude += std::fabs(product);
          }
          squares +=
              std::pow((y.data[row * c.n + column] - sum) / magnitude, 2);
        }
      }
      return std::sqrt(squares / static_cast<double>(c.m * c.n));
    };
    EXPECT_LE(error(kSplitAmx), 1.2 * error(kSgemm)) << spread;
  }
}

// The last number is finite in f32 and infinite in bf16.
TEST(SplitAmxTest, SpecialNumbersAreMultipliedInF32) {
  const MatmulCase c = InF32(17, 40, 18);
  const std::vector<Tensor> plain = NodeOf(c).Operands();
  for (const double special :
       {std::numeric_limits<double>::infinity(), std::nan(""), 3.4e38}) {
    for (const size_t operand : {0, 1}) {
      std::vector<Tensor> operands = plain;
      operands[operand].data[45] = special;
      const Tensor exact = NodeOf(c).Expected(operands)[0];
      LibraryCall call = CallBy(kSplitAmx, c);
      const Tensor y = RunCall(call, operands)[0];
      for (size_t i = 0; i < y.data.size(); ++i) {
        if (std::isfinite(exact.data[i])) {
          EXPECT_NEAR(y.data[i], exact.data[i],
                      1e-5 * (1 + std::fabs(exact.data[i])));
        } else {
          EXPECT_EQ(std::isnan(y.data[i]), std::isnan(exact.data[i]));
          if (std::isinf(exact.data[i])) {
            EXPECT_EQ(y.data[i], exact.data[i]);
          }
        }
      }
    }
  }
}

// All operands and the result in both orders. No size is a multiple of a
// panel's, or all are, or the last panel has one or two vectors.
TEST(SgemmTest, OddSizesUseNoUnwrittenMemory) {
  const Shape cases[] = {{1, 1, 1},    {3, 5, 2},    {8, 4, 48},  {16, 9, 96},
                         {17, 31, 33}, {40, 33, 71}, {9, 1, 130}, {31, 65, 16}};
  for (const Shape& c : cases) {
    for (int bits = 0; bits < 8; ++bits) {
      ExpectMatmulClose(InF32(c[0], c[1], c[2], bits & 1, bits & 2, bits & 4));
    }
  }
}

// More than one block of rows, of columns and of the depth.
TEST(SgemmTest, SeveralBlocks) {
  ExpectMatmulClose(InF32(460, 10, 3100));
  ExpectMatmulClose(InF32(40, 800, 60, true, true));
}

// Batches of several dimensions, of which a layout moves one between rows and
// columns, as attention does with its heads.
TEST(SgemmTest, Batches) {
  const auto type = [](int64_t rows, int64_t columns, const Layout& layout) {
    return TensorType{DType::kF32, {2, 3, rows, columns}, layout};
  };
  const Layout plain{}, heads{{0, 2, 1, 3}, {}};
  for (const Layout& a : {plain, heads}) {
    for (const Layout& y : {plain, heads}) {
      const OneNode one{"matmul",
                        {type(19, 7, plain), type(33, 7, plain)},
                        {{"transpose_a", false},
                         {"transpose_b", true},
                         {"result_dtype", std::string()}}};
      LibraryCall call = one.PlainCall();
      call.operands[0].layout = a;
      call.operands[1].layout = heads;
      call.results[0].layout = y;
      call.implementation = kSgemm;
      call.workspace_bytes = int64_t{1} << 20;
      ExpectClose(one, call);
    }
  }
}

}  // namespace
}  // namespace fusor::test
