// Moves the all-gather of parameters from the end of a step to the start of the
// next. The end of a step
//
//   %next = .. : f32[640]                            new state "shard/w"
//   %all = all_gather(%next) {ranks=2} : f32[2,640]
//   %whole = reshape(%all) : f32[64,20]              new state "w"
//
// becomes the start of the next: %all gathers the old value of "shard/w", and
// readers of %w read %whole. State "w" then is one step older than the shards.
//
// If nothing reads %w itself, but only 16-bit copies (cache_weight_casts), the
// shard is rounded first, which halves the bytes to gather:
//
//   %narrow = cast(%"shard/w") {dtype="bf16"} : bf16[640]
//
// Rounding is elementwise, so it commutes with gathering.
//
// In both cases state "w" is not written at all if that would copy the gathered
// value. Whoever reads it between steps gathers it first.

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "ir/builder.h"
#include "ir/shard.h"
#include "ir/support/error.h"
#include "ir/weight_copy.h"
#include "passes/collectives/collective.h"
#include "passes/collectives/shard_layout.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Node;
using ir::Value;

constexpr char kPrefetchParametersPass[] = "prefetch_parameters";

// Unary and not a collective: reshapes, slices, copies, casts.
bool IsConversion(const Node& node) {
  return !node.HasTrait(ir::OpTrait::kCollective) && node.num_inputs() == 1;
}

// The all-gather of one parameter's shards at the end of a step.
struct Gather {
  int parameter = 0;  // input indices
  int shard = 0;
  Node* node = nullptr;       // all_gather
  std::vector<Node*> follow;  // converts the gathered value
  std::vector<int> outputs;   // next values of the parameter and its copies
};

class Rotation {
 public:
  Rotation(Graph& graph, PassContext& context)
      : graph_(graph), context_(context) {}

  bool Run() {
    for (const Gather& gather : Find()) {
      const bool fuel =
          context_.ConsumeFuel(kPrefetchParametersPass, *gather.node->output());
      if (fuel) Rotate(gather);
      changed_ |= fuel;
    }
    if (!changed_) return false;
    DropOutputs();
    graph_.EraseAll(dead_);
    graph_.SortTopologically();
    return true;
  }

