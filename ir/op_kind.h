#pragma once

#include <cstdint>

namespace fusor::ir {

// One enumerator per op, in the order of AllOps() (ir/op.h).
enum class OpKind : uint8_t {
  // Elementwise
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kTanh,
  kSin,
  kCos,
  kErf,
  kFloor,
  kRelu,
  kNot,
  kIsFinite,
  kStopGradient,
  kCast,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kPow,
  kFloorDiv,
  kRemainder,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kAnd,
  kOr,
  kCompare,
  kSelect,
  // Sources
  kConstant,
  kIota,
  kRandom,
  // Shapes and layouts
  kBroadcast,
  kReshape,
  kTranspose,
  kSlice,
  kPad,
  kConcat,
  kCopy,
  kFlatten,
  kUnflatten,
  // Indexed access
  kGather,
  kScatterAdd,
  // Reductions, scans
  kReduce,
  kCumulativeSum,
  kAllFinite,
  kSumOfSquares,
  // Matmul, convolution, pooling
  kMatmul,
  kConv2d,
  kConv2dGradInput,
  kConv2dGradWeight,
  kMaxPool,
  kMaxPoolGrad,
  kMaxPoolGather,
  kAvgPool,
  kAvgPoolGrad,
  // Normalisation, images
  kBatchNormTrain,
  kBatchNormGrad,
  kSpaceToDepth,
  // Collectives, differentiation, fusion
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kCustomGradient,
  kFusion,
};

inline constexpr int kNumOps = static_cast<int>(OpKind::kFusion) + 1;

// Properties that several ops share. Code that treats such ops alike tests the
// trait, so that another op of the family needs no change there.
enum class OpTrait : uint32_t {
  kPure = 1,         // equal nodes may be merged, unused ones dropped
  kCollective = 2,   // exchanges data with other ranks
  kConvolution = 4,  // conv2d and its gradients
  kPooling = 8,      // computes windows: attributes window, stride, pad
  kResultDType = 16  // attribute result_dtype sets the first result's dtype
};

constexpr OpTrait operator|(OpTrait a, OpTrait b) {
  return static_cast<OpTrait>(static_cast<uint32_t>(a) |
                              static_cast<uint32_t>(b));
}

}  // namespace fusor::ir
