#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::passes {

// A normalisation and what is computed of its result, up to a ReLU, through
// values of a single use:
//
//   relu(bn(x))            residual "none"
//   relu(bn(x) + r)        "add"
//   relu(bn(x) + bn(x2))   "norm"
//
// Of two normalised operands the one computed later, in a residual network the
// main branch, comes first.
struct NormActivation {
  ir::Node* relu = nullptr;
  ir::Node* add = nullptr;        // null without residual
  ir::Node* norm = nullptr;       // the main one; null when nothing matches
  ir::Node* norm2 = nullptr;      // of residual "norm"
  ir::Value* residual = nullptr;  // of residual "add"
  std::string refusal;            // why a normalisation is not matched

  // x, gamma, beta and the residual, as batch_norm_train reads them.
  std::vector<ir::Value*> Operands() const;
  std::vector<ir::Node*> Nodes() const;  // those that there are
  // Of the graph's gradients, if it has them, those that become one op as well:
  // of the normalisations, and what lets pass the ReLU's.
  std::vector<ir::Node*> Gradients() const;
};

// Finds them in a graph with its gradients, too, and the same ones: these read
// what normalisations read, their statistics and the ReLU's result.
class NormActivations {
 public:
  // REQUIRES: the graph outlives this.
  explicit NormActivations(const ir::Graph& graph) : graph_(graph) {}

  // What `relu` ends; with neither a normalisation nor a refusal when it reads
  // something else, or is another op.
  NormActivation Of(ir::Node* relu) const;

 private:
  bool IsPrivate(const ir::Value* value) const;
  bool IsPlainAndPrivate(const ir::Value* value) const;
  void FindResidual(NormActivation& match) const;

  const ir::Graph& graph_;
};

// The normalisation whose gradient `node` is, which has computed the mean that
// it reads; null for other nodes, and where a mean comes from elsewhere.
const ir::Node* NormOfGradient(const ir::Node& node);

}  // namespace fusor::passes
