#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "ir/graph.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::test {

// A graph of one node with row-major operands, and its library calls.
struct OneNode {
  OneNode(std::string_view op, const std::vector<ir::TensorType>& operands,
          const ir::Attrs& attrs);

  // Makes the node a library fusion that also takes the ReLU of its result.
  void AddRelu();

  codegen::LibraryCall Call(const std::vector<ir::Layout>& operand_layouts,
                            const std::vector<ir::Layout>& result_layouts,
                            const std::string& algorithm = "") const;
  codegen::LibraryCall PlainCall(const std::string& algorithm = "") const;

  // Returns random operands, the same each time.
  std::vector<ir::Tensor> Operands() const;
  // Interprets the node without rounding.
  std::vector<ir::Tensor> Expected(
      const std::vector<ir::Tensor>& operands) const;

  ir::Graph graph;
  ir::Node* node;
};

// Prepares the call unless it names an implementation, and runs it once on the
// CPU backend.
std::vector<ir::Tensor> RunCall(codegen::LibraryCall& call,
                                const std::vector<ir::Tensor>& operands);

// Returns the tolerance relative to the largest element: a few units in the
// last place of `dtype`.
double LibraryTolerance(ir::DType dtype);

// Expects that the call's results are those of the interpreter up to rounding.
void ExpectClose(const OneNode& one, codegen::LibraryCall call);

struct ConvCase {
  int64_t n, c, o, size, kernel, stride, pad, dilation, groups;
  bool bias = false, relu = false;
  // Default: `size` and `pad`.
  std::optional<int64_t> width{}, pad_width{};
  // Bottom and right padding. Default: the top and left padding.
  std::optional<int64_t> far_pad{}, far_pad_width{};
};

// Returns a convolution and its gradients for the input and the weight. For
// bf16, adds a weight gradient in f32.
std::vector<std::unique_ptr<OneNode>> ConvNodes(const ConvCase& c,
                                                ir::DType dtype);

// Returns random cases: windows larger than the feature map, feature maps
// smaller than the stride, padding larger than the kernel.
std::vector<ConvCase> OddConvCases(int count);

}  // namespace fusor::test
