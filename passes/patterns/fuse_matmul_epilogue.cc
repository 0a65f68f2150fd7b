// Fuses matmul -> add -> relu, e.g. of fully connected layers, into one matmul:
//
//   %p = matmul(%x, %w) {transpose_b=true}
//   %b = broadcast(%bias) {dims=[1], shape=[64,4096]}
//   %s = add(%p, %b)                  =>  %y = matmul(%x, %w, %bias)
//   %y = relu(%s)                                {relu=true, transpose_b=true}
//
// if the product and the sum have no other reader and the target's library
// supports it. Runs after differentiation, as fuse_conv_epilogue does: the
// gradient of a ReLU reads the ReLU's result. The sum is rounded once instead
// of twice, so with eager rounding the bias remains an add.

#include <string>
#include <utility>
#include <vector>

#include "ir/target/cost.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "fuse_matmul_epilogue";

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
  std::string Obstacle(const Node& product, const Epilogue& epilogue) const {
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

  static std::string Reason(const Epilogue& epilogue) {
    return epilogue.bias != nullptr ? "bias, only consumer of the matmul"
                                    : "ReLU, only consumer of the matmul";
  }

  // Fuses `node` into the product and records the decision. Returns true if it
  // did.
  bool Take(Node& product, const Epilogue& epilogue, Node& node) {
    std::string obstacle = Obstacle(product, epilogue);
    const std::string name = node.output()->name();
    const bool fuse =
        obstacle.empty() && context_.ConsumeFuel(kPass, *node.output());
    context_.Record({.pass = kPass,
                     .subject = name,
                     .accepted = fuse,
                     .reason = fuse ? "only consumer of the matmul"
                               : obstacle.empty() ? "out of fuel"
                                                  : std::move(obstacle),
                     .saved_ns = fuse ? ir::KernelNs(ir::NodeBytes(node),
                                                     context_.target().target())
                                      : 0,
                     .location = node.location()});
    if (!fuse) return false;
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

bool FuseMatmulEpilogue(Graph& graph, PassContext& context) {
  return EpilogueFusion(graph, context).Run();
}

}  // namespace fusor::passes
