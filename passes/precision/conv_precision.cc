#include "passes/precision/conv_precision.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "passes/library/candidate.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Node;
using ir::PrecisionRule;
using ir::Value;

// Margin for model error: a smaller gain does not justify a cast.
constexpr double kModelMargin = 0.8;

// Maximum number of iterations: sufficient in practice, and a rule may
// oscillate.
constexpr int kSweeps = 8;

// Returns the target's time for a node with its f32 operands in `dtype`; 0 if
// no library implements it.
double ModelledNs(const Node& node, DType dtype, const PassContext& context) {
  ir::Graph scratch("scratch");
  const auto candidate =
      ChooseCandidate(AddRetyped(scratch, node, dtype, context), context);
  return candidate.has_value() ? static_cast<double>(candidate->modelled_ns)
                               : 0;
}

class Choice {
 public:
  Choice(const ir::Graph& graph, const WideRule& rule) : rule_(rule) {
    for (const auto& node : graph.nodes()) {
      if (!rule.allowed(*node)) continue;
      if (!ir::ConvolutionOf(*node).has_value() ||
          node->input(0)->type().dtype != DType::kF32) {
        continue;
      }
      const std::string problem = ir::LibraryProblem(*node);
      problems_[problem].push_back(node.get());
      problem_of_[node.get()] = problem;
    }
  }

  std::set<std::string> Run() {
    for (const auto& [problem, nodes] : problems_) {
      if (Wins(problem, nodes, false)) wide_.insert(problem);
    }
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      const std::set<std::string> before = wide_;
      for (const auto& [problem, nodes] : problems_) {
        if (Wins(problem, nodes, true)) {
          wide_.insert(problem);
        } else {
          wide_.erase(problem);
        }
      }
      if (wide_ == before) break;
    }
    return wide_;
  }

 private:
  bool Wins(const std::string& problem, const std::vector<const Node*>& nodes,
            bool with_casts) const {
    const auto given = rule_.given.find(problem);
    if (given != rule_.given.end()) return given->second;
    const PrecisionTimes times = rule_.times(*nodes.front());
    if (times.wide_ns == 0) return false;
    if (times.narrow_ns == 0) return true;
    const auto count = static_cast<double>(nodes.size());
    double wide = count * times.wide_ns;
    double narrow = rule_.margin * count * times.narrow_ns;
    for (const Node* node : nodes) {
      if (!with_casts) break;
      wide += CastNs(*node, problem, true);
      narrow += CastNs(*node, problem, false);
    }
    return wide <= narrow;
  }

  // Returns the time of casts of the node's activations if its problem is
  // computed in f32 (`wide`) or in 16 bit. In f32, activations with a 16-bit
  // neighbour are cast. In 16 bit, activations with only f32 neighbours are
  // cast.
  double CastNs(const Node& node, const std::string& problem, bool wide) const {
    double elements = 0;
    const auto add = [&](const Value& value, bool upstream) {
      const bool meets_narrow = Meets(node, value, {upstream, false, problem});
      if (wide ? meets_narrow
               : !meets_narrow &&
                     Meets(node, value, {upstream, true, problem})) {
        elements += static_cast<double>(value.type().num_elements());
      }
    };
    add(*node.input(0), true);
    if (ir::ConvolutionOf(node)->kind == ir::ConvKind::kGradWeight) {
      add(*node.input(1), true);
    } else {
      add(*node.output(), false);
    }
    return rule_.ns_per_byte * (sizeof(float) + 2) * elements;
  }

  // A search for nodes in f32 (`wide`) or in 16 bit. Excludes nodes of
  // `problem`, because all nodes of one problem change together.
  struct Search {
    bool upstream;
    bool wide;
    const std::string& problem;
  };

  bool IsSought(const Node& node, const Search& search) const {
    const auto it = problem_of_.find(&node);
    if (it == problem_of_.end()) return !search.wide;
    return it->second != search.problem &&
           wide_.contains(it->second) == search.wide;
  }

  bool Meets(const Node& node, const Value& value, const Search& search) const {
    std::unordered_set<const Node*> seen{&node};
    return Meets(value, search, seen);
  }

  // Returns true if the value is computed from, or read by, such a node.
  bool Meets(const Value& value, const Search& search,
             std::unordered_set<const Node*>& seen) const {
    if (search.upstream) {
      const Node* producer = value.producer();
      return producer != nullptr && Leads(*producer, search, seen);
    }
    return std::any_of(
        value.uses().begin(), value.uses().end(),
        [&](const ir::Use& use) { return Leads(*use.node, search, seen); });
  }

  bool Leads(const Node& node, const Search& search,
             std::unordered_set<const Node*>& seen) const {
    if (!seen.insert(&node).second) return false;
    if (rule_.allowed(node)) return IsSought(node, search);
    if (!rule_.passes_on(node)) return false;
    if (search.upstream) {
      return std::any_of(
          node.inputs().begin(), node.inputs().end(),
          [&](const Value* input) { return Meets(*input, search, seen); });
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      if (Meets(*node.output(i), search, seen)) return true;
    }
    return false;
  }

  const WideRule& rule_;
  std::map<std::string, std::vector<const Node*>> problems_;
  std::unordered_map<const Node*, std::string> problem_of_;
  std::set<std::string> wide_;
};