 private:
  std::vector<Gather> Find() const {
    std::vector<Gather> gathers;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      if (!IsParameter(graph_.inputs()[i].role)) continue;
      const Value* shard =
          graph_.FindInput(ir::ShardName(graph_.input(i)->name()));
      if (shard == nullptr) continue;
      Gather gather{.parameter = static_cast<int>(i), .shard = shard->index()};
      gather.node = GatherOf(*shard);
      if (gather.node != nullptr && Follow(gather)) {
        gathers.push_back(std::move(gather));
      }
    }
    return gathers;
  }

  // Returns the all-gather of the shard's next value; null if there is not
  // exactly one.
  Node* GatherOf(const Value& shard) const {
    for (const ir::Output& output : graph_.outputs()) {
      if (output.alias != shard.index()) continue;
      Node* found = nullptr;
      for (const ir::Use& use : output.value->uses()) {
        if (!use.node->HasTrait(ir::OpTrait::kCollective)) continue;
        if (found != nullptr || use.node->num_inputs() != 1) return nullptr;
        found = use.node;
      }
      return found;
    }
    return nullptr;
  }

  // Collects readers of the gathered parameter. Returns false if it has readers
  // other than its state.
  bool Follow(Gather& gather) const {
    std::vector<Value*> values{gather.node->output()};
    std::set<const Node*> seen;
    for (size_t i = 0; i < values.size(); ++i) {
      for (size_t o = 0; o < graph_.outputs().size(); ++o) {
        if (graph_.outputs()[o].value != values[i]) continue;
        if (!IsStateOf(graph_.outputs()[o], gather.parameter)) return false;
        gather.outputs.push_back(static_cast<int>(o));
      }
      for (const ir::Use& use : values[i]->uses()) {
        if (!IsConversion(*use.node)) return false;
        if (!seen.insert(use.node).second) continue;
        gather.follow.push_back(use.node);
        values.push_back(use.node->output());
      }
    }
    return !gather.outputs.empty();
  }

  bool IsStateOf(const ir::Output& output, int parameter) const {
    if (output.alias == parameter) return true;
    if (output.alias < 0) return false;
    const ir::Input& state = graph_.inputs()[output.alias];
    return state.role == InputRole::kWeightCopy &&
           ir::CopiedWeight(state.attrs) == graph_.input(parameter)->name();
  }

  void Rotate(const Gather& gather) {
    Value* shard = graph_.input(gather.shard);
    const std::optional<DType> narrow = NarrowDType(gather);
    ++context_.counters()["prefetched_gathers"];
    context_.counters()["narrow_gathers"] += narrow.has_value() ? 1 : 0;
    Record(gather, narrow);
    if (narrow.has_value()) return RotateNarrow(gather, *narrow);
    gather.node->SetInput(0, shard);
    for (const int o : gather.outputs) {
      const ir::Output& output = graph_.outputs()[o];
      graph_.ReplaceAllUses(graph_.input(output.alias), output.value);
      // A value that is read where it was gathered needs no copy in the state.
      if (output.alias == gather.parameter && IsAsGathered(*output.value)) {
        dropped_.insert(o);
      }
    }
  }

  static bool IsAsGathered(const Value& value) {
    return IsOp(value.producer(), ir::OpKind::kUnflatten);
  }

  // Returns the dtype to which all copies are rounded, if nothing reads the
  // parameter itself.
  std::optional<DType> NarrowDType(const Gather& gather) const {
    const Value& parameter = *graph_.input(gather.parameter);
    if (!parameter.uses().empty()) return std::nullopt;
    std::optional<DType> narrow;
    for (const int o : gather.outputs) {
      const int alias = graph_.outputs()[o].alias;
      if (alias == gather.parameter) continue;
      const DType rounding = ir::CopyRounding(graph_.inputs()[alias].attrs);
      if (narrow.has_value() && narrow != rounding) return std::nullopt;
      narrow = rounding;
    }
    if (!narrow.has_value() ||
        DTypeSize(*narrow) >= DTypeSize(parameter.type().dtype)) {
      return std::nullopt;
    }
    return narrow;
  }

  void RotateNarrow(const Gather& gather, DType dtype) {
    const ir::TensorType& type = graph_.input(gather.parameter)->type();
    ir::Builder b(graph_);
    b.Inherit(gather.node->location());
    Value* part = b.Cast(graph_.input(gather.shard), dtype);
    Value* whole = GatherParts(b, part, {dtype, type.shape, type.layout},
                               gather.node->attrs().Int("ranks"));
    for (const int o : gather.outputs) {
      ir::Output& output = graph_.mutable_outputs()[o];
      if (output.alias == gather.parameter) {
        dropped_.insert(o);
        continue;
      }
      Value* copy = graph_.input(output.alias);
      output.value = LaidOut(b, whole, copy->type());
      const std::vector<ir::Use> uses = copy->uses();
      for (const ir::Use& use : uses) {
        use.node->SetInput(static_cast<size_t>(use.operand), output.value);
      }
    }
    dead_.push_back(gather.node);
    dead_.insert(dead_.end(), gather.follow.begin(), gather.follow.end());
  }

  static Value* LaidOut(ir::Builder& b, Value* value,
                        const ir::TensorType& type) {
    if (value->type() == type) return value;
    return b
        .Add("copy", {value},
             {{"layout", FormatLayout(type.layout, type.rank())},
              {"result_dtype", std::string(DTypeName(type.dtype))}})
        ->output();
  }

  void DropOutputs() {
    std::vector<ir::Output>& outputs = graph_.mutable_outputs();
    std::vector<ir::Output> kept;
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!dropped_.contains(static_cast<int>(o))) kept.push_back(outputs[o]);
    }
    outputs = std::move(kept);
  }

  void Record(const Gather& gather, std::optional<DType> narrow) {
    const Value& parameter = *graph_.input(gather.parameter);
    context_.Record({.pass = kPrefetchParametersPass,
                     .subject = parameter.name(),
                     .accepted = true,
                     .reason = fmt::format(
                         "all-gathered in {} at the start of the step",
                         DTypeName(narrow.value_or(parameter.type().dtype))),
                     .location = gather.node->location()});
  }

  Graph& graph_;
  PassContext& context_;
  std::set<int> dropped_;  // outputs
  std::vector<Node*> dead_;
  bool changed_ = false;
};

}  // namespace

bool PrefetchParameters(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  if (!options.shard_optimizer || options.world_size <= 1 ||
      options.micro_batches != MicroBatches::kNone) {
    return false;
  }
  return Rotation(graph, context).Run();
}

}  // namespace fusor::passes
