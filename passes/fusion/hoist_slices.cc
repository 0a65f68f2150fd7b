// Computes elementwise ops only after their result is cut into slices.
//
// Attention computes queries, keys and values by one matmul and cuts its
// result. A kernel's results have one shape, so the op before the slices would
// be a kernel of its own:
//
//   %m = matmul(%x, %w) : f32[197,96]
//   %a = add(%m, %bias) : f32[197,96]
//   %q = slice(%a) {limit=[197,48], start=[0,0]} : f32[197,48]
//   %k = slice(%a) {limit=[197,96], start=[0,48]} : f32[197,48]
//
// The pass slices the operands, which are read from memory in any case:
//
//   %m1 = slice(%m) {limit=[197,48], start=[0,0]} : f32[197,48]
//   %b1 = slice(%bias) {limit=[197,48], start=[0,0]} : f32[197,48]
//   %q = add(%m1, %b1) : f32[197,48]
//   ...

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

// The nodes that lead from an elementwise op to a slice: transposes, reshapes
// that kernels support, and the slice.
using Path = std::vector<Node*>;

class SliceHoister {
 public:
  SliceHoister(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    std::vector<Node*> candidates;
    for (const auto& node : graph_.nodes()) {
      if (node->op().fusion == ir::FusionKind::kElementwise &&
          ReadsFromMemory(*node)) {
        candidates.push_back(node.get());
      }
    }
    bool changed = false;
    for (Node* node : candidates) changed |= Hoist(*node);
    return changed;
  }

 private:
  // Whether all operands are stored or free to compute. Otherwise the node
  // belongs to the kernel that computes them.
  static bool ReadsFromMemory(const Node& node) {
    return std::ranges::all_of(node.inputs(), [](const Value* input) {
      const Node* producer = input->producer();
      return producer == nullptr || !IsFusible(*producer) || IsFree(*producer);
    });
  }

  // Appends the paths from `value` to its readers. Returns false if there is a
  // reader at which no path can end.
  bool FindPaths(const Value* value, Path& path, std::vector<Path>& paths) {
    if (graph_.IsOutput(value)) return false;
    for (const ir::Use& use : value->uses()) {
      Node& reader = *use.node;
      path.push_back(&reader);
      const bool moves =
          reader.kind() == OpKind::kTranspose ||
          (reader.kind() == OpKind::kReshape && IsFusible(reader));
      if (reader.kind() == OpKind::kSlice) {
        paths.push_back(path);
      } else if (!moves || !FindPaths(reader.output(), path, paths)) {
        return false;
      }
      path.pop_back();
    }
    return true;
  }

  bool Hoist(Node& node) {
    Path path;
    std::vector<Path> paths;
    if (!FindPaths(node.output(), path, paths) || paths.empty()) return false;
    int64_t elements = 0;
    for (const Path& p : paths) elements += Elements(*p.back());
    if (elements > Elements(node)) return false;
    if (!context_.ConsumeFuel("hoist_slices", *node.output())) return false;
    ++context_.counters()["hoisted_slices"];
    std::unordered_set<Node*> dead = {&node};
    for (const Path& p : paths) {
      Node& slice = *p.back();
      Node* copy = Copy(node, p);
      std::string name = slice.output()->name();
      graph_.ReplaceAllUses(slice.output(), copy->output());
      graph_.Rename(slice.output(), name + ".old");
      graph_.Rename(copy->output(), std::move(name));
      dead.insert(p.begin(), p.end());
    }
    graph_.EraseAll({dead.begin(), dead.end()});
    return true;
  }

  static int64_t Elements(const Node& node) {
    return node.output()->type().num_elements();
  }

  // Computes the node at the end of the path, in the layouts of the path, which
  // the ops would not infer.
  Node* Copy(const Node& node, const Path& path) {
    std::vector<Value*> operands;
    for (Value* operand : node.inputs()) {
      for (Node* step : path) {
        ir::TensorType type = step->output()->type();
        type.dtype = operand->type().dtype;
        operand = graph_
                      .AddNode(step->kind(), {operand}, step->attrs(),
                               step->location(), path.back())
                      ->output();
        operand->set_type(std::move(type));
      }
      operands.push_back(operand);
    }
    return graph_.AddNode(node.kind(), std::move(operands), node.attrs(),
                          node.location(), path.back());
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

bool HoistSlices(Graph& graph, PassContext& context) {
  return SliceHoister(graph, context).Run();
}

}  // namespace fusor::passes
