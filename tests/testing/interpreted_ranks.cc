#include "tests/testing/interpreted_ranks.h"

#include <map>

#include "ir/dtype.h"
#include "ir/op.h"
#include "ir/scalar_op.h"
#include "ir/support/error.h"

namespace fusor::test {
namespace {

using ir::Node;
using ir::Tensor;
using ir::Value;
using Values = std::map<const Value*, Tensor>;  // per rank

Tensor SumOverRanks(const Value* operand, const std::vector<Values>& ranks,
                    ir::EvalMode mode) {
  Tensor sum = ranks[0].at(operand);
  for (size_t i = 0; i < sum.data.size(); ++i) {
    for (size_t r = 1; r < ranks.size(); ++r) {
      sum.data[i] += ranks[r].at(operand).data[i];
    }
    if (mode == ir::EvalMode::kTyped) {
      sum.data[i] = ir::RoundTo(sum.type.dtype, sum.data[i]);
    }
  }
  return sum;
}

Tensor Gather(const Node& node, size_t i, const std::vector<Values>& ranks) {
  Tensor all{node.output(i)->type(), {}};
  FUSOR_CHECK(all.type.shape[0] == static_cast<int64_t>(ranks.size()), kGraph,
              "{} of {} ranks", ir::ToString(all.type), ranks.size());
  for (const Values& rank : ranks) {
    const std::vector<double>& part = rank.at(node.input(i)).data;
    all.data.insert(all.data.end(), part.begin(), part.end());
  }
  return all;
}

// Returns the shard of a sum that `rank` receives, padded with zeros.
Tensor PartOf(const Tensor& sum, const Value& result, size_t rank) {
  Tensor part{result.type(), {}};
  const auto n = static_cast<size_t>(part.type.num_elements());
  for (size_t i = rank * n; i < (rank + 1) * n; ++i) {
    part.data.push_back(i < sum.data.size() ? sum.data[i] : 0);
  }
  return part;
}

void RunCollective(const Node& node, std::vector<Values>& ranks,
                   ir::EvalMode mode) {
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    const Value& output = *node.output(i);
    const Tensor result = node.op_name() == "all_gather"
                              ? Gather(node, i, ranks)
                              : SumOverRanks(node.input(i), ranks, mode);
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r][&output] = node.op_name() == "reduce_scatter"
                              ? PartOf(result, output, r)
                              : result;
    }
  }
}

void RunOnRank(const Node& node, Values& values, ir::EvalMode mode) {
  std::vector<const Tensor*> operands;
  for (const Value* operand : node.inputs()) {
    operands.push_back(&values.at(operand));
  }
  std::vector<Tensor> results = ir::InterpretNode(node, operands, mode);
  for (size_t i = 0; i < results.size(); ++i) {
    values[node.output(i)] = std::move(results[i]);
  }
}

}  // namespace

std::vector<std::vector<Tensor>> InterpretRanks(
    const ir::Graph& graph, const std::vector<std::vector<Tensor>>& inputs,
    ir::EvalMode mode) {
  std::vector<Values> ranks(inputs.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      ranks[r][graph.input(i)] = inputs[r][i];
    }
  }
  for (const auto& node : graph.nodes()) {
    if (node->HasTrait(ir::OpTrait::kCollective)) {
      RunCollective(*node, ranks, mode);
      continue;
    }
    for (Values& rank : ranks) RunOnRank(*node, rank, mode);
  }
  std::vector<std::vector<Tensor>> outputs(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const ir::Output& output : graph.outputs()) {
      outputs[r].push_back(ranks[r].at(output.value));
    }
  }
  return outputs;
}

}  // namespace fusor::test
