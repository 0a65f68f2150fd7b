// Runs matmuls with fakes of cuBLASLt and the driver. Checks the arguments of
// cuBLASLt, and the results against the IR.

#include <gmock/gmock.h>

#include "codegen/cuda/matmul_problem.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/library_calls.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_driver.h"
#include "tests/testing/library_call.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using cuda::CublasltCalls;
using ir::DType;
using ::testing::HasSubstr;

// Returns a matmul of [m,k] and [k,n] with leading batch dimensions.
LibraryCall Call(DType operands, DType result, bool transpose_a = false,
                 bool transpose_b = false, const ir::Shape& batch = {},
                 ir::Epilogue epilogue = {}) {
  const auto type = [&](DType dtype, int64_t rows, int64_t columns,
                        bool transposed) {
    ir::Shape shape = batch;
    shape.push_back(transposed ? columns : rows);
    shape.push_back(transposed ? rows : columns);
    return ir::TensorType{dtype, shape, {}};
  };
  ir::Graph graph("g");
  const auto input = [&](const ir::TensorType& operand) {
    return graph.AddInput(operand, ir::InputRole::kData, "x");
  };
  const ir::Node& matmul =
      *graph.AddNode("matmul",
                     {input(type(operands, 3, 5, transpose_a)),
                      input(type(operands, 5, 4, transpose_b))},
                     {{"transpose_a", transpose_a},
                      {"transpose_b", transpose_b},
                      {"result_dtype", std::string(ir::DTypeName(result))}});
  LibraryCall call = EpilogueCall(
      graph, matmul, epilogue.bias ? std::optional(result) : std::nullopt,
      epilogue.relu);
  EXPECT_TRUE(cuda::PrepareMatmul(call));
  return call;
}

class CublasltCallTest : public testing::Test {
 protected:
  CublasltCallTest() : cublaslt_(LoadFakeCublaslt()) {
    LoadFakeDriver();
    device_ = cuda::OpenCudaDevice(0, {}, CublasltCalls());
    stream_ = device_->CreateStream();
  }

  // Returns operands, the result and an unaligned workspace.
  std::vector<void*> Arguments(const LibraryCall& call) {
    std::vector<void*> args;
    const auto add = [&](int64_t bytes) {
      memory_.push_back(device_->Allocate(static_cast<size_t>(bytes)));
      return static_cast<char*>(memory_.back()->data());
    };
    for (const ir::TensorType& type : call.operands) {
      const auto bytes =
          ir::TensorBytes(RandomTensor(type, args.size(), -2, 2));
      args.push_back(add(type.num_bytes()));
      stream_->CopyToDevice(args.back(), bytes.data(), bytes.size());
    }
    args.push_back(add(call.results[0].num_bytes()));
    args.push_back(add(call.workspace_bytes + 64) + 64);
    return args;
  }

  std::vector<uint8_t> Read(const ir::TensorType& type, const void* from) {
    std::vector<uint8_t> bytes(static_cast<size_t>(type.num_bytes()));
    stream_->CopyToHost(bytes.data(), from, bytes.size());
    stream_->Synchronize();
    return bytes;
  }

  void ExpectAsInterpreted(const LibraryCall& call) {
    const auto args = Arguments(call);
    const auto executable = device_->LoadCall(call);
    stream_->Launch(*executable, args.data(), args.size());
    const void* result = args[call.operands.size()];
    const auto actual = Read(call.results[0], result);
    RunLibraryCall(call, args.data());
    EXPECT_EQ(actual, Read(call.results[0], result)) << codegen::Print(call);
    memory_.clear();
  }

  std::string RejectionOf(const LibraryCall& call) {
    try {
      device_->LoadCall(call);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kDevice);
      return e.what();
    }
    return "accepted";
  }

  FakeCublaslt& cublaslt_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
  std::vector<std::unique_ptr<runtime::Memory>> memory_;
};

TEST_F(CublasltCallTest, MultipliesAsTheInterpreterDoes) {
  for (const auto& [operands, result] : {std::pair{DType::kF16, DType::kF32},
                                         {DType::kF16, DType::kF16},
                                         {DType::kBF16, DType::kBF16},
                                         {DType::kF32, DType::kF32}}) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      for (const ir::Shape& batch : {ir::Shape{}, ir::Shape{2, 3}}) {
        for (int epilogue = 0; epilogue < 4; ++epilogue) {
          ExpectAsInterpreted(
              Call(operands, result, (transposed & 1) != 0,
                   (transposed & 2) != 0, batch,
                   {.bias = (epilogue & 1) != 0, .relu = (epilogue & 2) != 0}));
        }
      }
    }
  }
}