// Returns whether the node is exp(-|x|) or exp(-x x). Such an exponential is at
// most 1: it is a part of an activation function or of its gradient.
bool IsBoundedExp(const Node& node) {
  if (node.kind() != OpKind::kExp) return false;
  const auto is_negation = [](const Value* value, const Value* of) {
    return IsOp(value->producer(), OpKind::kNeg) &&
           (of == nullptr || value->producer()->input(0) == of);
  };
  const Value* x = node.input(0);
  if (IsOp(x->producer(), OpKind::kMinimum)) {
    const Value* a = x->producer()->input(0);
    const Value* b = x->producer()->input(1);
    return is_negation(a, b) || is_negation(b, a);
  }
  if (!is_negation(x, nullptr)) return false;
  const Node* operand = x->producer()->input(0)->producer();
  return IsOp(operand, OpKind::kAbs) ||
         (IsOp(operand, OpKind::kMul) &&
          operand->input(0) == operand->input(1));
}

}  // namespace

PrecisionRule RuleOf(const Node& node, const PrecisionOptions& options) {
  const std::string name(node.op_name());
  if (options.deny.contains(name) || ir::KeepsPrecision(node)) {
    return PrecisionRule::kDeny;
  }
  if (options.allow.contains(name)) return PrecisionRule::kAllow;
  return IsBoundedExp(node) ? PrecisionRule::kInfer : node.op().precision;
}

bool HasWideResult(const Node& node, const PassContext& context) {
  ir::Graph scratch("scratch");
  std::vector<Value*> inputs;
  for (const Value* input : node.inputs()) {
    inputs.push_back(
        scratch.AddInput(input->type(), ir::InputRole::kData, "operand"));
  }
  const auto has = [&](const std::string& result_dtype) {
    ir::Attrs attrs = node.attrs();
    attrs.Set("result_dtype", result_dtype);
    return HasCandidate(*scratch.AddNode(node.kind(), inputs, attrs), context);
  };
  return has("f32") || !has("");
}

namespace {

const Node& AddWith(ir::Graph& scratch, const Node& node, DType dtype,
                    bool wide_vectors) {
  std::vector<Value*> inputs;
  for (const Value* input : node.inputs()) {
    ir::TensorType type = input->type();
    const bool vector = wide_vectors && type.rank() == 1;
    if (type.dtype == DType::kF32 && !vector) type.dtype = dtype;
    inputs.push_back(scratch.AddInput(type, ir::InputRole::kData, "operand"));
  }
  return *scratch.AddNode(node.kind(), inputs, node.attrs());
}

}  // namespace

bool KeepsVectorsWide(const Node& node, DType dtype,
                      const ir::TargetQueries& target) {
  const auto vector = [](const Value* v) { return v->type().rank() == 1; };
  if (!node.op().wide_vectors) return false;
  if (node.op().precision != PrecisionRule::kAllow ||
      std::none_of(node.inputs().begin(), node.inputs().end(), vector)) {
    return true;
  }
  ir::Graph scratch("scratch");
  return !target.Candidates(AddWith(scratch, node, dtype, true)).empty() ||
         target.Candidates(AddWith(scratch, node, dtype, false)).empty();
}

const Node& AddRetyped(ir::Graph& scratch, const Node& node, DType dtype,
                       const PassContext& context) {
  const Node& retyped = AddWith(
      scratch, node, dtype,
      dtype == DType::kF32 || KeepsVectorsWide(node, dtype, context.target()));
  if (node.kind() != ir::OpKind::kConv2dGradWeight || dtype == DType::kF32 ||
      !HasWideResult(retyped, context)) {
    return retyped;
  }
  ir::Attrs attrs = node.attrs();
  attrs.Set("result_dtype", std::string("f32"));
  return *scratch.AddNode(node.kind(), retyped.inputs(), attrs);
}

bool HasMatmul(const ir::Target& target, DType dtype) {
  return dtype == DType::kBF16 ? target.bf16_matmul : target.f16_matmul;
}

WideRule ModelledRule(const PassContext& context) {
  const PrecisionOptions& options = context.options().precision;
  WideRule rule;
  rule.times = [&context, dtype = options.dtype](const Node& node) {
    const double narrow = ModelledNs(node, dtype, context);
    // Tensor cores have no Winograd that could compensate for half the
    // throughput.
    if (narrow > 0 && context.target().target().simt) {
      return PrecisionTimes{0, narrow};
    }
    return PrecisionTimes{ModelledNs(node, DType::kF32, context), narrow};
  };
  for (const auto& [key, dtype] : context.options().choices.precisions) {
    if (key.second == options.dtype) {
      rule.given[key.first] = dtype == DType::kF32;
    }
  }
  rule.passes_on = [&options](const Node& node) {
    const PrecisionRule kind = RuleOf(node, options);
    return kind == PrecisionRule::kInfer || kind == PrecisionRule::kFollow;
  };
  rule.allowed = [&options](const Node& node) {
    return RuleOf(node, options) == PrecisionRule::kAllow;
  };
  rule.ns_per_byte =
      1 / std::max(context.target().target().memory_gb_per_s, 1.0);
  rule.margin = kModelMargin;
  return rule;
}

std::set<std::string> FasterInF32(const ir::Graph& graph,
                                  const WideRule& rule) {
  return Choice(graph, rule).Run();
}

}  // namespace fusor::passes
