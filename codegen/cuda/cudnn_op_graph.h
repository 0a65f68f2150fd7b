#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "codegen/cuda/cudnn_descriptor.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/tensor_type.h"

namespace fusor::cuda {

// A graph of operations that cuDNN plans together. Tensors are [N,C,H,W] in any
// layout without tiles, or [C], per channel. Arithmetic is in f32; tensor cores
// read f32 operands as TF32.
//
// Tensors in memory are the call's arguments: argument i has the unique id i +
// 1. All other tensors are virtual.
class CudnnOpGraph {
 public:
  using Tensor = size_t;

  // Adds the call's next operand or result.
  Tensor Argument(const ir::TensorType& type);
  // Adds an intermediate tensor: f32, with the shape and layout of `type`.
  Tensor Virtual(ir::TensorType type);

  // Adds y = x * w + beta * y or, depending on `kind`, the gradient of x or w,
  // also plus beta times its old value. `geometry`: stride, pad, dilation.
  void Convolve(ir::ConvKind kind, const ir::Attrs& geometry, Tensor x,
                Tensor w, Tensor y, double beta = 0);
  void Pointwise(cudnnPointwiseMode_t mode, Tensor a, Tensor b, Tensor y);
  void Relu(Tensor x, Tensor y);
  void ReluGrad(Tensor dy, Tensor x, Tensor dx);
  // Adds the sums of x and of its squares over all dimensions except channels.
  void Statistics(Tensor x, Tensor sum, Tensor squares);

  // Tensors of batch normalisation's gradient; all but x are per channel.
  // Inputs are x, statistics and scale. Results are the gradients of scale and
  // bias and the coefficients of dx = a * dy + b * x + c.
  struct NormSums {
    Tensor x, mean, inverse_deviation, scale;
    Tensor scale_grad, bias_grad, a, b, c;
  };
  void SumForNorm(Tensor dy, const NormSums& sums);

  // Returns the finished graph. Throws kGraph if cuDNN rejects it. Call once,
  // last.
  CudnnDescriptor Finish();

 private:
  Tensor Add(const ir::TensorType& type, int64_t id, bool is_virtual);
  CudnnDescriptor& AddOperation(cudnnBackendDescriptorType_t type);
  using Named = std::pair<cudnnBackendAttributeName_t, Tensor>;
  void AddPointwise(cudnnPointwiseMode_t mode,
                    std::initializer_list<Named> tensors);

  int64_t arguments_ = 0;
  std::vector<CudnnDescriptor> tensors_;
  std::vector<CudnnDescriptor> descriptions_;  // of operations, kept alive
  std::vector<CudnnDescriptor> operations_;
};

// Returns the graph of a convolution, or of a library fusion of one
// (ir/library_fusion.h): an operation for each op of the body, and one for
// SumChannels and SumNormGradient. Arguments are the operands, then the
// results. Throws kGraph for other calls, and for ops that cuDNN does not have.
CudnnOpGraph GraphOf(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
