// Fuses each NormActivation into one op:
//
//   relu(bn(x))            -> relu="true",  residual="none"   counter bn_relu
//   relu(bn(x) + r)        -> residual="add"                  bn_add_relu
//   relu(bn(x) + bn(x2))   -> residual="norm"                 bn_add_relu and
//                                                             dual_bn_add_relu

#include <string>
#include <utility>
#include <vector>

#include "ir/target/cost.h"
#include "passes/passes.h"
#include "passes/patterns/norm_activation.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "fuse_norm_activation";

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    for (const char* name : {"bn_relu", "bn_add_relu", "dual_bn_add_relu"}) {
      context_.counters()[name] += 0;
    }
    const NormActivations matches(graph_);
    std::vector<Node*> relus;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == OpKind::kRelu) relus.push_back(node.get());
    }
    bool changed = false;
    for (Node* relu : relus) {
      const NormActivation match = matches.Of(relu);
      if (!match.refusal.empty()) Refuse(*relu, match.refusal);
      if (match.norm == nullptr ||
          !context_.ConsumeFuel(kPass, *relu->output())) {
        continue;
      }
      Rewrite(match);
      changed = true;
    }
    return changed;
  }

 private:
  void Refuse(const Node& relu, std::string reason) {
    context_.Record({.pass = kPass,
                     .subject = relu.output()->name(),
                     .accepted = false,
                     .reason = std::move(reason),
                     .location = relu.location()});
  }

  void Rewrite(const NormActivation& match) {
    ir::Attrs attrs = match.norm->attrs();
    attrs.Set("relu", true);
    attrs.Set("residual", std::string(match.norm2 != nullptr      ? "norm"
                                      : match.residual != nullptr ? "add"
                                                                  : "none"));
    Node* fused = graph_.AddNode("batch_norm_train", match.Operands(), attrs,
                                 match.norm->location(), match.relu);
    fused->output()->set_type(match.relu->output()->type());
    Count(match, *fused, "residual " + attrs.String("residual"));
    std::vector<std::pair<Value*, Value*>> results{
        {match.relu->output(), fused->output(0)},
        {match.norm->output(1), fused->output(1)},
        {match.norm->output(2), fused->output(2)}};
    if (match.norm2 != nullptr) {
      results.emplace_back(match.norm2->output(1), fused->output(3));
      results.emplace_back(match.norm2->output(2), fused->output(4));
    }
    const std::string mask_name = match.relu->output()->name() + "_mask";
    Replace(match, results);
    if (match.add != nullptr) {
      graph_.Rename(fused->output(fused->num_outputs() - 1), mask_name);
    }
  }

  // Readers of the statistics may be positioned between the normalisation and
  // the ReLU, where the new node is; the graph is then sorted again.
  void Replace(const NormActivation& match,
               const std::vector<std::pair<Value*, Value*>>& results) {
    bool ordered = true;
    std::vector<std::pair<Value*, std::string>> names;
    for (const auto& [from, to] : results) {
      for (const ir::Use& use : from->uses()) {
        ordered &= use.node->position() > match.relu->position();
      }
      graph_.ReplaceAllUses(from, to);
      names.emplace_back(to, from->name());
    }
    graph_.EraseAll(match.Nodes());
    for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
    if (!ordered) graph_.SortTopologically();
  }

  void Count(const NormActivation& match, const Node& fused,
             std::string reason) {
    ++context_.counters()[match.add == nullptr ? "bn_relu" : "bn_add_relu"];
    if (match.norm2 != nullptr) ++context_.counters()["dual_bn_add_relu"];
    const int64_t modelled = ModelledNs(fused);
    int64_t apart = 0;
    for (const Node* node : match.Nodes()) apart += ModelledNs(*node);
    context_.Record({.pass = kPass,
                     .subject = match.relu->output()->name(),
                     .accepted = true,
                     .reason = std::move(reason),
                     .saved_ns = apart - modelled,
                     .modelled_ns = modelled,
                     .location = match.norm->location()});
  }

  // Estimated time of the node as a separate kernel.
  int64_t ModelledNs(const Node& node) const {
    return ir::KernelNs(ir::NodeBytes(node), context_.target().target());
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool FuseNormActivation(Graph& graph, PassContext& context) {
  return Fuser(graph, context).Run();
}

}  // namespace fusor::passes
