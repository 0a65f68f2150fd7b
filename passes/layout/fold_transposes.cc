// Folds transposes into the layouts of matmuls.
//
// Attention moves its heads from the columns of one matmul to the batch of the
// next one, and back. A transpose between library calls would be a kernel of
// its own:
//
//   %m = matmul(%p, %v) : f32[8,12,197,64]
//   %t = transpose(%m) {permutation=[0,2,1,3]} : f32[8,197,12,64]
//   %r = reshape(%t) : f32[1576,768]
//
// If the library can write the result in the order of %t, the transpose is a
// view:
//
//   %m = matmul(%p, %v) : f32[8,12,197,64]{acbd}
//
// The same applies to the operands of a matmul.

#include <algorithm>
#include <string>
#include <vector>

#include "ir/op.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Layout;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "fold_transposes";

void SetLayout(Value& value, const Layout& layout) {
  ir::TensorType type = value.type();
  type.layout = layout;
  value.set_type(type);
}

class TransposeFolder {
 public:
  TransposeFolder(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    bool changed = false;
    for (const auto& node : graph_.nodes()) {
      if (node->kind() != OpKind::kTranspose || ir::IsView(*node) ||
          graph_.IsOutput(node->output())) {
        continue;
      }
      changed |= FoldIntoProducer(*node) || FoldIntoReaders(*node);
    }
    return changed;
  }

 private:
  // The result of the transpose stays as it is. Its operand, which nothing else
  // reads, is stored in the same order.
  bool FoldIntoProducer(Node& transpose) {
    Value* operand = transpose.input(0);
    Node* producer = operand->producer();
    if (producer == nullptr || producer->kind() != OpKind::kMatmul ||
        operand->uses().size() != 1 || graph_.IsOutput(operand)) {
      return false;
    }
    // Kernels read an operand in any order.
    const bool fused = std::ranges::any_of(
        transpose.output()->uses(),
        [](const ir::Use& use) { return IsFused(*use.node); });
    return !fused && Fold(*operand,
                          ir::TransposedLayout(
                              transpose.output()->type().layout,
                              ir::InversePermutation(
                                  transpose.attrs().Ints("permutation"))),
                          {producer});
  }

  // The operand of the transpose stays as it is. Its result is read from there.
  bool FoldIntoReaders(Node& transpose) {
    const Node* producer = transpose.input(0)->producer();
    if (producer != nullptr && IsFused(*producer)) return false;
    std::vector<Node*> readers;
    for (const ir::Use& use : transpose.output()->uses()) {
      if (use.node->kind() != OpKind::kMatmul) return false;
      readers.push_back(use.node);
    }
    return Fold(*transpose.output(),
                ir::TransposedLayout(transpose.input(0)->type().layout,
                                     transpose.attrs().Ints("permutation")),
                readers);
  }

  // Returns whether a kernel that computes the node would also transpose.
  static bool IsFused(const Node& node) {
    return IsFusible(node) && !ir::IsView(node);
  }

  // Gives an operand or result of the matmuls another layout, if the library
  // runs them as fast in it.
  bool Fold(Value& value, const Layout& layout,
            const std::vector<Node*>& matmuls) {
    if (!layout.tiles.empty()) return false;
    std::vector<std::string> before;
    for (const Node* matmul : matmuls) before.push_back(Library(*matmul));
    const Layout old = value.type().layout;
    SetLayout(value, layout);
    for (size_t i = 0; i < matmuls.size(); ++i) {
      if (before[i].empty() || Library(*matmuls[i]) != before[i]) {
        SetLayout(value, old);
        return false;
      }
    }
    if (!context_.ConsumeFuel(kPass, value)) {
      SetLayout(value, old);
      return false;
    }
    ++context_.counters()["folded_transposes"];
    return true;
  }

  // Returns the library's implementation of the node in its present layouts;
  // empty if there is none.
  std::string Library(const Node& node) const {
    const auto candidates = context_.target().Candidates(node);
    if (candidates.empty()) return "";
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      if (candidates[0].operands[i] != node.input(i)->type().layout) return "";
    }
    const bool kept = candidates[0].results[0] == node.output()->type().layout;
    return kept ? candidates[0].implementation : "";
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool FoldTransposes(Graph& graph, PassContext& context) {
  return TransposeFolder(graph, context).Run();
}

}  // namespace fusor::passes
