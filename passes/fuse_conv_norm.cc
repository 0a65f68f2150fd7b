// What a convolution can compute of the normalisations beside it, as cuDNN's
// engines for training do (ConvBNfprop, DgradDreluBNBwdWeight, ConvBNwgrad).
// With scale = gamma * rstd and shift = beta - mean * scale:
//
//   statistics   y = conv2d(x), batch_norm_train(y)
//                -> y, sum, squares = conv2d(x) {statistics}
//   gradients    batch_norm_grad(conv2d_grad_input(..) [+ d], x, ..), with ReLU
//                -> dz, dgamma, dbeta, a, b, c = conv2d_grad_input(.., [d,] x,
//                   mean, rstd, gamma, beta, ..) {norm, add};
//                   dx = a * dz + b * x + c
//   prologues    y = batch_norm_train(x), with ReLU, read by convolutions and
//                their weight gradients alone
//                -> each reads x, scale, shift {prologue="norm"}
//
// Where the gradients of two branches are added all the same, and one of them
// is a data gradient, that convolution adds the other, in its place (with
// statistics):
//
//                add(conv2d_grad_input(..), d)
//                -> conv2d_grad_input(.., d) {accumulate}
//
// The ReLU's mask is recomputed from what was stored before it, as cuDNN does:
// where |y| is a rounding error it may differ from what forward had. Scale and
// shift of a prologue have the activations' dtype.

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/convolution.h"
#include "ir/cost.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/conv_extension.h"
#include "passes/norm_bias.h"
#include "passes/pass_settings.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Node;
using ir::Value;

constexpr char kPass[] = "fuse_conv_norm";

// How often there was a place for one kind of rewrite, and it was made.
struct Places {
  int64_t found = 0;
  int64_t taken = 0;
};

// A batch_norm_grad's operands by what they are.
struct Gradient {
  std::string residual;
  Value* dy;
  std::vector<Value*> main;    // x, gamma, beta, mean, variance
  std::vector<Value*> second;  // the same, of residual "norm"
};

Gradient GradientOf(const Node& node) {
  const std::vector<Value*>& in = node.inputs();
  Gradient g{node.attrs().String("residual"), in[0], {}, {}};
  g.main.assign(in.begin() + 1, in.begin() + 6);
  if (g.residual == "norm") g.second.assign(in.begin() + 6, in.begin() + 11);
  return g;
}

// Nodes that are built before a place, and go again if nothing comes of them.
class Draft {
 public:
  Draft(Graph& graph, Node* before)
      : graph_(graph), before_(before), nodes_(graph.nodes().size()) {}
  // REQUIRES: nothing reads them.
  void Discard() {
    while (graph_.nodes().size() > nodes_) {
      graph_.Erase(graph_.nodes()[before_->position() - 1].get());
    }
  }

 private:
  Graph& graph_;
  Node* before_;
  size_t nodes_;
};

class ConvNorm {
 public:
  ConvNorm(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    if (MayBe(NormLowering::kStatistics)) {
      for (Node* norm : NodesOf("batch_norm_train")) AddStatistics(norm);
      Check(statistics_, "statistics of their results", "conv_statistics");
    }
    if (MayBe(NormLowering::kGradients)) {
      for (Node* norm : NodesOf("batch_norm_grad")) TakeGradient(norm);
      Check(gradients_, "the gradient of a normalisation", "conv_norm_grad");
    }
    if (MayBe(NormLowering::kStatistics)) {
      for (Node* sum : NodesOf("add")) AccumulateIn(sum);
      context_.counters()["conv_accumulate"] += sums_.taken;
    }
    if (MayBe(NormLowering::kPrologues)) {
      for (Node* norm : NodesOf("batch_norm_train")) ApplyInReaders(*norm);
      Check(prologues_, "a normalisation of what they read",
            "conv_norm_prologue");
    }
    return changed_;
  }

