#include <algorithm>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/shard.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

std::vector<TensorType> InferAllReduce(Types in, const Attrs&) {
  return {in.begin(), in.end()};
}

int64_t PositiveAttr(const Attrs& attrs, const char* name) {
  const int64_t ranks = attrs.Int(name);
  FUSOR_CHECK(ranks > 0, kGraph, "{} {}: expected a positive number", name,
              ranks);
  return ranks;
}

// Infers [ranks, ..]: index r of result i is operand i of rank r.
std::vector<TensorType> InferAllGather(Types in, const Attrs& attrs) {
  std::vector<TensorType> out;
  for (const TensorType& part : in) {
    FUSOR_CHECK(part.dtype == in[0].dtype, kGraph,
                "expected operands of one dtype");
    out.push_back({part.dtype, part.shape, {}});
    out.back().shape.insert(out.back().shape.begin(),
                            PositiveAttr(attrs, "ranks"));
  }
  return out;
}

// Simulates ranks that all have the same operands.
void EvalAllGather(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  for (size_t i = 0; i < in.size(); ++i) {
    std::vector<double>& parts = out[i]->data;
    parts.clear();
    for (int64_t r = 0; r < node.attrs().Int("ranks"); ++r) {
      parts.insert(parts.end(), in[i]->data.begin(), in[i]->data.end());
    }
  }
}

// Result i is this rank's shard of the sum of operand i, see ir/shard.h.
std::vector<TensorType> InferReduceScatter(Types in, const Attrs& attrs) {
  const int64_t parts = PositiveAttr(attrs, "parts");
  std::vector<TensorType> out;
  for (const TensorType& whole : in) {
    FUSOR_CHECK(whole.dtype == in[0].dtype, kGraph,
                "expected operands of one dtype");
    out.push_back(
        {whole.dtype, {ShardElements(whole.num_elements(), parts)}, {}});
  }
  return out;
}

// Returns the first shard, padded with zeros.
void EvalReduceScatter(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t n = std::min(in[i]->data.size(), out[i]->data.size());
    std::copy_n(in[i]->data.begin(), n, out[i]->data.begin());
  }
}

// Simulates one rank.
void EvalAllReduce(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  for (size_t i = 0; i < in.size(); ++i) out[i]->data = in[i]->data;
}

// Operands: y, dy, then pairs of an operand x of the composite and dx.
std::vector<TensorType> InferCustomGradient(Types in, const Attrs&) {
  FUSOR_CHECK(in.size() % 2 == 0, kGraph,
              "expected y, dy and pairs of x and dx, got {} operands",
              in.size());
  for (size_t i = 0; i < in.size(); i += 2) {
    FUSOR_CHECK(
        in[i].dtype == in[i + 1].dtype && in[i].shape == in[i + 1].shape,
        kGraph, "gradient of operand {}: expected {}, got {}",
        i == 0 ? 0 : i / 2 - 1, ToString(in[i]), ToString(in[i + 1]));
  }
  return {in[0]};
}

// The nodes from dy to dx compute the gradient of x for any gradient of y.
// Builds them again with the actual gradient of y instead of dy.
std::vector<Value*> GradCustom(Builder& b, const Node& node,
                               std::span<Value* const> d_outputs) {
  const Value* dy = node.input(1);
  std::unordered_map<const Value*, Value*> actual{{dy, d_outputs[0]}};
  const auto actual_of = [&](Value* value) {
    const auto found = actual.find(value);
    return found == actual.end() ? value : found->second;
  };
  const auto& nodes = b.graph().nodes();
  const int first = dy->producer() == nullptr ? 0 : dy->producer()->position();
  for (int i = first + 1; i < node.position(); ++i) {
    const Node& original = *nodes[static_cast<size_t>(i)];
    std::vector<Value*> inputs;
    for (Value* input : original.inputs()) inputs.push_back(actual_of(input));
    if (inputs == original.inputs()) continue;
    const Node* built = b.Add(original.kind(), inputs, original.attrs());
    for (size_t k = 0; k < original.num_outputs(); ++k) {
      actual[original.output(k)] = built->output(k);
    }
  }
  std::vector<Value*> gradients(node.num_inputs(), nullptr);
  for (size_t i = 2; i < node.num_inputs(); i += 2) {
    gradients[i] = actual_of(node.input(i + 1));
  }
  return gradients;
}

void EvalCustomGradient(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  out[0]->data = in[0]->data;
}

std::vector<OpDef> MakeControlOps() {
  OpDef all_reduce;
  all_reduce.kind = OpKind::kAllReduce;
  all_reduce.name = "all_reduce";
  all_reduce.summary = "the sum over all ranks of each operand";
  all_reduce.max_inputs = -1;
  all_reduce.layout = LayoutRule::kSame;
  all_reduce.traits = OpTrait::kCollective;
  all_reduce.infer = InferAllReduce;
  all_reduce.eval = EvalAllReduce;

  OpDef all_gather;
  all_gather.kind = OpKind::kAllGather;
  all_gather.name = "all_gather";
  all_gather.summary = "each operand [..] of all ranks -> [ranks, ..]";
  all_gather.max_inputs = -1;
  all_gather.layout = LayoutRule::kRowMajor;
  all_gather.traits = OpTrait::kCollective;
  all_gather.attrs = {{"ranks", int64_t{1}, true}};
  all_gather.infer = InferAllGather;
  all_gather.eval = EvalAllGather;

  OpDef reduce_scatter = all_gather;
  reduce_scatter.kind = OpKind::kReduceScatter;
  reduce_scatter.name = "reduce_scatter";
  reduce_scatter.summary =
      "this rank's of `parts` parts of the sum over all ranks of each operand, "
      "[..] -> [n], filled up to whole cache lines";
  reduce_scatter.attrs = {{"parts", int64_t{1}, true}};
  reduce_scatter.infer = InferReduceScatter;
  reduce_scatter.eval = EvalReduceScatter;

  OpDef custom;
  custom.kind = OpKind::kCustomGradient;
  custom.name = "custom_gradient";
  custom.summary =
      "y; operands y, dy, x, dx, ..: if the gradient of y is dy, that of x is "
      "dx";
  custom.min_inputs = 2;
  custom.max_inputs = -1;
  custom.layout = LayoutRule::kSame;
  custom.infer = InferCustomGradient;
  custom.gradient = GradCustom;
  custom.eval = EvalCustomGradient;

  OpDef fusion;
  fusion.kind = OpKind::kFusion;
  fusion.name = "fusion";
  fusion.summary =
      "one kernel or library call: the body's inputs and outputs are its own";
  fusion.min_inputs = 0;
  fusion.max_inputs = -1;
  fusion.layout = LayoutRule::kSame;
  // kind: "loop"; "multi_tensor" for equal chains over `tensors` tensors; or
  // "library" for one call of a vendor library (ir/library_fusion.h).
  // copies_together: copies of the tensors' results may be stored contiguously
  // and in the tensors' order: the first copy of each tensor, then the second,
  // ... rounding: "fast", or "eager" for rounding at every op of the body.
  fusion.attrs = {{"kind", std::string("loop")},
                  {"rounding", std::string("fast")},
                  {"tensors", int64_t{1}},
                  {"copies_together", false}};
  fusion.has_body = true;
  return {all_reduce, all_gather, reduce_scatter, custom, fusion};
}

}  // namespace

std::span<const OpDef> ControlOps() {
  static const std::vector<OpDef> ops = MakeControlOps();
  return ops;
}

}  // namespace fusor::ir
