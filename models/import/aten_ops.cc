#include "models/import/aten_ops.h"

namespace fusor::models {

const AtenOp* FindAtenOp(std::string_view name) {
  for (const auto family :
       {AtenConvolutionOps, AtenElementwiseOps, AtenFunctionOps, AtenIndexedOps,
        AtenLayerOps, AtenLossOps, AtenPoolOps, AtenRearrangedOps,
        AtenRecurrentOps, AtenResamplingOps, AtenShapeOps, AtenVectorOps}) {
    for (const AtenOp& op : family()) {
      if (op.name == name) return &op;
    }
  }
  return nullptr;
}

}  // namespace fusor::models
