// One scalar factor converts the gradient outputs to the gradients of the loss:
//
//   factor = 1 / (loss scale * micro-batches * ranks)
//   factor *= min(1, clip_norm / (factor * norm + 1e-6))       with clipping
//
// in f32, after the all-reduce. The multiplication fuses into the optimizer's
// kernel. Finiteness is checked on the reduced gradients before the
// multiplication, so all ranks get the same answer, as in NVIDIA Apex. For
// sharded gradients (ir/shard.h) the answers of all ranks are combined.

#include <vector>

#include "ir/builder.h"
#include "ir/state_names.h"
#include "passes/collectives/cross_rank_reduce.h"
#include "passes/passes.h"
#include "passes/training/training_state.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::Value;

constexpr char kGradientScale[] = "loss_scale";
constexpr char kClipLocation[] = "clip_norm";

class Scaling {
 public:
  Scaling(Graph& graph, const PassOptions& options)
      : graph_(graph),
        options_(options),
        builder_(graph),
        gradients_(CollectGradients(graph)) {}

  bool Run() {
    if (gradients_.empty()) return false;
    builder_.Inherit(StepLocation(graph_, kGradientScale));
    if (options_.loss_scale.dynamic) AddFinite();
    Value* factor = Factor();
    if (options_.optimizer.clip_norm > 0) factor = Clipped(factor);
    if (factor == nullptr) return false;
    for (const ParameterGradient& g : gradients_) Multiply(g, factor);
    return true;
  }

 private:
  void AddFinite() {
    std::vector<Value*> all = Gradients(/*parts=*/true);
    const bool parts = !all.empty();
    for (Value* whole : Gradients(/*parts=*/false)) all.push_back(whole);
    Value* finite = builder_.Add("all_finite", all)->output();
    if (parts) {
      Value* one = builder_.Scalar(DType::kF32, 1);
      Value* none = builder_.Scalar(DType::kF32, 0);
      Value* bad = OverRanks(builder_.Select(finite, none, one));
      finite = builder_.Compare("eq", bad, 0.0);
    }
    graph_.AddOutput(finite, ir::kFinite);
  }

  // Returns the sharded gradients, or the others.
  std::vector<Value*> Gradients(bool parts) const {
    std::vector<Value*> values;
    for (const ParameterGradient& g : gradients_) {
      if (g.is_part(graph_) == parts) values.push_back(g.gradient);
    }
    return values;
  }

  Value* OverRanks(Value* scalar) {
    return SumOverRanks(builder_, scalar, options_.world_size);
  }

  // Returns the sum of squares over all gradients.
  Value* SumOfAllSquares() {
    Value* sum = nullptr;
    for (const bool parts : {true, false}) {
      const std::vector<Value*> gradients = Gradients(parts);
      if (gradients.empty()) continue;
      Value* own = builder_.Add("sum_of_squares", gradients)->output();
      if (parts) own = OverRanks(own);
      sum = sum == nullptr ? own : builder_.Plus(sum, own);
    }
    return sum;
  }

  // Returns null for 1.
  Value* Factor() {
    Value* divisor = LossScale(graph_, options_.loss_scale);
    const auto times = [&](Value* value) {
      divisor = divisor == nullptr ? value : builder_.Times(divisor, value);
    };
    if (options_.micro_batches == MicroBatches::kFinish) {
      Value* batches = builder_.Plus(MicroBatchCount(graph_), 1);
      times(builder_.Cast(batches, DType::kF32));
    }
    if (options_.world_size > 1) {
      times(builder_.Scalar(DType::kF32, options_.world_size));
    }
    if (divisor == nullptr) return nullptr;
    return builder_.Divide(builder_.Scalar(DType::kF32, 1), divisor);
  }

  Value* Clipped(Value* factor) {
    builder_.Inherit(StepLocation(graph_, kClipLocation));
    Value* norm = builder_.Sqrt(SumOfAllSquares());
    if (factor != nullptr) norm = builder_.Times(norm, factor);
    graph_.AddOutput(norm, ir::kGradientNorm);
    Value* limit = builder_.ScalarLike(norm, options_.optimizer.clip_norm);
    Value* clip = builder_.Divide(limit, builder_.Plus(norm, 1e-6));
    clip = builder_.Minimum(clip, builder_.ScalarLike(norm, 1));
    return factor == nullptr ? clip : builder_.Times(factor, clip);
  }

  void SetLocation(const ParameterGradient& g) {
    builder_.Inherit(ir::LocationOf(*g.gradient));
  }

  void Multiply(const ParameterGradient& g, Value* factor) {
    SetLocation(g);
    const ir::TensorType& type = g.target->type();
    Value* wide = builder_.Cast(g.gradient, type.dtype);
    graph_.mutable_outputs()[g.output].value = builder_.Times(
        wide,
        builder_.BroadcastTo(builder_.Cast(factor, type.dtype), type.shape));
  }

  Graph& graph_;
  const PassOptions& options_;
  ir::Builder builder_;
  const std::vector<ParameterGradient> gradients_;
};

}  // namespace

bool ScaleGradients(Graph& graph, PassContext& context) {
  return Scaling(graph, context.options()).Run();
}

}  // namespace fusor::passes
