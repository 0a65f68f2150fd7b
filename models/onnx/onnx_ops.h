#pragma once

// ONNX operators as functions of Layers and Builder.

#include <span>
#include <string_view>
#include <vector>

#include "models/onnx/onnx_call.h"

namespace fusor::models {

struct OnnxOp {
  std::string_view name;
  OnnxResults (*build)(OnnxCall& call);
  // Use of each operand if it is a float initialiser, one character per
  // operand. w: weight. b: bias. s, h: scale and shift of a normalisation. m,
  // v: its running mean and variance. +: weight or bias, but a constant if it
  // is a single number. =: the use of the node's result. *: the use of the
  // operand before. Other characters, and operands beyond the end: a constant.
  std::string_view states = "";
};

// One table per family.
std::span<const OnnxOp> OnnxAttentionOps();
std::span<const OnnxOp> OnnxControlOps();  // with bodies
std::span<const OnnxOp> OnnxElementwiseOps();
std::span<const OnnxOp> OnnxIndexedOps();  // access by index
std::span<const OnnxOp> OnnxLayerOps();    // with weights, normalisation
std::span<const OnnxOp> OnnxLossOps();
std::span<const OnnxOp> OnnxRecurrentOps();
std::span<const OnnxOp> OnnxReductionOps();  // and scans
std::span<const OnnxOp> OnnxResizeOps();     // and sampling
std::span<const OnnxOp> OnnxShapeOps();      // data movement, sources
std::span<const OnnxOp> OnnxSignalOps();     // Fourier transforms
std::span<const OnnxOp> OnnxWindowOps();     // convolution, pooling

std::vector<OnnxOp> AllOnnxOps();
// Returns null if the operator is unknown.
const OnnxOp* FindOnnxOp(std::string_view name);

}  // namespace fusor::models
