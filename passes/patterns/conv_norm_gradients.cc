// Fuses gradients of normalisations into data gradients: see fuse_conv_norm.cc.

#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/target/cost.h"
#include "passes/library/conv_rewriter.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::OpKind;
using ir::Value;

// The operands of a batch_norm_grad.
struct Gradient {
  std::string residual;
  Value* dy;
  std::vector<Value*> main;    // x, gamma, beta, mean, variance
  std::vector<Value*> second;  // the same, for residual "norm"
};

Gradient GradientOf(const Node& node) {
  const std::vector<Value*>& in = node.inputs();
  Gradient g{node.attrs().String("residual"), in[0], {}, {}};
  g.main.assign(in.begin() + 1, in.begin() + 6);
  if (g.residual == "norm") g.second.assign(in.begin() + 6, in.begin() + 11);
  return g;
}

class NormGradients {
 public:
  explicit NormGradients(ConvRewriter& rewriter) : r_(rewriter) {}

  void Run() {
    for (Node* norm : r_.NodesOf(OpKind::kBatchNormGrad)) TakeGradient(norm);
    r_.Check(places_, "the gradient of a normalisation", "conv_norm_grad");
  }

 private:
  // Returns the node whose mask it reads; null if it recomputes the mask.
  static const Node* ForwardOf(const Node& grad) {
    return grad.attrs().String("residual") == "none"
               ? nullptr
               : grad.input(grad.num_inputs() - 1)->producer();
  }

  void TakeGradient(Node* norm) {
    if (!norm->attrs().Bool("relu") || norm->attrs().Int("ranks") != 1) return;
    const bool masked = norm->attrs().String("residual") != "none";
    if (masked && !IsOp(ForwardOf(*norm), OpKind::kBatchNormTrain)) return;
    Value* dy = norm->input(0);
    Node* sum = IsOp(dy->producer(), OpKind::kAdd) && r_.IsPrivate(dy)
                    ? dy->producer()
                    : nullptr;
    std::vector<std::pair<Node*, Value*>> ways;  // data gradient, addend
    if (Node* conv = r_.DataGradient(dy)) ways.emplace_back(conv, nullptr);
    for (size_t i = 0; sum != nullptr && i < 2; ++i) {
      Node* conv = r_.DataGradient(sum->input(i));
      if (conv != nullptr) ways.emplace_back(conv, sum->input(1 - i));
    }
    if (ways.empty()) return;
    if (!r_.ConsumeFuel(*norm->output())) return;
    for (const auto& [conv, added] : ways) {
      if (Node* node = SumUp(*norm, conv, added)) {
        r_.Record(places_, *norm->output(), true,
                  "mask and sums computed by " + AlgorithmOf(*node),
                  SavedBytes(*norm, added != nullptr), dy);
        ReplaceGradient(norm, node);
        std::vector<Node*> dead{norm, conv};
        if (sum != nullptr) dead.push_back(sum);
        return r_.Finish(dead);
      }
    }
    r_.Record(places_, *norm->output(), false, "", 0);
  }

  // Returns the bytes that kernels move if no convolution computes the sums.
  // They read x and the gradient, or both branches that add up to it. With a
  // residual they also read the mask and write the masked gradient. Later they
  // read all of it again, except for residual "add", for which they have stored
  // the masked gradient.
  static int64_t SavedBytes(const Node& norm, bool added) {
    const ir::TensorType& type = norm.output()->type();
    const std::string residual = norm.attrs().String("residual");
    const int64_t passes = residual == "add" ? 1 : 2;
    int64_t tensors = 2 + (added ? passes : 0);
    if (residual == "none") return tensors * type.num_bytes();
    ++tensors;
    return tensors * type.num_bytes() +
           passes * ir::PackedBytes(type.num_elements());
  }

  Node* SumUp(Node& norm, Node* conv, Value* added) {
    const Gradient g = GradientOf(norm);
    ir::LibraryFusion fusion(*conv);
    if (added != nullptr) fusion.Add(added);
    Draft draft(r_.graph(), &norm);
    Builder b(r_.graph(), &norm);
    b.Inherit(norm.location());
    const double epsilon = norm.attrs().Float("epsilon");
    const auto saved = [&](const std::vector<Value*>& n) {
      Value* rstd = b.Rsqrt(b.Plus(n[4], epsilon));
      return ir::SavedNorm{n[0], n[3], rstd, n[1], n[2]};
    };
    std::vector<ir::SavedNorm> norms{saved(g.main)};
    if (g.residual == "norm") norms.push_back(saved(g.second));
    fusion.MaskAndSum(
        norms, g.residual == "add" ? ForwardOf(norm)->input(3) : nullptr);
    Node* node =
        r_.Extend(*conv, std::move(fusion), &norm, NormLowering::kGradients);
    if (node == nullptr) draft.Discard();
    return node;
  }

  // Returns a * dz + b * x + c, computed in the vectors' dtype.
  Value* Apply(Builder& b, Node* sums, size_t first, Value* x) {
    const auto spread = [&](size_t i) {
      ir::TensorType type = x->type();
      type.dtype = sums->output(first + i)->type().dtype;
      return b.BroadcastAlong(sums->output(first + i), type, 1);
    };
    const ir::DType wide = sums->output(first)->type().dtype;
    Value* dx = b.Plus(b.Times(b.Cast(sums->output(0), wide), spread(2)),
                       b.Plus(b.Times(b.Cast(x, wide), spread(3)), spread(4)));
    return b.Cast(dx, x->type().dtype);
  }

  void ReplaceGradient(Node* norm, Node* node) {
    const Gradient g = GradientOf(*norm);
    Builder b(r_.graph(), norm);
    b.Inherit(norm->location());
    const auto replace = [&](size_t result, Value* value) {
      r_.Replace(norm->output(result), value);
    };
    const auto branch = [&](size_t first, size_t sums, Value* x) {
      replace(first, Apply(b, node, sums, x));
      replace(first + 1, node->output(sums));
      replace(first + 2, node->output(sums + 1));
    };
    branch(0, 1, g.main[0]);
    if (g.residual == "add") replace(3, node->output(0));
    if (g.residual == "norm") branch(3, 6, g.second[0]);
  }

  ConvRewriter& r_;
  Places places_;
};

}  // namespace

void TakeNormGradients(ConvRewriter& rewriter) {
  NormGradients(rewriter).Run();
}

}  // namespace fusor::passes
