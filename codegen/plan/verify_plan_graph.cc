#include <set>
#include <unordered_map>

#include "codegen/plan/verify_plan.h"
#include "codegen/plan/views.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

class Correspondence {
 public:
  Correspondence(const Plan& plan, const Graph& graph)
      : plan_(plan), graph_(graph) {
    for (const auto& node : graph.nodes()) {
      nodes_.emplace(node->output()->name(), node.get());
    }
  }

  void Check() {
    CheckInputs();
    std::set<const Node*> done;
    for (const Plan::Constant& constant : plan_.constants) {
      done.insert(CheckConstant(constant));
    }
    for (const Step& step : plan_.steps) {
      const auto it = nodes_.find(step.name);
      FUSOR_ASSERT(it != nodes_.end(), "plan {}: step {} belongs to no node",
                   plan_.name, step.name);
      FUSOR_ASSERT(done.insert(it->second).second,
                   "plan {}: {} is computed twice", plan_.name, step.name);
      CheckStep(step, *it->second);
    }
    for (const auto& node : graph_.nodes()) {
      FUSOR_ASSERT(ir::IsView(*node) || done.contains(node.get()),
                   "plan {}: nothing computes {}", plan_.name,
                   node->output()->name());
    }
    CheckOutputs();
  }

 private:
  void CheckInputs() const {
    FUSOR_ASSERT(plan_.inputs.size() == graph_.inputs().size(),
                 "plan {}: {} inputs, expected {}", plan_.name,
                 plan_.inputs.size(), graph_.inputs().size());
    for (size_t i = 0; i < plan_.inputs.size(); ++i) {
      const PlanInput& input = plan_.inputs[i];
      const Buffer& buffer = plan_.buffers[input.buffer];
      const ir::Input& wanted = graph_.inputs()[i];
      FUSOR_ASSERT(input.name == wanted.value->name() &&
                       buffer.name == input.name && input.role == wanted.role &&
                       input.attrs == wanted.attrs &&
                       buffer.type == wanted.value->type(),
                   "plan {}: input {} is {} {}, expected {} {}", plan_.name, i,
                   buffer.name, ToString(buffer.type), wanted.value->name(),
                   ToString(wanted.value->type()));
    }
  }

  void CheckOutputs() const {
    FUSOR_ASSERT(plan_.outputs.size() == graph_.outputs().size(),
                 "plan {}: {} outputs, expected {}", plan_.name,
                 plan_.outputs.size(), graph_.outputs().size());
    for (size_t i = 0; i < plan_.outputs.size(); ++i) {
      const PlanOutput& output = plan_.outputs[i];
      const ir::Output& wanted = graph_.outputs()[i];
      const std::string& name = plan_.buffers[output.buffer].name;
      const std::string& value = StorageOf(wanted.value)->name();
      FUSOR_ASSERT(output.name == wanted.name && output.alias == wanted.alias &&
                       name == value,
                   "plan {}: output {} is {}, expected {} of {}", plan_.name,
                   output.name, name, wanted.name, value);
    }
  }

  const Node* CheckConstant(const Plan::Constant& constant) const {
    const Buffer& buffer = plan_.buffers[constant.buffer];
    const auto it = nodes_.find(buffer.name);
    FUSOR_ASSERT(
        it != nodes_.end() && it->second->kind() == ir::OpKind::kConstant &&
            buffer.type == it->second->output()->type() &&
            constant.bytes == ConstantBytes(*it->second),
        "plan {}: constant {} is not the graph's", plan_.name, buffer.name);
    return it->second;
  }

  void CheckStep(const Step& step, const Node& node) const {
    std::vector<std::string> reads;
    std::vector<std::string> writes;
    for (size_t a = 0; a < step.args.size(); ++a) {
      const ArgUse use = UseOfArg(plan_, step, a);
      if (use == ArgUse::kScratch) continue;
      const Buffer& buffer = plan_.buffers[step.args[a]];
      for (int part : buffer.members.empty() ? std::vector<int>{step.args[a]}
                                             : buffer.members) {
        (use == ArgUse::kRead ? reads : writes)
            .push_back(plan_.buffers[part].name);
      }
    }
    FUSOR_ASSERT(reads.size() == node.num_inputs() &&
                     writes.size() == node.num_outputs(),
                 "plan {}: step {}: {} operands, {} results, expected {}, {}",
                 plan_.name, step.name, reads.size(), writes.size(),
                 node.num_inputs(), node.num_outputs());
    for (size_t i = 0; i < reads.size(); ++i) {
      FUSOR_ASSERT(reads[i] == StorageOf(node.input(i))->name(),
                   "plan {}: step {}: operand {} is {}, expected {}",
                   plan_.name, step.name, i, reads[i],
                   StorageOf(node.input(i))->name());
    }
    for (size_t i = 0; i < writes.size(); ++i) {
      FUSOR_ASSERT(writes[i] == node.output(i)->name(),
                   "plan {}: step {}: result {} is {}, expected {}", plan_.name,
                   step.name, i, writes[i], node.output(i)->name());
    }
    FUSOR_ASSERT((step.kind == StepKind::kLaunch) == ir::IsKernelFusion(node),
                 "plan {}: step {} is {}", plan_.name, step.name,
                 node.op_name());
    if (step.kind != StepKind::kLaunch) CheckCall(step, node);
  }

  void CheckCall(const Step& step, const Node& node) const {
    const LibraryCall& call = plan_.calls[step.index];
    FUSOR_ASSERT(SameCall(call, CallOf(node)),
                 "plan {}: step {} calls another {}, expected {}", plan_.name,
                 step.name, call.op_name(), node.op_name());
  }

  const Plan& plan_;
  const Graph& graph_;
  std::unordered_map<std::string, const Node*> nodes_;  // by first result
};

}  // namespace

void VerifyPlan(const Plan& plan, const Graph& graph) {
  VerifyPlan(plan);
  Correspondence(plan, graph).Check();
}

}  // namespace fusor::codegen
