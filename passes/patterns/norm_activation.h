#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// A normalisation and the ops on its result, up to a ReLU, through single-use
// values:
//
//   relu(bn(x))            residual "none"
//   relu(bn(x) + r)        "add"
//   relu(bn(x) + bn(x2))   "norm"
//
// Of two normalised operands the one computed later comes first: the main
// branch in a residual network.
struct NormActivation {
  ir::Node* relu = nullptr;
  ir::Node* add = nullptr;        // null without residual
  ir::Node* norm = nullptr;       // the main one; null if nothing matches
  ir::Node* norm2 = nullptr;      // for residual "norm"
  ir::Value* residual = nullptr;  // for residual "add"
  std::string rejection;          // rejection reason of a normalisation

  // Returns x, gamma, beta and the residual, as batch_norm_train reads them.
  std::vector<ir::Value*> Operands() const;
  std::vector<ir::Node*> Nodes() const;  // those that are not null
  // Returns the matching gradient nodes, if the graph has gradients: those of
  // the normalisations, and the select that applies the ReLU's mask.
  std::vector<ir::Node*> Gradients() const;
};

// Finds the same matches before and after differentiation: gradient nodes may
// read the operands of normalisations, their statistics and the ReLU's result.
class NormActivations {
 public:
  // REQUIRES: the graph outlives this.
  explicit NormActivations(const ir::Graph& graph) : graph_(graph) {}

  // Returns the match that ends at `relu`. `norm` is null and `rejection` empty
  // if `relu` is another op or does not read a normalisation.
  NormActivation Of(ir::Node* relu) const;

 private:
  bool IsPrivate(const ir::Value* value) const;
  bool IsPlainAndPrivate(const ir::Value* value) const;
  void FindResidual(NormActivation& match) const;

  const ir::Graph& graph_;
};

// Returns the normalisation whose gradient `node` computes, i.e. the producer
// of the mean that it reads. Returns null for other nodes and for other
// producers.
const ir::Node* NormOfGradient(const ir::Node& node);

}  // namespace fusor::passes
