// Descriptions of matmuls for cuBLASLt. A column-major matmul with the
// described sizes must equal the row-major matmul of the IR.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "ir/interpreter/interpreter.h"
#include "runtime/backend/backend_loader.h"
#include "tests/testing/library_call.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::DType;
using nlohmann::json;

// Computes C = op(A) op(B). Each matrix is stored column-major.
std::vector<double> ColumnMajorProduct(const json& p,
                                       const std::vector<double>& a,
                                       const std::vector<double>& b) {
  const auto number = [&](const char* name) { return p.at(name).get<int>(); };
  const auto element = [](const std::string& op, int row, int column, int ld) {
    return op == "N" ? row + column * ld : column + row * ld;
  };
  std::vector<double> c(number("batch") * number("stride_c"));
  for (int i = 0; i < number("batch"); ++i) {
    for (int m = 0; m < number("m"); ++m) {
      for (int n = 0; n < number("n"); ++n) {
        double sum = 0;
        for (int k = 0; k < number("k"); ++k) {
          sum += a.at(i * number("stride_a") +
                      element(p.at("op_a"), m, k, number("lda"))) *
                 b.at(i * number("stride_b") +
                      element(p.at("op_b"), k, n, number("ldb")));
        }
        c.at(i * number("stride_c") + m + n * number("ldc")) = sum;
      }
    }
  }
  return c;
}

std::vector<double> Numbers(size_t count, double start) {
  std::vector<double> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = start + static_cast<double>(i * i % 17);
  }
  return numbers;
}

struct Product {
  std::unique_ptr<ir::Graph> graph = std::make_unique<ir::Graph>("g");
  LibraryCall call;
  std::vector<ir::Tensor> inputs;
};

Product MakeProduct(bool transpose_a, bool transpose_b, ir::Shape batch,
                    DType dtype, DType result,
                    std::optional<DType> bias = std::nullopt,
                    bool relu = false) {
  Product product;
  const auto shape = [&](int64_t rows, int64_t columns, bool transpose) {
    ir::Shape s = batch;
    s.push_back(transpose ? columns : rows);
    s.push_back(transpose ? rows : columns);
    return s;
  };
  std::vector<ir::Value*> inputs;
  for (const ir::TensorType& type :
       {ir::TensorType{dtype, shape(3, 5, transpose_a), {}},
        ir::TensorType{dtype, shape(5, 4, transpose_b), {}}}) {
    inputs.push_back(
        product.graph->AddInput(type, ir::InputRole::kData, "operand"));
    product.inputs.push_back(
        {type, Numbers(static_cast<size_t>(type.num_elements()),
                       static_cast<double>(product.inputs.size()))});
  }
  const ir::Node* matmul = product.graph->AddNode(
      "matmul", inputs,
      {{"transpose_a", transpose_a},
       {"transpose_b", transpose_b},
       {"result_dtype", std::string(ir::DTypeName(result))}});
  product.graph->AddOutput(matmul->output(), "c");
  product.call = EpilogueCall(*product.graph, *matmul, bias, relu);
  return product;
}

std::unique_ptr<codegen::TargetCompiler> Compiler() {
  return runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
}

TEST(MatmulPlanTest, TheColumnMajorProductIsTheRowMajorOne) {
  const auto compiler = Compiler();
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const ir::Shape& batch : {ir::Shape{}, ir::Shape{2}}) {
        Product product = MakeProduct(transpose_a, transpose_b, batch,
                                      DType::kF16, DType::kF32);
        compiler->PrepareCall(product.call);
        const json plan = json::parse(product.call.plan);
        const ir::Tensor expected =
            ir::Interpret(*product.graph, product.inputs, ir::EvalMode::kTyped)
                .at(0);
        EXPECT_EQ(ColumnMajorProduct(plan, product.inputs[1].data,
                                     product.inputs[0].data),
                  expected.data)
            << product.call.plan;
      }
    }
  }
}

TEST(MatmulPlanTest, NamesTypesArithmeticAndWorkspace) {
  const auto compiler = Compiler();
  const auto prepared = [&](DType dtype, DType result) {
    LibraryCall call = MakeProduct(false, true, {}, dtype, result).call;
    compiler->PrepareCall(call);
    return call;
  };
  const LibraryCall narrow = prepared(DType::kF16, DType::kF32);
  EXPECT_EQ(narrow.implementation,
            "cublaslt TN f16 -> f32, f32 arithmetic, algorithm at load");
  // The difference is room to align it.
  EXPECT_EQ(narrow.workspace_bytes, (int64_t{32} << 20) + 256);
  const json plan = json::parse(narrow.plan);
  EXPECT_EQ(plan.at("type_a"), "f16");
  EXPECT_EQ(plan.at("type_c"), "f32");
  EXPECT_EQ(plan.at("workspace"), int64_t{32} << 20);
  EXPECT_EQ(prepared(DType::kF32, DType::kF32).implementation,
            "cublaslt TN f32 -> f32, tf32 arithmetic, algorithm at load");
  EXPECT_EQ(plan.at("epilogue"), "default");
  const LibraryCall wide = prepared(DType::kF64, DType::kF64);
  EXPECT_EQ(wide.implementation, "unchosen");
  EXPECT_EQ(wide.plan, "");
}

TEST(MatmulPlanTest, NamesTheEpilogue) {
  const auto compiler = Compiler();
  const auto prepared = [&](DType result, DType bias, bool relu) {
    LibraryCall call =
        MakeProduct(false, true, {}, DType::kF16, result, bias, relu).call;
    compiler->PrepareCall(call);
    return call;
  };
  const LibraryCall both = prepared(DType::kF16, DType::kF16, true);
  EXPECT_EQ(both.implementation,
            "cublaslt TN f16 -> f16, bias, ReLU, f32 arithmetic, algorithm at "
            "load");
  EXPECT_EQ(json::parse(both.plan).at("epilogue"), "relu_bias");
  EXPECT_EQ(json::parse(prepared(DType::kF32, DType::kF32, false).plan)
                .at("epilogue"),
            "bias");
  // A bias of another dtype than the result's is not fused.
  EXPECT_EQ(prepared(DType::kF16, DType::kF32, false).implementation,
            "unchosen");
  LibraryCall relu =
      MakeProduct(false, true, {}, DType::kF16, DType::kF16, std::nullopt, true)
          .call;
  compiler->PrepareCall(relu);
  EXPECT_EQ(json::parse(relu.plan).at("epilogue"), "relu");
}

}  // namespace
}  // namespace fusor::test
