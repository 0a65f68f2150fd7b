#pragma once

// The base of all lowerings of a contraction. It makes the loop nest, loads or
// computes the factors, and emits the statements that read the sums.

#include <memory>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/body_emitter.h"
#include "codegen/lower/loop_nest.h"
#include "codegen/lower/lower.h"
#include "ir/graph.h"
#include "ir/target/target.h"
#include "passes/fusion/contraction.h"

namespace fusor::codegen {

class ContractionEmitter {
 protected:
  using Parts = std::vector<std::vector<AxisPart>>;

  // Adds the buffers of the body's inputs and outputs. REQUIRES:
  // passes::AnalyzeContraction accepts the body.
  ContractionEmitter(const ir::Graph& body, const ir::Target& target,
                     bool eager);
  ~ContractionEmitter() = default;

  const ir::Node& node() const { return *contraction_.node; }
  int row_factor() const { return 1 - contraction_.column_factor; }
  Access FactorAccess(int factor) const {
    return {node().input(factor)->type(), contraction_.factors[factor]};
  }
  Access ResultAccess() const {
    return {node().output()->type(),
            contraction_.domain.maps.at(node().output())};
  }
  int64_t Extent(int axis) const { return nest_->axes()[axis].extent; }
  // Returns the element of the factor whose terms are axes of the nest.
  Index FactorIndex(int factor) const;

  // Adds a kernel axis and makes it a part of an axis of the nest.
  int AddPart(int nest_axis, std::string name, int64_t extent, int64_t factor,
              AxisKind kind = AxisKind::kSerial);
  int AddPart(int nest_axis, int64_t extent, int64_t factor = 1) {
    return AddPart(nest_axis, nest_->axes()[nest_axis].name, extent, factor);
  }

  // Emits the factor's element at the present parts. Returns its register.
  int EmitFactor(int factor);
  // Emits what follows the sum in `reg`, at the present parts, but not what
  // follows column sums. All loads precede all stores. Returns the summands of
  // the contraction's column sums.
  std::vector<int> EmitResults(int reg);
  // Emits what follows the column sums in `sums`, at the present parts.
  void EmitColumnResults(const std::vector<int>& sums);

  // Long sums are divided into chunks, whose sums are in a buffer of their own
  // until a last phase adds them.
  void AddPartialBuffer(int64_t chunks);
  // Stores the sum in `reg` of the chunk, an axis.
  void StorePartial(int chunk, int reg);
  // Emits the phase that adds the chunks' sums and what follows them, with
  // vectors along that axis of the nest.
  void EmitCombination(int vector_axis);

  // Returns the kernel, and which results may overwrite which operands.
  LoweredKernel Build();

  const ir::Graph& body_;
  const ir::Target& target_;
  const bool eager_;
  passes::Contraction contraction_;
  KernelBuilder builder_;
  ir::DType dtype_{};  // of the sums
  std::unique_ptr<LoopNest> nest_;
  std::unique_ptr<BodyEmitter> emitter_;
  Parts parts_;  // by axis of the nest; of the current phase

 private:
  int RoundedTo(int reg, ir::DType dtype);
  void StoreOutputs(bool of_columns);
  Index PartialIndex(int chunk) const;

  int partial_ = -1;  // buffer of the chunks' sums
  int64_t chunks_ = 1;
};

}  // namespace fusor::codegen
