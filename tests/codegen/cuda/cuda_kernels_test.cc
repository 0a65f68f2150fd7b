// Compares handwritten kernels, printed as CUDA C++ and emulated, with the
// kernel interpreter: every op and dtype, masks, strides, bitmasks, reductions.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "tests/fakes/emulated_kernels.h"
#include "tests/testing/kernel_statements.h"

namespace fusor::test {
namespace {

using codegen::CompiledKernel;
using codegen::Kernel;
using ir::DType;
using ir::ScalarOp;

void ExpectAsInterpreted(const std::vector<Kernel>& kernels) {
  std::vector<CompiledKernel> compiled;
  for (const Kernel& kernel : kernels) {
    Verify(kernel);
    compiled.push_back({kernel});
  }
  for (const std::string& problem : CompareWithInterpreter(compiled, 1)) {
    ADD_FAILURE() << problem;
  }
}

// z = op(x, y, y) for all elements. x and y have the same dtype, z another.
Kernel EveryElement(ScalarOp op, DType from, DType to, bool round) {
  Kernel k;
  k.name = "f" + std::to_string(static_cast<int>(op));
  k.lanes = 32;
  k.width = 8;
  k.contract = false;
  constexpr int64_t kN = 61;
  k.buffers = {{"x", from, kN}, {"y", from, kN}, {"z", to, kN, true}};
  k.axes = {{"i", kN, true}};
  k.registers = {
      {from, true}, {from, true}, {to, true}, {DType::kI32}, {from, true}};
  const Index all{0, {{0, 1}}};
  k.phases.push_back({{0}, {Load(0, 0, all), Load(1, 1, all)}});
  std::vector<Stmt>& body = k.phases[0].body;
  if (!ir::IsFloat(from)) {  // no division by zero, and no logarithm of it
    body.push_back(Constant(3, 1));
    for (int reg : {0, 1}) {
      body.push_back(Compute(ScalarOp::kAdd, reg, {reg, 3}));
    }
  } else if (!ir::IsFloat(to)) {  // finite
    body.push_back(Constant(3, 1));
    for (int reg : {0, 1}) {
      body.push_back(Compute(ScalarOp::kAbs, reg, {reg}));
      body.push_back(Compute(ScalarOp::kAdd, reg, {reg, 3}));
    }
  }
  switch (ir::ScalarArity(op)) {
    case 1:
      body.push_back(Compute(op, 2, {0}, round));
      break;
    case 2:
      body.push_back(Compute(op, 2, {0, 1}, round));
      break;
    default:
      body.push_back(Compute(ScalarOp::kGt, 4, {0, 1}));
      body.push_back(Compute(op, 2, {4, 0, 1}, round));
  }
  body.push_back(Store(2, all, 2));
  return k;
}

constexpr ScalarOp kOfIntegers[] = {ScalarOp::kFloorDiv, ScalarOp::kBitwiseAnd,
                                    ScalarOp::kBitwiseOr,
                                    ScalarOp::kBitwiseXor};

TEST(CudaKernels, EveryOpInEveryDType) {
  for (DType dtype : ir::kAllDTypes) {
    std::vector<Kernel> kernels;
    for (int op = 0; op < ir::kNumScalarOps; ++op) {
      // Negation of bools and bytes is unspecified.
      if (static_cast<ScalarOp>(op) == ScalarOp::kNeg && !ir::IsFloat(dtype)) {
        continue;
      }
      if (ir::IsFloat(dtype) &&
          std::find(std::begin(kOfIntegers), std::end(kOfIntegers),
                    static_cast<ScalarOp>(op)) != std::end(kOfIntegers)) {
        continue;
      }
      kernels.push_back(
          EveryElement(static_cast<ScalarOp>(op), dtype, dtype, true));
    }
    ExpectAsInterpreted(kernels);
  }
}

TEST(CudaKernels, EveryDTypeIntoEveryOther) {
  std::vector<Kernel> kernels;
  for (DType from : ir::kAllDTypes) {
    for (DType to : ir::kAllDTypes) {
      for (bool round : {false, true}) {
        kernels.push_back(EveryElement(ScalarOp::kIdentity, from, to, round));
      }
    }
  }
  ExpectAsInterpreted(kernels);
}

// y = |x| + 1 with the vector axis in the grid or as a loop.
Kernel AbsPlusOne(int64_t n, int lanes, int width, bool in_grid) {
  Kernel k;
  k.name = "abs_plus_one";
  k.lanes = lanes;
  k.width = width;
  k.buffers = {{"x", DType::kF32, n}, {"y", DType::kF32, n, true}};
  k.axes = {{"i", n, true}};
  k.registers = {{DType::kF32, true}, {DType::kF32, true}, {DType::kF32}};
  std::vector<Stmt> body{Constant(2, 1), Load(0, 0, {0, {{0, 1}}}),
                         Compute(ScalarOp::kAbs, 1, {0}),
                         Compute(ScalarOp::kAdd, 1, {1, 2}),
                         Store(1, {0, {{0, 1}}}, 1)};
  if (in_grid) {
    k.phases.push_back({{0}, body});
  } else {
    k.phases.push_back({{}, {Loop(0, body)}});
  }
  return k;
}

TEST(CudaKernels, EveryExtentStopsWhereItShould) {
  std::vector<Kernel> kernels;
  for (int width : {1, 4, 8}) {
    for (int64_t n : {1, 7, 8, 63, 64, 65, 300}) {
      for (bool in_grid : {false, true}) {
        kernels.push_back(AbsPlusOne(n, 64, width, in_grid));
      }
    }
  }
  ExpectAsInterpreted(kernels);
}

TEST(CudaKernels, StridedAndReversedLanes) {
  std::vector<Kernel> kernels;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kU8, DType::kI64}) {
    Kernel k;
    k.name = "strided";
    k.lanes = 64;
    k.width = 8;
    k.buffers = {{"x", dtype, 100}, {"y", dtype, 100, true}};
    k.axes = {{"i", 100, true}};
    k.registers = {{dtype, true}};
    k.phases.push_back(
        {{0}, {Load(0, 0, {99, {{0, -1}}}), Store(1, {0, {{0, 1}}}, 0)}});
    kernels.push_back(k);
    std::swap(k.phases[0].body[0].index, k.phases[0].body[1].index);
    kernels.push_back(k);
  }
  ExpectAsInterpreted(kernels);
}

