// Mixed precision by allow / deny propagation (OneFlow's auto_mixed_precision,
// TensorFlow's grappler auto_mixed_precision). Nodes are grouped into 16-bit
// regions with casts at their boundaries. Nodes in `black_` stay f32, nodes in
// `white_` become 16-bit.
//
//  1. `black_` starts with the denied ops and propagates forward through infer
//     and follow ops that lead to a denied or infer op.
//  2. `white_` starts with the allowed ops and propagates forward through infer
//     and follow ops that are not in `black_` and lead to an allowed op, i.e.
//     between two convolutions but not before the first.
//  3. `white_` propagates both ways through follow ops, so that data moves in
//     the narrow dtype; but not from one reader of a constant to another.
//
// The nodes that FuseNormActivation would fuse into one op are linked: they get
// the same precision also when not fused, and so do their gradients. Fusion
// then does not change rounding.
//
// Precision propagates along f32 values only; a mask has none. An allowed op
// whose readers are all f32 writes its accumulator as f32, so weight gradients
// and logits lose no precision. If the library has no such op (HasWideResult),
// a weight gradient is narrow. It is then widened after the all-reduce on one
// rank, or before the all-reduce on several.

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/target/conv_problem.h"
#include "passes/passes.h"
#include "passes/patterns/norm_activation.h"
#include "passes/precision/conv_precision.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::PrecisionRule;
using ir::Value;

constexpr char kMixedPrecisionPass[] = "mixed_precision";

bool IsWide(const Value* value) { return value->type().dtype == DType::kF32; }

