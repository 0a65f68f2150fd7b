// Gradient accumulation. Accumulating and finishing programs share state:
//
//   sum = gradient + (batches == 0 ? 0 : sum)      both
//   batches = batches + 1                          accumulating
//   batches = 0                                    finishing, after the update
//
// So nothing needs a reset, and a finishing step alone is an ordinary step. The
// mean over micro-batches is one more factor in ScaleGradients.
//
// With a dynamic loss scale the update of running statistics may be skipped,
// too. So accumulating programs advance copies of them, from which the
// finishing program continues.

#include <algorithm>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::InputRole;
using ir::Node;
using ir::Value;

constexpr char kMicroBatches[] = "micro_batches";

class Accumulator {
 public:
  Accumulator(Graph& graph, const PassOptions& options)
      : graph_(graph),
        options_(options),
        adds_(options.micro_batches == MicroBatches::kAdd),
        begin_(graph.nodes().empty() ? nullptr : graph.nodes()[0].get()),
        gradients_(CollectGradients(graph)) {}

  bool Run() {
    if (gradients_.empty()) return false;
    StartCount();
    if (options_.loss_scale.dynamic) HoldStatistics();
    for (const ParameterGradient& g : gradients_) AddUp(g);
    if (adds_) DropGradients();
    FinishCount();
    return true;
  }

 private:
  void StartCount() {
    batches_ = MicroBatchCount(graph_);
    Builder b(graph_, begin_);
    b.Inherit(StepLocation(graph_, kMicroBatches));
    first_ = b.Compare("eq", batches_, 0.0);
  }

  void FinishCount() {
    Builder b(graph_);
    b.Inherit(StepLocation(graph_, kMicroBatches));
    Value* next = adds_ ? b.Plus(batches_, 1) : b.ScalarLike(batches_, 0);
    graph_.AddOutput(next, batches_->name(), batches_->index());
  }

  // The forward pass reads the copy once it exists.
  void HoldStatistics() {
    const size_t outputs = graph_.outputs().size();
    for (size_t i = 0; i < outputs; ++i) {
      const int alias = graph_.outputs()[i].alias;
      if (alias < 0 || graph_.inputs()[alias].role != InputRole::kStatistic) {
        continue;
      }
      Value* old = graph_.input(alias);
      Value* held = TrainingInput(graph_, old->type(), InputRole::kAccumulator,
                                  ir::AccumulatedName(old->name()));
      const std::vector<ir::Use> uses = old->uses();
      Builder b(graph_, begin_);
      b.Inherit(StepLocation(graph_, kMicroBatches));
      Value* present =
          b.Select(b.BroadcastTo(first_, old->type().shape), old, held);
      for (const ir::Use& use : uses) use.node->SetInput(use.operand, present);
      if (!adds_) continue;
      graph_.mutable_outputs()[i].name = held->name();
      graph_.mutable_outputs()[i].alias = held->index();
    }
  }

  // Accumulates in the parameter's dtype, before the all-reduce.
  void AddUp(const ParameterGradient& g) {
    Node* reduction = g.gradient->producer();
    FUSOR_ASSERT(
        reduction != nullptr && reduction->HasTrait(ir::OpTrait::kCollective),
        "gradient {} is not all-reduced", g.gradient->name());
    const ir::Input& parameter = graph_.inputs()[g.input];
    const std::string name = ir::AccumulatedName(parameter.value->name());
    const ir::TensorType& type = parameter.value->type();
    Value* sum = TrainingInput(graph_, type, InputRole::kAccumulator, name, 0,
                               UpdateGroup(options_.optimizer, parameter));
    Builder b(graph_, reduction);
    b.Inherit(reduction->location());
    Value* first = b.BroadcastTo(first_, type.shape);
    Value* earlier = b.Select(first, b.Zeros(type), sum);
    Value* next = b.Plus(b.Cast(reduction->input(0), type.dtype), earlier);
    reduction->SetInput(0, next);
    // Finishing programs need not store the sum. Without a state output it can
    // be written directly into its bucket.
    if (adds_ || options_.world_size == 1) {
      graph_.AddOutput(next, name, sum->index());
    }
  }

  void DropGradients() {
    std::vector<Node*> reductions;
    for (const ParameterGradient& g : gradients_) {
      reductions.push_back(g.gradient->producer());
    }
    std::erase_if(graph_.mutable_outputs(), [&](const ir::Output& output) {
      return std::any_of(
          gradients_.begin(), gradients_.end(),
          [&](const auto& g) { return g.gradient == output.value; });
    });
    graph_.EraseAll(reductions);
  }

  Graph& graph_;
  const PassOptions& options_;
  const bool adds_;
  Node* const begin_;  // start of the forward pass
  const std::vector<ParameterGradient> gradients_;
  Value* batches_ = nullptr;
  Value* first_ = nullptr;  // true before the first micro-batch is accumulated
};

}  // namespace

bool AccumulateGradients(Graph& graph, PassContext& context) {
  if (context.options().micro_batches == MicroBatches::kNone) return false;
  return Accumulator(graph, context.options()).Run();
}

}  // namespace fusor::passes
