// Fuses the ops that follow a convolution or a matmul into it, if the target's
// library supports that and nothing else reads the values in between.
//
// fuse_conv_epilogue: a ReLU, as conv2d {relu=true}.
//
// fuse_matmul_epilogue: a bias and a ReLU, e.g. of fully connected layers:
//
//   %p = matmul(%x, %w) {transpose_b=true}
//   %b = broadcast(%bias) {dims=[1], shape=[64,4096]}
//   %s = add(%p, %b)                  =>  %y = matmul(%x, %w, %bias)
//   %y = relu(%s)                                {relu=true, transpose_b=true}
//
// The sum is rounded once instead of twice, so with eager rounding the bias
// remains an add.
//
// Both run after differentiation: the gradient of a ReLU reads the ReLU's
// result, so it does not need the convolution's or the matmul's.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kConvPass[] = "fuse_conv_epilogue";
constexpr char kMatmulPass[] = "fuse_matmul_epilogue";

// Returns true if `node` can be fused into its `producer`, i.e. `rejection` is
// empty and there is fuel. Records the decision.
bool Decide(PassContext& context, const char* pass, const Node& node,
            std::string rejection, const char* producer) {
  const bool fuse =
      rejection.empty() && context.ConsumeFuel(pass, *node.output());
  context.Record(
      {.pass = pass,
       .subject = node.output()->name(),
       .accepted = fuse,
       .reason = fuse ? std::string("only consumer of the ") + producer
                 : rejection.empty() ? "out of fuel"
                                     : std::move(rejection),
       .saved_ns =
           fuse ? ir::KernelNs(ir::NodeBytes(node), context.target().target())
                : 0,
       .location = node.location()});
  return fuse;
}

// --- Convolutions ------------------------------------------------------------

// Returns true if the library applies the ReLU at no cost: the candidate chosen
// without ReLU has a twin, of equal algorithm and implementation, with ReLU.
bool HasEpilogue(Node& conv, const PassContext& context) {
  const auto plain = ChooseCandidate(conv, context);
  if (!plain.has_value()) return false;
  conv.mutable_attrs().Set("relu", true);
  const auto fused = context.target().Candidates(conv);
  conv.mutable_attrs().Set("relu", false);
  return std::any_of(fused.begin(), fused.end(),
                     [&](const ir::LibraryCandidate& twin) {
                       return twin.algorithm == plain->algorithm &&
                              twin.implementation == plain->implementation;
                     });
}

// Returns the rejection reason; empty if the convolution can apply its ReLU.
std::string RejectionReason(Node& conv,
                            const std::unordered_set<const Value*>& outputs,
                            const PassContext& context) {
  const Value& value = *conv.output();
  if (value.uses().size() > 1 || outputs.contains(&value)) {
    return value.name() + " has other uses";
  }
  if (!HasEpilogue(conv, context)) {
    return "the library has no such convolution with a ReLU";
  }
  return "";
}

// --- Matmuls -----------------------------------------------------------------

// The ops to fuse into a matmul.
struct Epilogue {
  Value* bias = nullptr;
  bool relu = false;
};

// Returns the vector [N] that is broadcast to every row of `value`, [..,M,N];
// null if there is none.
Value* RowVector(const Value& value) {
  const Node* node = value.producer();
  const auto last = static_cast<int64_t>(value.type().rank()) - 1;
  const bool repeats = IsOp(node, OpKind::kBroadcast) &&
                       node->attrs().Ints("dims") == std::vector<int64_t>{last};
  return repeats ? node->input(0) : nullptr;
}

// Returns the matmul to which `add` adds a bias, and sets `bias`; null if there
// is none.
Node* BiasedProduct(const Node& add, Value** bias) {
  for (size_t i = 0; i < 2; ++i) {
    Node* product = add.input(i)->producer();
    *bias = RowVector(*add.input(1 - i));
    if (*bias != nullptr && IsOp(product, OpKind::kMatmul) &&
        product->num_inputs() == 2 && !product->attrs().Bool("relu")) {
      return product;
    }
  }
  return nullptr;
}

// Adds the matmul with the epilogue, before `before` or at the end of `graph`.
Node* AddProduct(Graph& graph, const Node& product,
                 const std::vector<Value*>& operands, const Epilogue& epilogue,
                 Node* before = nullptr) {
  std::vector<Value*> inputs(operands);
  if (epilogue.bias != nullptr) inputs.push_back(epilogue.bias);
  ir::Attrs attrs = product.attrs();
  if (epilogue.relu) attrs.Set("relu", true);
  return graph.AddNode("matmul", inputs, attrs, product.location(), before);
}