TEST_F(CublasltCallTest, AlignsTheWorkspaceAndKeepsWithinIt) {
  const LibraryCall call = Call(DType::kF16, DType::kF16);
  const int64_t limit = cuda::MatmulWorkspace(call);
  cublaslt_.algorithms = {-1, limit + 1, limit, 0};
  const auto args = Arguments(call);
  const auto executable = device_->LoadCall(call);
  EXPECT_EQ(cublaslt_.workspace_limit, limit);
  EXPECT_EQ(cublaslt_.alignment, codegen::kBufferAlignment);
  stream_->Launch(*executable, args.data(), args.size());
  stream_->Synchronize();
  ASSERT_EQ(cublaslt_.products.size(), 1);
  const auto& product = cublaslt_.products[0];
  EXPECT_EQ(product.algorithm, 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(product.workspace) % 256, 0);
  EXPECT_GE(product.workspace, args[3]);
  EXPECT_LE(static_cast<const char*>(product.workspace) + limit,
            static_cast<const char*>(args[3]) + call.workspace_bytes);
}

// The bias's address is known only at the launch. The heuristic is called
// earlier, with an address of the same alignment.
TEST_F(CublasltCallTest, PassesTheAddressOfTheBias) {
  const LibraryCall call = Call(DType::kF16, DType::kF16, false, true, {},
                                {.bias = true, .relu = true});
  const auto executable = device_->LoadCall(call);
  EXPECT_EQ(cublaslt_.bias_alignment, codegen::kBufferAlignment);
  for (int launch = 0; launch < 2; ++launch) {
    const auto args = Arguments(call);
    stream_->Launch(*executable, args.data(), args.size());
    stream_->Synchronize();
    EXPECT_EQ(cublaslt_.products.back().bias, args[2]);
    EXPECT_TRUE(cublaslt_.products.back().relu);
  }
}

TEST_F(CublasltCallTest, LeavesOtherCallsAlone) {
  LibraryCall call = Call(DType::kF16, DType::kF16);
  call.plan = R"({"cudnnVersion":91900})";
  EXPECT_EQ(CublasltCalls()(call), nullptr);
  call.plan.clear();
  EXPECT_EQ(CublasltCalls()(call), nullptr);
}

TEST_F(CublasltCallTest, LeavesNothingBehind) {
  const LibraryCall call = Call(DType::kF16, DType::kF16);
  {
    const auto first = device_->LoadCall(call);
    const auto second = device_->LoadCall(call);
    EXPECT_EQ(cublaslt_.handles, 1);
    EXPECT_GT(cublaslt_.descriptors, 0);
  }
  device_ = nullptr;
  EXPECT_EQ(cublaslt_.handles, 0);
  EXPECT_EQ(cublaslt_.descriptors, 0);
}

TEST_F(CublasltCallTest, NamesVersionAndFunctionOfARejection) {
  const LibraryCall call = Call(DType::kF16, DType::kF32);
  for (const char* function :
       {"cublasLtCreate", "cublasLtMatmulAlgoGetHeuristic"}) {
    cublaslt_.fails = function;
    EXPECT_EQ(RejectionOf(call),
              fmt::format("matmul by cublaslt NN f16 -> f32, f32 arithmetic, "
                          "algorithm at load: cuBLASLt 13.1.0: {}: "
                          "CUBLAS_STATUS_NOT_SUPPORTED (the fake was told "
                          "to)",
                          function));
  }
  cublaslt_.fails.clear();
  cublaslt_.algorithms = {-1, int64_t{1} << 40};
  EXPECT_THAT(RejectionOf(call),
              HasSubstr("cublasLtMatmulAlgoGetHeuristic: 2 algorithms, none "
                        "for 33554432 bytes of workspace"));
  cublaslt_.algorithms = {0};
  const auto args = Arguments(call);
  const auto executable = device_->LoadCall(call);
  cublaslt_.fails = "cublasLtMatmul";
  try {
    stream_->Launch(*executable, args.data(), args.size());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kDevice);
    EXPECT_STREQ(e.what(),
                 "cuBLASLt 13.1.0: cublasLtMatmul: "
                 "CUBLAS_STATUS_NOT_SUPPORTED (the fake was told to)");
  }
}

}  // namespace
}  // namespace fusor::test
