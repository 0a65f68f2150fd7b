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
#include "ir/support/error.h"
#include "passes/library_choice.h"
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

// One convolution in the making: the node that has been, and what is added.
struct Extension {
  Node* conv;
  ir::Attrs attrs;
  std::vector<Value*> operands;
};

class ConvNorm {
 public:
  ConvNorm(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    const NormLowering lowering = context_.options().norm_lowering;
    if (lowering < NormLowering::kStatistics) return false;
    for (Node* norm : NodesOf("batch_norm_train")) AddStatistics(*norm);
    Check(statistics_, "statistics of their results", "conv_statistics");
    if (lowering >= NormLowering::kGradients) {
      for (Node* norm : NodesOf("batch_norm_grad")) TakeGradient(norm);
      Check(gradients_, "the gradient of a normalisation", "conv_norm_grad");
    }
    if (lowering >= NormLowering::kPrologues) {
      for (Node* norm : NodesOf("batch_norm_train")) ApplyInReaders(*norm);
      Check(prologues_, "a normalisation of what they read",
            "conv_norm_prologue");
    }
    return changed_;
  }

 private:
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

  void Record(const Value& subject, bool accepted, std::string reason,
              int64_t saved_bytes) {
    if (!accepted) refusal_ = reason;
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

  // The convolution with the extension, before `before`; null, with the reason
  // in refusal_, where the target lacks it in the layouts at hand.
  Node* Extend(const Extension& extension, Node* before) {
    const Node& old = *extension.conv;
    ir::Attrs attrs = extension.attrs;
    attrs.Set("algorithm", std::string());
    Node* node = graph_.AddNode(old.op_name(), extension.operands, attrs,
                                old.location(), before);
    const auto candidate = ChooseCandidate(*node, context_);
    if (candidate.has_value() && FitsLayouts(*node, old, *candidate)) {
      node->mutable_attrs().Set("algorithm", candidate->algorithm);
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        ir::TensorType type = node->output(i)->type();
        type.layout = candidate->results[i];
        node->output(i)->set_type(type);
      }
      return node;
    }
    refusal_ =
        (candidate.has_value() ? "in other layouts only: "
                               : "the library has no ") +
        ir::ConvolutionProblem(*node) +
        (IsOp(&old, "conv2d") && old.num_inputs() == 3 ? " with a bias" : "") +
        " in " + std::string(DTypeName(old.input(0)->type().dtype));
    graph_.Erase(node);
    return nullptr;
  }

  static bool FitsLayouts(const Node& node, const Node& old,
                          const ir::LibraryCandidate& candidate) {
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      if (node.input(i)->type().layout != candidate.operands[i]) return false;
    }
    return candidate.results[0] == old.output()->type().layout;
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

  void AddStatistics(const Node& norm) {
    SumIn(norm.input(0));
    if (norm.attrs().String("residual") == "norm") SumIn(norm.input(3));
  }

  void SumIn(Value* x) {
    Node* conv = x->producer();
    if (!IsOp(conv, "conv2d") || !ir::IsPlainConvolution(*conv)) return;
    ++statistics_.found;
    if (!context_.ConsumeFuel(kPass, *x)) return;
    Extension e{conv, conv->attrs(), conv->inputs()};
    e.attrs.Set("statistics", true);
    Node* node = Extend(e, conv);
    Record(*x, node != nullptr,
           node != nullptr
               ? "statistics by " + node->attrs().String("algorithm")
               : refusal_,
           x->type().num_bytes());
    if (node == nullptr) return;
    ReplaceResult(conv, 0, node, 0);
    Finish({conv});
    ++statistics_.taken;
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
    ++gradients_.found;
    if (!context_.ConsumeFuel(kPass, *norm->output())) return;
    for (const auto& [conv, added] : ways) {
      if (Node* node = SumUp(*norm, conv, added)) {
        Record(*norm->output(), true,
               "mask and sums by " + node->attrs().String("algorithm"),
               2 * dy->type().num_bytes());
        ReplaceGradient(norm, node);
        std::vector<Node*> dead{norm, conv};
        if (sum != nullptr) dead.push_back(sum);
        Finish(dead);
        ++gradients_.taken;
        return;
      }
    }
    Record(*norm->output(), false, refusal_, 0);
  }

  Node* SumUp(Node& norm, Node* conv, Value* added) {
    const Gradient g = GradientOf(norm);
    Extension e{conv, conv->attrs(), conv->inputs()};
    if (added != nullptr) {
      e.attrs.Set("add", true);
      e.operands.push_back(added);
    }
    changed_ = true;
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
    return Extend(e, &norm);
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
    changed_ = true;
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
    ++prologues_.found;
    if (!context_.ConsumeFuel(kPass, *y)) return;
    const std::vector<Value*> affine = AffineOf(norm, readers.front());
    std::vector<Node*> extended;
    for (Node* reader : readers) {
      Extension e{reader,
                  reader->attrs(),
                  {norm.input(0), reader->input(1), affine[0], affine[1]}};
      e.attrs.Set("prologue", std::string("norm"));
      Node* node = Extend(e, reader);
      if (node == nullptr) break;
      extended.push_back(node);
    }
    const bool all = extended.size() == readers.size();
    Record(*y, all, all ? "applied by all that read it" : refusal_,
           2 * y->type().num_bytes());
    if (!all) return graph_.EraseAll(extended);
    for (size_t r = 0; r < readers.size(); ++r) {
      for (size_t i = 0; i < readers[r]->num_outputs(); ++i) {
        ReplaceResult(readers[r], i, extended[r], i);
      }
    }
    Finish(readers);
    ++prologues_.taken;
  }

  Graph& graph_;
  PassContext& context_;
  Places statistics_, gradients_, prologues_;
  std::string refusal_;
  std::vector<std::pair<Value*, std::string>> names_;
  bool changed_ = false;
};

}  // namespace

bool FuseConvNorm(Graph& graph, PassContext& context) {
  return ConvNorm(graph, context).Run();
}

}  // namespace fusor::passes