void CheckOpNames(const std::set<std::string>& ops, const char* list) {
  std::vector<std::string> names;
  for (const ir::OpDef* op : ir::AllOps()) names.emplace_back(op->name);
  for (const std::string& op : ops) {
    const std::string nearest = NearestName(op, names);
    FUSOR_CHECK(ir::FindOp(op) != nullptr, kUsage,
                "mixed precision, {} list: unknown op {}{}", list, op,
                nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
}

class Painter {
 public:
  Painter(const Graph& graph, PassContext& context)
      : graph_(graph), options_(context.options().precision) {
    Tie();
    if (HasMatmul(context.target().target(), options_.dtype)) {
      wide_ = FasterInF32(graph, ModelledRule(context));
    }
    Black();
    White();
    SpreadWhite();
    for (const auto& node : graph.nodes()) {
      if (RuleOf(*node) != PrecisionRule::kAllow || !IsWide(node->input(0))) {
        continue;
      }
      const bool narrow = white_.contains(node.get());
      ++context.counters()[narrow ? "allowed_16" : "allowed_f32"];
      Decision decision;
      decision.pass = kMixedPrecisionPass;
      decision.subject = node->output()->name();
      decision.accepted = narrow;
      decision.reason =
          narrow ? fmt::format("computed in {}", DTypeName(options_.dtype))
                 : "faster in f32";
      decision.location = node->location();
      context.Record(std::move(decision));
    }
  }

  bool IsWhite(const Node& node) const { return white_.contains(&node); }

 private:
  PrecisionRule RuleOf(const Node& node) const {
    return passes::RuleOf(node, options_);
  }

  // Linked nodes have the rule of their normalisation.
  bool Follows(const Node& node) const {
    return RuleOf(node) == PrecisionRule::kFollow &&
           node.kind() != OpKind::kCast && !tied_.contains(&node);
  }

  bool IsPassage(const Node& node) const {
    return RuleOf(node) == PrecisionRule::kInfer || Follows(node) ||
           tied_.contains(&node);
  }

  void Tie() {
    const NormActivations matches(graph_);
    const auto goes_along = [&](const Node* node) {
      const PrecisionRule rule = RuleOf(*node);
      return rule == PrecisionRule::kInfer || rule == PrecisionRule::kFollow;
    };
    for (const auto& node : graph_.nodes()) {
      const NormActivation match = matches.Of(node.get());
      if (match.norm == nullptr) continue;
      const std::vector<Node*> forward = match.Nodes();
      const std::vector<Node*> gradients = match.Gradients();
      if (!std::all_of(forward.begin(), forward.end(), goes_along) ||
          !std::all_of(gradients.begin(), gradients.end(), goes_along)) {
        continue;
      }
      for (const Node* tied : forward) tied_[tied] = forward;
      for (const Node* tied : gradients) tied_[tied] = gradients;
    }
  }

  using Set = std::unordered_set<const Node*>;

  void Join(Set& set, const Node& node) const {
    const auto tied = tied_.find(&node);
    if (tied == tied_.end()) {
      set.insert(&node);
    } else {
      set.insert(tied->second.begin(), tied->second.end());
    }
  }

  // Returns true if one of the f32 operands comes from a node of the set.
  static bool ReadsFrom(const Node& node, const Set& set) {
    return std::any_of(node.inputs().begin(), node.inputs().end(),
                       [&](const Value* v) {
                         return IsWide(v) && set.contains(v->producer());
                       });
  }

  // Returns true if one of the f32 results is read by a node of the set.
  static bool LeadsTo(const Node& node, const Set& set) {
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      if (!IsWide(node.output(i))) continue;
      for (const ir::Use& use : node.output(i)->uses()) {
        if (set.contains(use.node)) return true;
      }
    }
    return false;
  }

  // Adds nodes for which `belongs` is true to the set until nothing changes.
  // One iteration suffices, except for nodes linked to earlier ones.
  template <typename Belongs>
  void Forward(Set& set, Belongs belongs) {
    for (size_t before = set.size() + 1; before != set.size();) {
      before = set.size();
      for (const auto& node : graph_.nodes()) {
        if (!set.contains(node.get()) && belongs(*node)) Join(set, *node);
      }
    }
  }
  template <typename Belongs>
  void Backward(Set& set, Belongs belongs) {
    for (size_t before = set.size() + 1; before != set.size();) {
      before = set.size();
      for (size_t i = graph_.nodes().size(); i-- > 0;) {
        const Node& node = *graph_.nodes()[i];
        if (!set.contains(&node) && belongs(node)) Join(set, node);
      }
    }
  }

  void Black() {
    Set upstream;
    Backward(upstream, [&](const Node& node) {
      const PrecisionRule rule = RuleOf(node);
      return rule == PrecisionRule::kDeny || rule == PrecisionRule::kInfer ||
             (IsPassage(node) && LeadsTo(node, upstream));
    });
    Forward(black_, [&](const Node& node) {
      return RuleOf(node) == PrecisionRule::kDeny ||
             (IsPassage(node) && upstream.contains(&node) &&
              ReadsFrom(node, black_));
    });
  }

  // Allowed, and not faster in f32. Nodes whose operand already has another
  // dtype keep it.
  bool IsAllowed(const Node& node) const {
    return RuleOf(node) == PrecisionRule::kAllow && IsWide(node.input(0)) &&
           (wide_.empty() || !wide_.contains(ir::LibraryProblem(node)));
  }

  void White() {
    Set upstream;
    for (const auto& node : graph_.nodes()) {
      if (IsAllowed(*node)) white_.insert(node.get());
    }
    Backward(upstream, [&](const Node& node) {
      return white_.contains(&node) ||
             (IsPassage(node) && !black_.contains(&node) &&
              LeadsTo(node, upstream));
    });
    Forward(white_, [&](const Node& node) {
      return upstream.contains(&node) && ReadsFrom(node, white_);
    });
  }

  void SpreadWhite() {
    const auto follows = [&](const Node& node) {
      return Follows(node) && !black_.contains(&node);
    };
    // A constant next to a 16-bit node becomes narrow, but does not propagate:
    // readers of the same zero have nothing else in common.
    Set computed = white_;
    const auto join = [&](const Node& node) {
      white_.insert(&node);
      if (node.num_inputs() > 0) computed.insert(&node);
    };
    const auto& nodes = graph_.nodes();
    for (size_t before = 0; before != white_.size();) {
      before = white_.size();
      for (const auto& node : nodes) {
        if (follows(*node) && ReadsFrom(*node, computed)) join(*node);
      }
      for (size_t i = nodes.size(); i-- > 0;) {
        if (follows(*nodes[i]) && LeadsTo(*nodes[i], white_)) join(*nodes[i]);
      }
    }
  }

  const Graph& graph_;
  const PrecisionOptions& options_;
  std::set<std::string> wide_;  // problems
  std::unordered_map<const Node*, std::vector<Node*>> tied_;
  Set black_, white_;
};

// Changes the dtype of the 16-bit nodes (Painter::IsWhite) and inserts casts
// between them and f32 nodes.
class Rewriter {
 public:
  Rewriter(Graph& graph, PassContext& context, const Painter& painter)
      : graph_(graph),
        context_(context),
        painter_(painter),
        narrow_(context.options().precision.dtype),
        has_matmul_(HasMatmul(context.target().target(), narrow_)) {}

  bool Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    for (Node* node : nodes) Visit(*node);
    for (ir::Output& output : graph_.mutable_outputs()) {
      if (IsNarrowed(output.value)) output.value = Widened(output.value);
    }
    return changed_;
  }

 private:
  bool IsNarrowed(const Value* value) const {
    return narrowed_.contains(value);
  }

  // Returns `value` in the other dtype. Casts once, right after its producer.
  Value* Converted(Value* value, DType dtype) {
    Value*& cast = casts_[value];
    if (cast != nullptr) return cast;
    ir::Builder builder(graph_, After(*value));
    builder.Inherit(PlaceOf(*value));
    cast = builder.Cast(value, dtype);
    const bool narrows = dtype == narrow_;
    ++context_.counters()[narrows ? "casts_narrow" : "casts_wide"];
    Decision decision;
    decision.pass = kMixedPrecisionPass;
    decision.subject = value->name();
    decision.accepted = true;
    decision.reason = fmt::format("cast to {}", DTypeName(dtype));
    decision.location = cast->producer()->location();
    context_.Record(std::move(decision));
    changed_ = true;
    return cast;
  }

  Value* Narrowed(Value* value) { return Converted(value, narrow_); }
  Value* Widened(Value* value) { return Converted(value, DType::kF32); }

  Node* After(const Value& value) const {
    const auto& nodes = graph_.nodes();
    const size_t next =
        value.producer() == nullptr
            ? 0
            : static_cast<size_t>(value.producer()->position()) + 1;
    return next < nodes.size() ? nodes[next].get() : nullptr;
  }

  // An input has no location; uses that of its first reader.
  static ir::Location PlaceOf(const Value& value) {
    if (value.producer() != nullptr) return value.producer()->location();
    if (value.uses().empty()) return {};
    return value.uses()[0].node->location();
  }

  // Returns true if operand i of a 16-bit node must be narrow.
  bool TakesNarrow(const Node& node, size_t i) const {
    return !node.op().wide_vectors || node.input(i)->type().rank() != 1 ||
           !KeepsVectorsWide(node, narrow_, context_.target());
  }

  // Returns true for a cast to f32 that an earlier pass inserted.
  bool IsWidening(const Value* value) const {
    const Node* node = value->producer();
    return IsOp(node, OpKind::kCast) && node->input(0)->type().dtype == narrow_;
  }

  // Returns true for an all-reduce over one rank. It is removed later, once
  // fusion no longer needs it to separate gradients from updates. A cast before
  // it would be a separate kernel.
  bool IsIdentity(const Node& node) const {
    return node.HasTrait(ir::OpTrait::kCollective) && node.num_inputs() == 1 &&
           context_.options().world_size == 1;
  }

  void Visit(Node& node) {
    const bool white =
        painter_.IsWhite(node) &&
        context_.ConsumeFuel(kMixedPrecisionPass, *node.output());
    if (IsIdentity(node)) {
      if (IsNarrowed(node.input(0))) Retype(node);
      return;
    }
    const bool converts =
        white && node.op().precision == PrecisionRule::kAllow && !has_matmul_;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      Value* value = node.input(i);
      const bool narrow = white && TakesNarrow(node, i);
      if (narrow && IsWide(value) && !(converts && IsWidening(value))) {
        node.SetInput(i, Narrowed(value));
      } else if (!narrow && IsNarrowed(value)) {
        node.SetInput(i, Widened(value));
      }
    }
    if (converts) return Surround(node);
    if (white) Retype(node);
  }

  // The target has no matmul in the narrow dtype: computes in f32 on rounded
  // operands, and rounds the results.
  void Surround(Node& node) {
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      if (!IsWide(node.input(i))) node.SetInput(i, Widened(node.input(i)));
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      Value* wide = node.output(i);
      if (!IsWide(wide) || AllReadersWide(*wide)) continue;
      const std::vector<ir::Use> uses = wide->uses();
      Value* narrow = Narrowed(wide);
      narrowed_.insert(narrow);
      for (const ir::Use& use : uses) use.node->SetInput(use.operand, narrow);
    }
  }

  bool AllReadersWide(const Value& value) const {
    return std::all_of(
        value.uses().begin(), value.uses().end(), [&](const ir::Use& use) {
          return !painter_.IsWhite(*use.node) ||
                 !TakesNarrow(*use.node, static_cast<size_t>(use.operand));
        });
  }

  // Returns true for a value that an earlier pass casts to the narrow dtype.
  bool IsCastToNarrow(const Value& value) const {
    return std::any_of(value.uses().begin(), value.uses().end(),
                       [&](const ir::Use& use) {
                         return use.node->kind() == OpKind::kCast &&
                                use.node->output()->type().dtype == narrow_;
                       });
  }

  void Retype(Node& node) {
    if (node.HasTrait(ir::OpTrait::kResultDType) &&
        node.attrs().String("result_dtype").empty() && IsWide(node.output()) &&
        AllReadersWide(*node.output()) && !IsCastToNarrow(*node.output()) &&
        HasWideResult(node, context_)) {
      node.mutable_attrs().Set("result_dtype", std::string("f32"));
      changed_ = true;
    }
    std::vector<ir::TensorType> operands;
    for (const Value* input : node.inputs()) operands.push_back(input->type());
    const auto results =
        ir::InferResults(node.op(), operands, node.attrs(), node.body());
    for (size_t i = 0; i < results.size(); ++i) {
      Value* value = node.output(i);
      if (value->type() == results[i]) continue;
      value->set_type(results[i]);
      narrowed_.insert(value);
      changed_ = true;
    }
  }

  Graph& graph_;
  PassContext& context_;
  const Painter& painter_;
  const DType narrow_;
  const bool has_matmul_;
  bool changed_ = false;
  std::unordered_set<const Value*> narrowed_;
  std::unordered_map<const Value*, Value*> casts_;
};

}  // namespace

bool MixedPrecision(Graph& graph, PassContext& context) {
  const PrecisionOptions& options = context.options().precision;
  CheckOpNames(options.allow, "allow");
  CheckOpNames(options.deny, "deny");
  if (options.dtype == DType::kF32) return false;
  FUSOR_CHECK(options.dtype == DType::kF16 || options.dtype == DType::kBF16,
              kUsage, "mixed precision: expected f16 or bf16, got {}",
              ir::DTypeName(options.dtype));
  for (const char* counter :
       {"casts_narrow", "casts_wide", "allowed_16", "allowed_f32"}) {
    context.counters()[counter] += 0;
  }
  const Painter painter(graph, context);
  return Rewriter(graph, context, painter).Run();
}

}  // namespace fusor::passes
