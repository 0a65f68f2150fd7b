#include "models/onnx/onnx_ops.h"

namespace fusor::models {
namespace {

constexpr std::span<const OnnxOp> (*kFamilies[])() = {
    OnnxAttentionOps, OnnxControlOps, OnnxElementwiseOps, OnnxIndexedOps,
    OnnxLayerOps,     OnnxLossOps,    OnnxRecurrentOps,   OnnxReductionOps,
    OnnxResizeOps,    OnnxShapeOps,   OnnxSignalOps,      OnnxWindowOps};

}  // namespace

std::vector<OnnxOp> AllOnnxOps() {
  std::vector<OnnxOp> all;
  for (const auto family : kFamilies) {
    all.insert(all.end(), family().begin(), family().end());
  }
  return all;
}

const OnnxOp* FindOnnxOp(std::string_view name) {
  for (const auto family : kFamilies) {
    for (const OnnxOp& op : family()) {
      if (op.name == name) return &op;
    }
  }
  return nullptr;
}

}  // namespace fusor::models
