#include "tools/inspect/compare/compare_outputs.h"

#include <optional>

#include "ir/shard.h"
#include "ir/weight_copy.h"
#include "runtime/state_store.h"

namespace fusor::runtime {
namespace {

using codegen::PlanOutput;

constexpr std::string_view kGradientPrefix = "grad/";

bool IsGradient(const PlanOutput& output) {
  return output.name.starts_with(kGradientPrefix);
}

// Reads the outputs of one program.
class Side {
 public:
  Side(Session& session, int program) : session_(session), program_(program) {}

  // Returns the outputs to compare, in the plan's order.
  std::vector<const PlanOutput*> Outputs(bool gradients) const {
    std::vector<const PlanOutput*> outputs;
    for (const PlanOutput& output : session_.plan(program_).outputs) {
      if (IsGradient(output) == gradients && IsCompared(output)) {
        outputs.push_back(&output);
      }
    }
    return outputs;
  }

  // Returns the output's name; for a shard, the parameter's name.
  std::string NameOf(const PlanOutput& output) const {
    const bool part =
        output.alias >= 0 && session_.state().IsParameterShard(output.name);
    return part ? output.name.substr(ir::ShardName("").size()) : output.name;
  }

  const PlanOutput* Find(const std::string& name) const {
    for (const PlanOutput& output : session_.plan(program_).outputs) {
      if (IsCompared(output) && NameOf(output) == name) return &output;
    }
    return nullptr;
  }

  // A tensor, gathered from all ranks if it is sharded.
  struct Whole {
    ir::TensorType type;
    std::vector<uint8_t> bytes;
  };
  Whole Read(const PlanOutput& output) const {
    const codegen::Buffer& buffer =
        session_.plan(program_).buffers[output.buffer];
    Whole whole{buffer.type, session_.ReadBuffer(program_, output.buffer)};
    const std::optional<ir::TensorType> parts = PartsType(output);
    if (!parts.has_value()) return whole;
    whole.type = {buffer.type.dtype, parts->shape, parts->layout};
    whole.bytes = session_.AllGather(whole.bytes);
    whole.bytes.resize(static_cast<size_t>(whole.type.num_bytes()));
    return whole;
  }

 private:
  // Skips weight copies, and parameters that have shards.
  bool IsCompared(const PlanOutput& output) const {
    if (ir::ParseWeightCopyName(output.name).has_value()) return false;
    return output.alias < 0 || !session_.state().IsSharded(output.name);
  }

  // Returns the type of a sharded tensor; nullopt if it is not sharded.
  std::optional<ir::TensorType> PartsType(const PlanOutput& output) const {
    std::string part = output.name;
    if (IsGradient(output)) {
      part = ir::ShardName(output.name.substr(kGradientPrefix.size()));
      if (!session_.state().Has(part)) return {};
    } else if (output.alias < 0 || !session_.state().IsShard(part)) {
      return {};
    }
    return session_.state().GatheredType(part);
  }

  Session& session_;
  const int program_;
};

}  // namespace

OutputDifferences CompareOutputs(Session& a, Session& b, int program,
                                 bool gradients) {
  const Side side_a(a, program), side_b(b, program);
  OutputDifferences result;
  std::vector<ValueDifference> states;
  for (const PlanOutput* output : side_a.Outputs(gradients)) {
    const std::string name = side_a.NameOf(*output);
    const PlanOutput* other = side_b.Find(name);
    if (other == nullptr) {
      ++result.unmatched;
      continue;
    }
    const Side::Whole x = side_a.Read(*output);
    const Side::Whole y = side_b.Read(*other);
    if (x.type.dtype != y.type.dtype || x.type.shape != y.type.shape) {
      ++result.unmatched;
      continue;
    }
    const ValueKind kind = gradients            ? ValueKind::kGradient
                           : output->alias >= 0 ? ValueKind::kState
                                                : ValueKind::kOutput;
    ValueDifference value{
        kind, gradients ? name.substr(kGradientPrefix.size()) : name,
        ir::Difference(x.type, x.bytes.data(), y.type, y.bytes.data())};
    (kind == ValueKind::kState ? states : result.values)
        .push_back(std::move(value));
  }
  for (const PlanOutput* output : side_b.Outputs(gradients)) {
    result.unmatched += side_a.Find(side_b.NameOf(*output)) == nullptr ? 1 : 0;
  }
  result.values.insert(result.values.end(), states.begin(), states.end());
  return result;
}

}  // namespace fusor::runtime