bool LibraryHas(const Node& product, const Epilogue& epilogue,
                const ir::TargetQueries& target) {
  Graph scratch("scratch");
  const auto operand = [&](const Value* value) {
    return scratch.AddInput(value->type(), ir::InputRole::kData, "operand");
  };
  std::vector<Value*> operands;
  for (const Value* input : product.inputs()) {
    operands.push_back(operand(input));
  }
  Epilogue copied = epilogue;
  if (copied.bias != nullptr) copied.bias = operand(copied.bias);
  return !target.Candidates(*AddProduct(scratch, product, operands, copied))
              .empty();
}

class EpilogueFusion {
 public:
  EpilogueFusion(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    int64_t& biases = context_.counters()["matmul_bias"];
    int64_t& relus = context_.counters()["matmul_relu"];
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) nodes.push_back(node.get());
    for (Node* node : nodes) {
      Value* bias = nullptr;
      if (IsOp(node, OpKind::kAdd)) {
        Node* product = BiasedProduct(*node, &bias);
        if (product == nullptr) continue;
        biases += Take(*product, {.bias = bias}, *node);
      } else if (IsOp(node, OpKind::kRelu)) {
        Node* product = node->input(0)->producer();
        if (!IsOp(product, OpKind::kMatmul) || product->attrs().Bool("relu"))
          continue;
        relus += Take(*product, {.relu = true}, *node);
      }
    }
    if (changed_) EraseDeadNodes(graph_);
    return changed_;
  }

 private:
  // Returns the rejection reason; empty if the epilogue can be fused.
  std::string RejectionReason(const Node& product,
                              const Epilogue& epilogue) const {
    const Value& value = *product.output();
    if (value.uses().size() > 1 || graph_.IsOutput(&value)) {
      return value.name() + " has other uses";
    }
    const bool biased = epilogue.bias != nullptr;
    if (biased && context_.options().eager_rounding) {
      return "eager rounding rounds it before the bias is added";
    }
    if (!LibraryHas(product, epilogue, context_.target())) {
      return std::string("the target has no library matmul with a ") +
             (biased ? "bias" : "ReLU");
    }
    return "";
  }

  // Fuses `node` into the product and records the decision. Returns true if it
  // did.
  bool Take(Node& product, const Epilogue& epilogue, Node& node) {
    if (!Decide(context_, kMatmulPass, node, RejectionReason(product, epilogue),
                "matmul")) {
      return false;
    }
    const std::string name = node.output()->name();
    changed_ = true;
    Node* fused =
        AddProduct(graph_, product, product.inputs(), epilogue, &node);
    graph_.ReplaceAllUses(node.output(), fused->output());
    graph_.EraseAll({&node, &product});
    graph_.Rename(fused->output(), name);
    return true;
  }

  Graph& graph_;
  PassContext& context_;
  bool changed_ = false;
};

}  // namespace

bool FuseConvEpilogue(Graph& graph, PassContext& context) {
  std::unordered_set<const Value*> outputs;
  for (const ir::Output& output : graph.outputs()) outputs.insert(output.value);
  int64_t& count = context.counters()["conv_relu"];
  std::vector<Node*> dead;
  std::vector<std::pair<Value*, std::string>> names;
  for (const auto& relu : graph.nodes()) {
    if (relu->kind() != OpKind::kRelu) continue;
    Value* value = relu->input(0);
    Node* conv = value->producer();
    if (!IsOp(conv, OpKind::kConv2d) || conv->attrs().Bool("relu")) continue;
    if (!Decide(context, kConvPass, *relu,
                RejectionReason(*conv, outputs, context), "convolution")) {
      continue;
    }
    conv->mutable_attrs().Set("relu", true);
    graph.ReplaceAllUses(relu->output(), value);
    names.emplace_back(value, relu->output()->name());
    dead.push_back(relu.get());
    ++count;
  }
  graph.EraseAll(dead);
  for (auto& [value, name] : names) graph.Rename(value, std::move(name));
  return !dead.empty();
}

bool FuseMatmulEpilogue(Graph& graph, PassContext& context) {
  return EpilogueFusion(graph, context).Run();
}

}  // namespace fusor::passes
