#include "tools/inspect/report/traffic.h"

#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"

namespace fusor::inspect {
namespace {

codegen::Plan PlanOf(std::string_view text) {
  const test::FakeCompiler compiler("nvidia-h200");
  codegen::CompileOptions options;
  options.plan_only = true;
  return codegen::Compile(test::ParseOrDie(text), codegen::ProgramKind::kEval,
                          compiler, options)
      .plan;
}

TEST(Traffic, AnElementwiseKernelReadsAndWritesOnce) {
  const codegen::Plan plan = PlanOf(R"(graph g {
      %x = data : f16[64,128]
      %y = data : f32[64,128]
      %w = cast(%x) {dtype="f32"} : f32[64,128]
      %s = add(%w, %y) : f32[64,128]
      %p = mul(%s, %y) : f32[64,128]
      return %p as "p"
    })");
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(TrafficBytes(plan), 64 * 128 * (2 + 4 + 4));
}

// The rows do not fit into registers, so the kernel reads them in each pass.
TEST(Traffic, CountsEachPassOverAReducedOperand) {
  const codegen::Plan plan = PlanOf(R"(graph g {
      %x = data : f32[64,4096]
      %m = reduce(%x) {dims=[1], kind="sum"} : f32[64]
      %b = broadcast(%m) {dims=[0], shape=[64,4096]} : f32[64,4096]
      %y = sub(%x, %b) : f32[64,4096]
      return %y as "y"
    })");
  ASSERT_EQ(plan.steps.size(), 1u);
  const int64_t bytes = TrafficBytes(plan);
  EXPECT_GE(bytes, 3 * 64 * 4096 * 4);
  EXPECT_LT(bytes, 3 * 64 * 4096 * 4 + 16 * 1024);  // plus partial sums
}

TEST(Traffic, AVectorIsReadOnceHoweverOftenItIsBroadcast) {
  const codegen::Plan plan = PlanOf(R"(graph g {
      %x = data : f32[512,1024]
      %v = data : f32[1024]
      %b = broadcast(%v) {dims=[1], shape=[512,1024]} : f32[512,1024]
      %y = mul(%x, %b) : f32[512,1024]
      return %y as "y"
    })");
  EXPECT_EQ(TrafficBytes(plan), 2 * 512 * 1024 * 4 + 1024 * 4);
}

TEST(Traffic, AStridedConvolutionReadsThePixelsItTouches) {
  codegen::LibraryCall call{
      .op = ir::OpKind::kConv2d,
      .attrs = {{"stride", std::vector<int64_t>{2, 2}}, {"groups", int64_t{1}}},
      .operands = {{ir::DType::kF16, {2, 8, 10, 10}, {}},
                   {ir::DType::kF16, {16, 8, 1, 1}, {}}},
      .results = {{ir::DType::kF16, {2, 16, 5, 5}, {}}}};
  const int64_t weight = 16 * 8 * 2;
  const int64_t y = 2 * 16 * 25 * 2;
  EXPECT_EQ(TrafficBytes(call), 2 * 8 * 25 * 2 + weight + y);
  call.operands[1].shape = {16, 8, 3, 3};
  EXPECT_EQ(TrafficBytes(call), 2 * 8 * 100 * 2 + 9 * weight + y);
  // Its data gradient must write zeros elsewhere.
  codegen::LibraryCall gradient{
      .op = ir::OpKind::kConv2dGradInput,
      .attrs = {{"stride", std::vector<int64_t>{2, 2}},
                {"groups", int64_t{1}},
                {"input_shape", std::vector<int64_t>{2, 8, 10, 10}}},
      .operands = {{ir::DType::kF16, {2, 16, 5, 5}, {}},
                   {ir::DType::kF16, {16, 8, 1, 1}, {}}},
      .results = {{ir::DType::kF16, {2, 8, 10, 10}, {}}}};
  EXPECT_EQ(TrafficBytes(gradient), 2 * 8 * 100 * 2 + weight + y);
  codegen::LibraryCall weights{
      .op = ir::OpKind::kConv2dGradWeight,
      .attrs = {{"stride", std::vector<int64_t>{2, 2}},
                {"groups", int64_t{1}},
                {"weight_shape", std::vector<int64_t>{16, 8, 1, 1}}},
      .operands = {{ir::DType::kF16, {2, 8, 10, 10}, {}},
                   {ir::DType::kF16, {2, 16, 5, 5}, {}}},
      .results = {{ir::DType::kF16, {16, 8, 1, 1}, {}}}};
  EXPECT_EQ(TrafficBytes(weights), 2 * 8 * 25 * 2 + weight + y);
}

}  // namespace
}  // namespace fusor::inspect
