#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "codegen/cuda/cudnn_descriptor.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/tensor_type.h"

namespace fusor::cuda {

// Operations on tensors, as cuDNN plans them together: [N,C,H,W] in any layout
// without tiles, or per channel, [C]. Arithmetic is in f32: of f32 operands,
// tensor cores take TF32.
//
// What a run binds to the tensors of memory are a call's arguments: the unique
// id of argument i is i + 1. All others are virtual.
class CudnnOpGraph {
 public:
  using Tensor = size_t;

  // The call's next operand or result.
  Tensor Argument(const ir::TensorType& type);
  // A value that stays inside, f32, in the layout of `type`.
  Tensor Virtual(ir::TensorType type);

  // y = x * w + beta * y, or the same of the gradients: whichever of the three
  // `kind` says is the result. `geometry`: stride, pad, dilation.
  void Convolve(ir::ConvKind kind, const ir::Attrs& geometry, Tensor x,
                Tensor w, Tensor y, double beta = 0);
  void Pointwise(cudnnPointwiseMode_t mode, Tensor a, Tensor b, Tensor y);
  void Relu(Tensor x, Tensor y);
  void ReluGrad(Tensor dy, Tensor x, Tensor dx);
  // Sums of x and of its squares over all but the channels.
  void Statistics(Tensor x, Tensor sum, Tensor squares);

  // What batch normalisation's gradient needs, per channel: its statistics and
  // scale in, gradients of scale and bias and the coefficients of
  // dx = a * dy + b * x + c out.
  struct NormSums {
    Tensor x, mean, inverse_deviation, scale;
    Tensor scale_grad, bias_grad, a, b, c;
  };
  void SumForNorm(Tensor dy, const NormSums& sums);

  // The graph that cuDNN can be asked about; throws kGraph where it refuses it.
  // Call once, at the end.
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

// The graph of a library call on convolutions. Operands, then results, in
// the order of the IR's op; attributes that no op of the IR has say what is
// computed with the convolution, and add arguments:
//
//   conv2d              prologue "norm": + scale, bias: x is relu(x * scale +
//                         bias)
//                       prologue "join": + scale, bias, shortcut: x is
//                         relu(x * scale + bias + shortcut), the last result
//                       prologue "dual": + scale, bias, x2, scale2, bias2: x is
//                         relu(x * scale + bias + x2 * scale2 + bias2), the
//                         last result
//                       statistics true: results sum, sum of squares after y
//   conv2d_grad_weight  prologue "norm", as above
//   conv2d_grad_input   accumulate true: + operand that is added, in place of
//                         the result, by the convolution itself
//                       add true: + a gradient that is added
//                       norm "relu": + x, mean, 1 / deviation, scale, bias: the
//                         gradient is that of relu(y), y = (x - mean) /
//                         deviation * scale + bias; results scale_grad,
//                         bias_grad, a, b, c of NormSums at the end
//                       norm "join": + shortcut, which is added to y
//                       norm "dual": + x2, .., bias2, whose y2 is added to y,
//                         and so many results
//
// Throws kGraph for what is no convolution, or not one of these.
CudnnOpGraph GraphOf(const codegen::LibraryCall& call);

}  // namespace fusor::cuda
