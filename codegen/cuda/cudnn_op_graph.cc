#include "codegen/cuda/cudnn_op_graph.h"

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using ir::ConvKind;
using ir::DType;

constexpr int64_t kFirstVirtualId = 1000;
constexpr int64_t kAlignment = 16;  // of every tensor, bytes

cudnnDataType_t DataType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDNN_DATA_FLOAT;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    default:
      FUSOR_CHECK(false, kGraph, "cuDNN: no convolutions of {}",
                  ir::DTypeName(dtype));
  }
}

struct Extents {
  ir::Shape shape, strides;  // strides in elements
};

Extents ExtentsOf(const ir::TensorType& type) {
  if (type.rank() == 1) {
    const int64_t channels = type.shape[0];
    return {{1, channels, 1, 1}, {channels, 1, channels, channels}};
  }
  FUSOR_CHECK(type.rank() == 4 && type.layout.tiles.empty(), kGraph,
              "cuDNN: expected [C], or [N,C,H,W] without tiles, got {}",
              ToString(type));
  Extents extents{type.shape, ir::Shape(4)};
  int64_t stride = 1;
  for (int i = 3; i >= 0; --i) {
    const int dim = type.layout.order.empty() ? i : type.layout.order[i];
    extents.strides[dim] = stride;
    stride *= type.shape[dim];
  }
  return extents;
}

// The attributes of one kind of convolution's operation descriptor.
struct ConvNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, description, x, w, y;
};

ConvNames NamesOf(ConvKind kind) {
  switch (kind) {
    case ConvKind::kForward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
    case ConvKind::kGradInput:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case ConvKind::kGradWeight:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
}

}  // namespace

CudnnOpGraph::Tensor CudnnOpGraph::Add(const ir::TensorType& type, int64_t id,
                                       bool is_virtual) {
  const Extents extents = ExtentsOf(type);
  CudnnDescriptor& t = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.Set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  t.Set(CUDNN_ATTR_TENSOR_DATA_TYPE, DataType(type.dtype));
  t.Set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  t.Set(CUDNN_ATTR_TENSOR_DIMENSIONS, extents.shape);
  t.Set(CUDNN_ATTR_TENSOR_STRIDES, extents.strides);
  t.Set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  t.Finalize();
  return tensors_.size() - 1;
}

CudnnOpGraph::Tensor CudnnOpGraph::Argument(const ir::TensorType& type) {
  return Add(type, ++arguments_, false);
}

CudnnOpGraph::Tensor CudnnOpGraph::Virtual(ir::TensorType type) {
  type.dtype = DType::kF32;
  return Add(type, kFirstVirtualId + static_cast<int64_t>(tensors_.size()),
             true);
}

CudnnDescriptor& CudnnOpGraph::AddOperation(cudnnBackendDescriptorType_t type) {
  return operations_.emplace_back(type);
}

void CudnnOpGraph::Convolve(ConvKind kind, const ir::Attrs& geometry, Tensor x,
                            Tensor w, Tensor y, double beta) {
  CudnnDescriptor& d =
      descriptions_.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  d.Set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.Set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  d.Set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
  const std::vector<int64_t>& pad = geometry.Ints("pad");  // or of both sides
  d.Set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
        std::vector<int64_t>(pad.begin(), pad.begin() + 2));
  d.Set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
        std::vector<int64_t>(pad.end() - 2, pad.end()));
  d.Set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, geometry.Ints("stride"));
  d.Set(CUDNN_ATTR_CONVOLUTION_DILATIONS, geometry.Ints("dilation"));
  d.Finalize();
  const ConvNames names = NamesOf(kind);
  CudnnDescriptor& op = AddOperation(names.type);
  op.Set(names.alpha, 1.0);
  op.Set(names.beta, beta);
  op.Set(names.description, d);
  op.Set(names.x, tensors_[x]);
  op.Set(names.w, tensors_[w]);
  op.Set(names.y, tensors_[y]);
  op.Finalize();
}

void CudnnOpGraph::AddPointwise(cudnnPointwiseMode_t mode,
                                std::initializer_list<Named> tensors) {
  CudnnDescriptor& d =
      descriptions_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.Set(CUDNN_ATTR_POINTWISE_MODE, mode);
  d.Set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  // The IR's ReLU keeps NaN.
  if (mode == CUDNN_POINTWISE_RELU_FWD) {
    d.Set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
  }
  d.Finalize();
  CudnnDescriptor& op =
      AddOperation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.Set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
  for (const auto& [name, tensor] : tensors) op.Set(name, tensors_[tensor]);
  op.Finalize();
}

void CudnnOpGraph::Pointwise(cudnnPointwiseMode_t mode, Tensor a, Tensor b,
                             Tensor y) {
  AddPointwise(mode, {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a},
                      {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
                      {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void CudnnOpGraph::Relu(Tensor x, Tensor y) {
  AddPointwise(CUDNN_POINTWISE_RELU_FWD,
               {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}});
}

void CudnnOpGraph::ReluGrad(Tensor dy, Tensor x, Tensor dx) {
  AddPointwise(CUDNN_POINTWISE_RELU_BWD,
               {{CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy},
                {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                {CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, dx}});
}

void CudnnOpGraph::Statistics(Tensor x, Tensor sum, Tensor squares) {
  CudnnDescriptor& op =
      AddOperation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  op.Set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_GENSTATS_SUM_SQSUM);
  op.Set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_DATA_FLOAT);
  op.Set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, tensors_[x]);
  op.Set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, tensors_[sum]);
  op.Set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, tensors_[squares]);
  op.Finalize();
}

void CudnnOpGraph::SumForNorm(Tensor dy, const NormSums& sums) {
  CudnnDescriptor& op =
      AddOperation(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
  op.Set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_DATA_FLOAT);
  const Named tensors[] = {
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, dy},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, sums.x},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, sums.mean},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, sums.inverse_deviation},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, sums.scale},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, sums.scale_grad},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, sums.bias_grad},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, sums.a},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, sums.b},
      {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, sums.c},
  };
  for (const auto& [name, tensor] : tensors) op.Set(name, tensors_[tensor]);
  op.Finalize();
}

CudnnDescriptor CudnnOpGraph::Finish() {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.Set(CUDNN_ATTR_OPERATIONGRAPH_OPS,
            std::span<const CudnnDescriptor>(operations_));
  graph.Finalize();
  return graph;
}

}  // namespace fusor::cuda