// Returns reductions of rows by all lanes, of several rows at once, and of
// columns by a block with several rows.
std::vector<Kernel> Reductions(ScalarOp op, DType dtype, int lanes,
                               int64_t rows, int64_t columns) {
  Kernel k;
  k.name = "rows";
  k.lanes = lanes;
  k.width = 4;
  k.contract = false;
  k.buffers = {{"x", dtype, rows * columns}, {"y", dtype, rows, true}};
  k.axes = {{"r", rows, false, rows <= 8}, {"c", columns, true}};
  k.registers = {{dtype, true}, {dtype, true}, {dtype}};
  k.phases.push_back({{0},
                      {Init(op, 0),
                       Loop(1, {Load(1, 0, {0, {{0, columns}, {1, 1}}}),
                                Accumulate(op, 0, 1)}),
                       ReduceLanes(op, 2, 0), Store(1, {0, {{0, 1}}}, 2)}});
  Kernel c = k;
  c.name = "columns";
  c.buffers[1].elements = columns;
  c.axes = {{"r", rows, false, true}, {"c", columns, true}};
  c.registers[2].vector = true;
  c.phases[0] = {{0, 1},
                 {Load(1, 0, {0, {{0, columns}, {1, 1}}}),
                  ReduceBlock(op, 2, 1), Store(1, {0, {{1, 1}}}, 2)}};
  return {k, c};
}

TEST(CudaKernels, ReductionsAreTheTreesOfTheInterpreter) {
  for (DType dtype :
       {DType::kF32, DType::kF64, DType::kI32, DType::kI64, DType::kBool}) {
    std::vector<Kernel> kernels;
    for (ScalarOp op : {ScalarOp::kAdd, ScalarOp::kMaximum, ScalarOp::kMinimum,
                        ScalarOp::kAnd, ScalarOp::kOr}) {
      const bool logical = op == ScalarOp::kAnd || op == ScalarOp::kOr;
      if (logical != (dtype == DType::kBool)) continue;
      for (int lanes : {4, 64, 256}) {
        for (int64_t rows : {1, 3, 4, 7}) {
          for (Kernel& kernel : Reductions(op, dtype, lanes, rows, 37)) {
            kernels.push_back(std::move(kernel));
          }
        }
      }
    }
    ExpectAsInterpreted(kernels);
  }
}

// y = x > 1 as a bitmask, then z = y ? x : -1.
TEST(CudaKernels, PackedBoolsAreOneBitAnElement) {
  constexpr int64_t kN = 72;
  Kernel k;
  k.name = "packed";
  k.lanes = 64;
  k.width = 8;
  k.buffers = {{"x", DType::kF16, kN},
               {"y", DType::kBool, kN, true, false, true},
               {"z", DType::kF16, kN, true}};
  k.axes = {{"i", kN, true}, {"j", kN, true}};
  k.registers = {{DType::kF16, true},  {DType::kF32},
                 {DType::kBool, true}, {DType::kBool, true},
                 {DType::kF16, true},  {DType::kF32}};
  k.phases.push_back(
      {{0},
       {Load(0, 0, {0, {{0, 1}}}), Constant(1, 1),
        Compute(ScalarOp::kGt, 2, {0, 1}), Store(1, {0, {{0, 1}}}, 2)}});
  k.phases.push_back(
      {{1},
       {Load(3, 1, {0, {{1, 1}}}), Load(0, 0, {0, {{1, 1}}}), Constant(5, -1),
        Compute(ScalarOp::kSelect, 4, {3, 0, 5}), Store(2, {0, {{1, 1}}}, 4)}});
  ExpectAsInterpreted({k});
}

TEST(CudaKernels, IndicesAndRandomNumbers) {
  Kernel k;
  k.name = "random";
  k.lanes = 64;
  k.width = 4;
  constexpr int64_t kN = 150;
  k.buffers = {{"key", DType::kI64, 1},
               {"step", DType::kI32, 1},
               {"y", DType::kF32, kN, true},
               {"i", DType::kI32, kN, true}};
  k.axes = {{"i", kN, true}};
  k.registers = {
      {DType::kI64}, {DType::kI32}, {DType::kF32, true}, {DType::kI32, true}};
  k.phases.push_back(
      {{0},
       {Load(0, 0, {}), Load(1, 1, {}), Random(2, 0, 1, 9, 4, {3, {{0, 5}}}),
        IndexValue(3, {-7, {{0, 2}}}), Store(2, {0, {{0, 1}}}, 2),
        Store(3, {0, {{0, 1}}}, 3)}});
  ExpectAsInterpreted({k});
}

}  // namespace
}  // namespace fusor::test