 private:
  // The options say so, or choices may for some places.
  bool MayBe(NormLowering level) const {
    const PassOptions& options = context_.options();
    return options.norm_lowering >= level || ChooseExtensions(options.choices);
  }

  std::vector<Node*> NodesOf(std::string_view op) const {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) {
      if (IsOp(node.get(), op)) nodes.push_back(node.get());
    }
    return nodes;
  }

  void Check(const Places& places, const char* what, const char* counter) {
    context_.counters()[counter] += places.taken;
    FUSOR_CHECK(places.taken > 0 || places.found == 0, kGraph,
                "bn-lowering {}: {} has no convolutions of this step with {}: "
                "{}",
                NormLoweringName(context_.options().norm_lowering),
                context_.target().target().name, what, refusal_);
  }

  // What became of a place, for which `saved_bytes` might be saved.
  void Record(Places& places, const Value& subject, bool accepted,
              std::string reason, int64_t saved_bytes) {
    if (!accepted && !wanted_ && refusal_.empty()) return;
    places.found += wanted_ ? 1 : 0;
    places.taken += accepted ? 1 : 0;
    if (!accepted) reason = refusal_;
    const ir::Target& target = context_.target().target();
    const int64_t saved = saved_bytes > 0 ? ir::KernelNs(saved_bytes, target) -
                                                target.launch_overhead_ns
                                          : 0;
    context_.Record({.pass = kPass,
                     .subject = subject.name(),
                     .accepted = accepted,
                     .reason = std::move(reason),
                     .saved_ns = accepted ? saved : 0,
                     .location = ir::LocationOf(subject)});
  }

  // Null, with the reason in refusal_, where it is not made.
  Node* Extend(const ConvExtension& extension, Node* before,
               NormLowering level) {
    ExtendedConv extended =
        ExtendConvolution(graph_, context_, extension, before,
                          context_.options().norm_lowering >= level);
    wanted_ = extended.wanted;
    refusal_ = std::move(extended.refusal);
    return extended.node;
  }

  void ReplaceResult(Node* old, size_t from, Node* node, size_t to) {
    const std::string name = old->output(from)->name();
    graph_.ReplaceAllUses(old->output(from), node->output(to));
    names_.emplace_back(node->output(to), name);
  }

  // Erases `old`, so that the new values can take the names.
  void Finish(const std::vector<Node*>& old) {
    graph_.EraseAll(old);
    for (auto& [value, name] : names_) graph_.Rename(value, std::move(name));
    names_.clear();
    changed_ = true;
  }

  // --- Statistics ------------------------------------------------------------

  void AddStatistics(Node* norm) {
    SumIn(norm, 0);
    if (norm->attrs().String("residual") == "norm") SumIn(norm, 3);
  }

  void SumIn(Node* norm, size_t operand) {
    Value* x = norm->input(operand);
    Node* conv = x->producer();
    if (!IsOp(conv, "conv2d") || !ir::IsPlainConvolution(*conv)) return;
    if (!context_.ConsumeFuel(kPass, *x)) return;
    ConvExtension e{conv, conv->attrs(), conv->inputs()};
    e.attrs.Set("statistics", true);
    Node* node = Extend(e, conv, NormLowering::kStatistics);
    Value* bias = nullptr;
    if (node == nullptr && wanted_ && BiasMovesMean(graph_, *conv, *norm)) {
      bias = conv->input(2);
      e.operands.pop_back();
      node = Extend(e, conv, NormLowering::kStatistics);
    }
    Record(statistics_, *x, node != nullptr,
           node == nullptr
               ? ""
               : "statistics by " + node->attrs().String("algorithm"),
           x->type().num_bytes());
    if (node == nullptr) return;
    ReplaceResult(conv, 0, node, 0);
    Finish({conv});
    if (bias != nullptr) AddBiasToMean(graph_, norm, bias);
  }

  // --- Gradients -------------------------------------------------------------

  bool IsPrivate(const Value* value) const {
    return value->uses().size() == 1 && !graph_.IsOutput(value);
  }

  // conv2d_grad_input that nothing else reads.
  Node* DataGradient(const Value* value) const {
    Node* conv = value->producer();
    const bool plain = IsOp(conv, "conv2d_grad_input") && IsPrivate(value) &&
                       ir::IsPlainConvolution(*conv);
    return plain ? conv : nullptr;
  }

  // The node whose mask it reads; null where it recomputes it.
  static const Node* ForwardOf(const Node& grad) {
    return grad.attrs().String("residual") == "none"
               ? nullptr
               : grad.input(grad.num_inputs() - 1)->producer();
  }

  void TakeGradient(Node* norm) {
    if (!norm->attrs().Bool("relu") || norm->attrs().Int("ranks") != 1) return;
    Value* dy = norm->input(0);
    Node* sum =
        IsOp(dy->producer(), "add") && IsPrivate(dy) ? dy->producer() : nullptr;
    std::vector<std::pair<Node*, Value*>> ways;  // data gradient, what is added
    if (Node* conv = DataGradient(dy)) ways.emplace_back(conv, nullptr);
    for (size_t i = 0; sum != nullptr && i < 2; ++i) {
      Node* conv = DataGradient(sum->input(i));
      if (conv != nullptr) ways.emplace_back(conv, sum->input(1 - i));
    }
    if (ways.empty()) return;
    if (!context_.ConsumeFuel(kPass, *norm->output())) return;
    for (const auto& [conv, added] : ways) {
      if (Node* node = SumUp(*norm, conv, added)) {
        Record(gradients_, *norm->output(), true,
               "mask and sums by " + node->attrs().String("algorithm"),
               2 * dy->type().num_bytes());
        ReplaceGradient(norm, node);
        std::vector<Node*> dead{norm, conv};
        if (sum != nullptr) dead.push_back(sum);
        return Finish(dead);
      }
    }
    Record(gradients_, *norm->output(), false, "", 0);
  }

  Node* SumUp(Node& norm, Node* conv, Value* added) {
    const Gradient g = GradientOf(norm);
    ConvExtension e{conv, conv->attrs(), conv->inputs()};
    if (added != nullptr) {
      e.attrs.Set("add", true);
      e.operands.push_back(added);
    }
    Draft draft(graph_, &norm);
    Builder b(graph_, &norm);
    b.Inherit(norm.location());
    const double epsilon = norm.attrs().Float("epsilon");
    const auto append = [&](const std::vector<Value*>& n) {
      Value* rstd = b.Rsqrt(b.Plus(n[4], epsilon));
      e.operands.insert(e.operands.end(), {n[0], n[3], rstd, n[1], n[2]});
    };
    append(g.main);
    e.attrs.Set("norm", std::string("relu"));
    if (g.residual == "add") {
      e.attrs.Set("norm", std::string("join"));
      e.operands.push_back(ForwardOf(norm)->input(3));
    } else if (g.residual == "norm") {
      e.attrs.Set("norm", std::string("dual"));
      append(g.second);
    }
    Node* node = Extend(e, &norm, NormLowering::kGradients);
    if (node == nullptr) draft.Discard();
    return node;
  }

  // a * dz + b * x + c, in the vectors' dtype.
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
    Builder b(graph_, norm);
    b.Inherit(norm->location());
    const auto replace = [&](size_t result, Value* value) {
      names_.emplace_back(value, norm->output(result)->name());
      graph_.ReplaceAllUses(norm->output(result), value);
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

  // --- Sums of gradients
  // -------------------------------------------------------

  // Nothing but `sum` needs the value, so that another may take its place.
  bool MayBeOverwritten(const Value* value) const {
    const Node* producer = value->producer();
    return producer != nullptr && IsPrivate(value) && producer->op().pure &&
           producer->op().fusion != ir::FusionKind::kSource &&
           producer->op().fusion != ir::FusionKind::kInjective;
  }

  void AccumulateIn(Node* sum) {
    for (size_t i = 0; i < 2; ++i) {
      Node* conv = DataGradient(sum->input(i));
      Value* other = sum->input(1 - i);
      if (conv == nullptr || !MayBeOverwritten(other)) continue;
      if (!context_.ConsumeFuel(kPass, *sum->output())) return;
      ConvExtension e{conv, conv->attrs(), conv->inputs()};
      e.attrs.Set("accumulate", true);
      e.operands.push_back(other);
      Node* node = Extend(e, sum, NormLowering::kStatistics);
      Record(sums_, *sum->output(), node != nullptr,
             node == nullptr ? ""
                             : "added by " + node->attrs().String("algorithm"),
             2 * other->type().num_bytes());
      if (node == nullptr) continue;
      ReplaceResult(sum, 0, node, 0);
      return Finish({sum, conv});
    }
  }

  // --- Prologues -------------------------------------------------------------

  // In the graph's order; empty where others than convolutions and weight
  // gradients read it, or nobody.
  std::vector<Node*> ReadersOf(const Value* y) const {
    std::vector<Node*> readers;
    for (const ir::Use& use : y->uses()) {
      const bool reads =
          use.operand == 0 && use.node->num_inputs() == 2 &&
          (IsOp(use.node, "conv2d") || IsOp(use.node, "conv2d_grad_weight"));
      if (!reads || graph_.IsOutput(y)) return {};
      readers.push_back(use.node);
    }
    std::sort(readers.begin(), readers.end(), [](const Node* a, const Node* c) {
      return a->position() < c->position();
    });
    return readers;
  }

  // Scale and shift, before `before`.
  std::vector<Value*> AffineOf(const Node& norm, Node* before) {
    Builder b(graph_, before);
    b.Inherit(norm.location());
    Value* rstd =
        b.Rsqrt(b.Plus(norm.output(2), norm.attrs().Float("epsilon")));
    Value* scale = b.Times(norm.input(1), rstd);
    Value* shift = b.Minus(norm.input(2), b.Times(norm.output(1), scale));
    const ir::DType dtype = norm.input(0)->type().dtype;
    scale = b.Cast(scale, dtype);
    return {scale, b.Cast(shift, dtype)};
  }

  void ApplyInReaders(Node& norm) {
    const Value* y = norm.output();
    if (!norm.attrs().Bool("relu") ||
        norm.attrs().String("residual") != "none") {
      return;
    }
    const std::vector<Node*> readers = ReadersOf(y);
    if (readers.empty()) return;
    if (!context_.ConsumeFuel(kPass, *y)) return;
    Draft draft(graph_, readers.front());
    const std::vector<Value*> affine = AffineOf(norm, readers.front());
    std::vector<Node*> extended;
    for (Node* reader : readers) {
      ConvExtension e{reader,
                      reader->attrs(),
                      {norm.input(0), reader->input(1), affine[0], affine[1]}};
      e.attrs.Set("prologue", std::string("norm"));
      Node* node = Extend(e, reader, NormLowering::kPrologues);
      if (node == nullptr) break;
      extended.push_back(node);
    }
    const bool all = extended.size() == readers.size();
    Record(prologues_, *y, all, "applied by all that read it",
           2 * y->type().num_bytes());
    if (!all) {
      graph_.EraseAll(extended);
      return draft.Discard();
    }
    for (size_t r = 0; r < readers.size(); ++r) {
      for (size_t i = 0; i < readers[r]->num_outputs(); ++i) {
        ReplaceResult(readers[r], i, extended[r], i);
      }
    }
    Finish(readers);
  }

  Graph& graph_;
  PassContext& context_;
  Places statistics_, gradients_, sums_, prologues_;
  // Of the last extension.
  std::string refusal_;
  bool wanted_ = true;
  std::vector<std::pair<Value*, std::string>> names_;
  bool changed_ = false;
};

}  // namespace

bool FuseConvNorm(Graph& graph, PassContext& context) {
  return ConvNorm(graph, context).Run();
}

}  // namespace fusor::passes
