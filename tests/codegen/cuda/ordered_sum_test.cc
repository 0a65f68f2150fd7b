#include "codegen/kernel/ordered_sum.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codegen/kernel/kernel_ir.h"
#include "ir/interpreter/host_tensor.h"
#include "tests/fakes/emulated_kernels.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/numeric.h"

namespace fusor::codegen {
namespace {

using ir::DType;

constexpr int64_t kStride = 1024;

// Returns numbers whose sum depends on the order and on where it is rounded.
ir::Tensor Parts(DType dtype, int ranks) {
  ir::Tensor parts =
      test::RandomTensor({dtype, {ranks * kStride}, {}}, 7, -2, 2);
  for (size_t i = 0; i < parts.data.size(); ++i) {
    const int power = static_cast<int>((i + i / kStride) % 9);
    parts.data[i] = ir::RoundTo(dtype, std::ldexp(parts.data[i], power));
  }
  return parts;
}

double SumOf(const ir::Tensor& parts, int ranks, int64_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r) {
    sum += parts.data[static_cast<size_t>(r * kStride + i)];
    if (parts.type.dtype != DType::kF64) sum = static_cast<float>(sum);
  }
  return ir::RoundTo(parts.type.dtype, sum);
}

// Tests the kernels for a CPU and for a GPU.
TEST(OrderedSumKernel, AddsInTheOrderOfRanksAndRoundsOnce) {
  const ir::Target targets[] = {test::BareTarget().target(),
                                ir::FindTarget("nvidia-h200")};
  for (const ir::Target& target : targets) {
    for (const DType dtype :
         {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int ranks : {1, 2, 5}) {
        for (const int64_t n : {int64_t{1}, int64_t{1001}, kStride}) {
          const Kernel kernel =
              OrderedSumKernel(dtype, ranks, kStride, n, target);
          Verify(kernel);
          const ir::Tensor parts = Parts(dtype, ranks);
          std::vector<uint8_t> in = ir::TensorBytes(parts);
          const ir::TensorType type{dtype, {n}, {}};
          std::vector<uint8_t> out(static_cast<size_t>(type.num_bytes()));
          void* const buffers[] = {in.data(), out.data()};
          InterpretKernel(kernel, buffers);
          const ir::Tensor sums = ir::LoadTensor(type, out.data());
          for (int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(sums.data[static_cast<size_t>(i)], SumOf(parts, ranks, i))
                << DTypeName(dtype) << ", " << ranks << " ranks: " << i;
          }
        }
      }
    }
  }
}

TEST(OrderedSumKernel, IsTheSameAsCudaText) {
  const ir::Target target = ir::FindTarget("nvidia-h200");
  std::vector<CompiledKernel> kernels;
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t n : {int64_t{3}, int64_t{1001}}) {
      kernels.push_back({OrderedSumKernel(dtype, 3, kStride, n, target)});
    }
  }
  for (const std::string& problem : test::CompareWithInterpreter(kernels, 1)) {
    ADD_FAILURE() << problem;
  }
}

}  // namespace
}  // namespace fusor::codegen
