#include "ir/ops/eval.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

std::vector<TensorType> InferAllReduce(Types in, const Attrs&) {
  return {in.begin(), in.end()};
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
  return {all_reduce, fusion};
}

}  // namespace

std::span<const OpDef> ControlOps() {
  static const std::vector<OpDef> ops = MakeOps();
  return ops;
}

}  // namespace fusor::ir
