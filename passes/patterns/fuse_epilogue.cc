// Fuses the ops that follow a convolution or a matmul into its call, if the
// target's library supports that at no cost and nothing else reads the values
// in between.
//
// fuse_conv_epilogue: a ReLU.
//
// fuse_matmul_epilogue: a bias and a ReLU, e.g. of fully connected layers:
//
//   %p = matmul(%x, %w) {transpose_b=true}
//   %b = broadcast(%bias) {dims=[1], shape=[64,4096]}
//   %s = add(%p, %b)
//   %y = relu(%s)            =>  %y = fusion(%x, %w, %bias) {kind="library"} {
//                                  ... matmul, broadcast, add, relu ...
//                                }
//
// The sum is rounded once instead of twice, so with eager rounding the bias
// remains an add.
//
// Both run after differentiation: the gradient of a ReLU reads the ReLU's
// result, so it does not need the convolution's or the matmul's.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/library_fusion.h"
#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::LibraryCandidate;
using ir::LibraryFusion;
using ir::Node;
using ir::OpKind;
using ir::Value;

// Returns the vector [N] that is broadcast to every row of `value`, [..,M,N];
// null if there is none.
Value* RowVector(const Value& value) {
  const Node* node = value.producer();
  const auto last = static_cast<int64_t>(value.type().rank()) - 1;
  const bool repeats = IsOp(node, OpKind::kBroadcast) &&
                       node->attrs().Ints("dims") == std::vector<int64_t>{last};
  return repeats ? node->input(0) : nullptr;
}

class EpilogueFusion {
 public:
  // `op`: what is followed by an epilogue, called `what` in reasons and
  // `counter` in the names of counters.
  EpilogueFusion(Graph& graph, PassContext& context, const char* pass,
                 OpKind op, const char* what, const std::string& counter)
      : graph_(graph),
        context_(context),
        pass_(pass),
        op_(op),
        what_(what),
        relus_(context.counters()[counter + "_relu"]) {}

  void FuseBiases(int64_t& biases) {
    for (Node* node : NodesOf(OpKind::kAdd)) {
      for (size_t i = 0; i < 2; ++i) {
        Node* product = node->input(i)->producer();
        Value* bias = RowVector(*node->input(1 - i));
        if (bias == nullptr || !IsOp(product, op_) ||
            HasGeneratedKernel(*product)) {
          continue;
        }
        LibraryFusion fusion(*product);
        fusion.AddBias(bias);
        biases += Take(*product, std::move(fusion), *node, "bias");
        break;
      }
    }
  }

  void FuseRelus() {
    for (Node* node : NodesOf(OpKind::kRelu)) {
      Node* product = node->input(0)->producer();
      if (product == nullptr || ir::LibraryOp(*product).kind() != op_ ||
          HasGeneratedKernel(*product)) {
        continue;
      }
      const auto epilogue = ir::EpilogueOf(*product);
      if (!epilogue.has_value() || epilogue->relu) continue;
      LibraryFusion fusion(*product);
      fusion.AddRelu();
      relus_ += Take(*product, std::move(fusion), *node, "ReLU");
    }
  }

  // Erases what is no longer read. Returns whether anything was fused.
  bool Finish() {
    if (changed_) EraseDeadNodes(graph_);
    return changed_;
  }

 private:
  std::vector<Node*> NodesOf(OpKind kind) const {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() == kind) nodes.push_back(node.get());
    }
    return nodes;
  }

  // Returns whether a kernel was chosen for a matmul, which fuse_contraction
  // fuses.
  static bool HasGeneratedKernel(const Node& product) {
    return product.kind() == OpKind::kMatmul &&
           product.attrs().String("algorithm") == ir::kGeneratedAlgorithm;
  }

  // Returns the candidate that runs the call as it stands.
  std::optional<LibraryCandidate> Running(const Node& call) const {
    const auto candidates = context_.target().Candidates(call);
    const auto found = std::find_if(
        candidates.begin(), candidates.end(), [&](const LibraryCandidate& c) {
          return FitsLayouts(call, c) &&
                 (!call.HasTrait(ir::OpTrait::kConvolution) ||
                  c.algorithm == AlgorithmOf(call));
        });
    return found == candidates.end() ? std::nullopt : std::optional(*found);
  }

  // Gives `fused` the algorithm of `product`. Returns whether the library then
  // runs both in the same way.
  bool RunsAlike(const Node& product, Node& fused) const {
    const auto plain = Running(product);
    if (!plain.has_value()) return false;
    const auto candidates = context_.target().Candidates(fused);
    const bool alike = std::any_of(
        candidates.begin(), candidates.end(), [&](const LibraryCandidate& c) {
          return FitsLayouts(fused, c) && c.algorithm == plain->algorithm &&
                 c.implementation == plain->implementation;
        });
    if (alike && op_ == OpKind::kConv2d) {
      ir::LibraryOp(fused).mutable_attrs().Set("algorithm", plain->algorithm);
    }
    return alike;
  }

  // Replaces `product` and its only reader `node` by `fusion`, which also
  // computes `addition`. Records the decision. Returns whether it did.
  bool Take(Node& product, LibraryFusion fusion, Node& node,
            const std::string& addition) {
    const Value& value = *product.output();
    Node* fused = nullptr;
    std::string rejection;
    if (value.uses().size() > 1 || graph_.IsOutput(&value)) {
      rejection = value.name() + " has other uses";
    } else if (addition == "bias" && context_.options().eager_rounding) {
      rejection = "eager rounding rounds it before the bias is added";
    } else {
      fused = std::move(fusion).Build(graph_, &node);
      if (!RunsAlike(product, *fused)) {
        rejection = fmt::format("the library has no such {} with a {}", what_,
                                addition);
      } else if (!context_.ConsumeFuel(pass_, *node.output())) {
        rejection = "out of fuel";
      }
    }
    const bool accepted = rejection.empty();
    context_.Record(
        {.pass = pass_,
         .subject = node.output()->name(),
         .accepted = accepted,
         .reason = accepted ? std::string("only consumer of the ") + what_
                            : std::move(rejection),
         .saved_ns = accepted ? ir::KernelNs(ir::NodeBytes(node),
                                             context_.target().target())
                              : 0,
         .location = node.location()});
    if (!accepted) {
      if (fused != nullptr) graph_.Erase(fused);
      return false;
    }
    const std::string name = node.output()->name();
    graph_.ReplaceAllUses(node.output(), fused->output());
    graph_.EraseAll({&node, &product});
    graph_.Rename(fused->output(), name);
    changed_ = true;
    return true;
  }

  Graph& graph_;
  PassContext& context_;
  const char* pass_;
  const OpKind op_;
  const char* what_;
  int64_t& relus_;
  bool changed_ = false;
};

}  // namespace

bool FuseConvEpilogue(Graph& graph, PassContext& context) {
  EpilogueFusion fusion(graph, context, "fuse_conv_epilogue", OpKind::kConv2d,
                        "convolution", "conv");
  fusion.FuseRelus();
  return fusion.Finish();
}

bool FuseMatmulEpilogue(Graph& graph, PassContext& context) {
  EpilogueFusion fusion(graph, context, "fuse_matmul_epilogue", OpKind::kMatmul,
                        "matmul", "matmul");
  fusion.FuseBiases(context.counters()["matmul_bias"]);
  fusion.FuseRelus();
  return fusion.Finish();
}

}  // namespace fusor::passes
