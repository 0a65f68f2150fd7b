#include "ir/ops/eval.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

std::vector<TensorType> InferAllReduce(Types in, const Attrs&) {
  return {in.begin(), in.end()};
}

// The operand of rank r is part r of the result.
std::vector<TensorType> InferAllGather(Types in, const Attrs& attrs) {
  const int64_t ranks = attrs.Int("ranks");
  FUSOR_CHECK(ranks > 0, kGraph, "ranks {}: expected a positive number", ranks);
  Shape shape = in[0].shape;
  shape.insert(shape.begin(), ranks);
  return {{in[0].dtype, std::move(shape), {}}};
}

// Ranks that all have the same.
void EvalAllGather(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  std::vector<double>& parts = out[0]->data;
  parts.clear();
  for (int64_t r = 0; r < node.attrs().Int("ranks"); ++r) {
    parts.insert(parts.end(), in[0]->data.begin(), in[0]->data.end());
  }
}

// A world of one rank.
void EvalAllReduce(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  for (size_t i = 0; i < in.size(); ++i) out[i]->data = in[i]->data;
}

std::vector<OpDef> MakeOps() {
  OpDef all_reduce;
  all_reduce.name = "all_reduce";
  all_reduce.summary = "the sum over all ranks of each operand";
  all_reduce.max_inputs = -1;
  all_reduce.layout = LayoutRule::kSame;
  all_reduce.pure = false;
  all_reduce.infer = InferAllReduce;
  all_reduce.eval = EvalAllReduce;

  OpDef all_gather;
  all_gather.name = "all_gather";
  all_gather.summary = "[..] of each rank -> [ranks, ..]";
  all_gather.layout = LayoutRule::kRowMajor;
  all_gather.pure = false;
  all_gather.attrs = {{"ranks", int64_t{1}, true}};
  all_gather.infer = InferAllGather;
  all_gather.eval = EvalAllGather;

  OpDef fusion;
  fusion.name = "fusion";
  fusion.summary = "one kernel: the body's inputs and outputs are its own";
  fusion.min_inputs = 0;
  fusion.max_inputs = -1;
  fusion.layout = LayoutRule::kSame;
  // kind: "loop", or "multi_tensor" for equal chains over `tensors` tensors.
  // rounding: "fast", or "eager" for rounding at every op of the body.
  fusion.attrs = {{"kind", std::string("loop")},
                  {"rounding", std::string("fast")},
                  {"tensors", int64_t{1}}};
  fusion.has_body = true;
  return {all_reduce, all_gather, fusion};
}

}  // namespace

std::span<const OpDef> ControlOps() {
  static const std::vector<OpDef> ops = MakeOps();
  return ops;
}

}  // namespace fusor::ir
