// Caches cast weights and biases as state.
//
// Mixed precision reads w as cast(w), the layout pass as copy(cast(w)),
// recomputed in each step. A library op reads an input instead,
//
//   %c = weight_copy {of="w", rounding="bf16"} : bf16[64,64,1,1]{ABcd8b16a2b}
//
// whose next value is the same cast and copy of the weight's next value. The
// update has that value in registers, so the copy is written once per step and
// read without conversion. There is one copy per requested layout. If the
// target has no 16-bit matmul, the copy is f32 with rounded elements.

#include <algorithm>
#include <optional>

#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/cost.h"
#include "ir/weight_copy.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kCacheWeightCastsPass[] = "cache_weight_casts";
constexpr char kRepacks[] = "weight_repacks";

// Returns true for nodes that only round elements or change the layout.
bool IsConversion(const Node& node) {
  return node.kind() == OpKind::kCopy ||
         (node.num_inputs() == 1 &&
          node.op().fusion == ir::FusionKind::kElementwise &&
          ir::NodeScalar(node) == ir::ScalarOp::kIdentity);
}

bool IsLibraryRead(const ir::Use& use) {
  return ir::LibraryOp(*use.node).op().fusion == ir::FusionKind::kLibrary &&
         use.node->kind() != OpKind::kCopy;
}

// A conversion of a weight that library ops read.
struct Reading {
  Value* value;
  DType rounding;  // the narrowest dtype in the chain of conversions
};

class Keeper {
 public:
  Keeper(Graph& graph, PassContext& context)
      : graph_(graph),
        context_(context),
        places_(context.options().state_places) {}

  bool Run() {
    if (context_.options().precision.dtype != DType::kF32) {
      context_.counters()["weight_copies"] += 0;
    }
    const int64_t before = CountRepacks();
    const size_t inputs = graph_.inputs().size();
    for (size_t i = 0; i < inputs; ++i) {
      const InputRole role = graph_.inputs()[i].role;
      if (role == InputRole::kWeight || role == InputRole::kBias) Visit(i);
    }
    if (!changed_) return false;
    EraseDeadNodes(graph_);
    context_.counters()[kRepacks] += CountRepacks() - before;
    return true;
  }

 private:
  void Visit(size_t weight) {
    std::vector<Reading> readings;
    Collect(*graph_.input(weight), std::nullopt, readings);
    Value* next = NextValue(weight);
    for (const Reading& reading : readings) Keep(weight, next, reading);
    if (next != nullptr) UpdateOthers(*graph_.input(weight), next);
  }

  // Updates copies that only other programs read.
  void UpdateOthers(const Value& weight, Value* next) {
    for (const auto& [name, place] : places_) {
      const auto kind = ir::ParseWeightCopyName(name);
      if (!kind.has_value() || kind->weight != weight.name() ||
          graph_.FindInput(name) != nullptr) {
        continue;
      }
      Add({kind->dtype, weight.type().shape, place.layout}, name, weight.name(),
          kind->rounding, next);
      changed_ = true;
    }
  }

  Value* Add(const ir::TensorType& type, const std::string& name,
             const std::string& weight, DType rounding, Value* next) {
    Value* copy = graph_.AddInput(type, InputRole::kWeightCopy, name,
                                  ir::WeightCopyAttrs(weight, rounding));
    if (next != nullptr) Update(*copy, next, rounding);
    return copy;
  }

  static void Collect(const Value& value, std::optional<DType> rounding,
                      std::vector<Reading>& readings) {
    for (const ir::Use& use : value.uses()) {
      if (!IsConversion(*use.node)) continue;
      Value* result = use.node->output();
      const DType dtype = result->type().dtype;
      std::optional<DType> narrowest = rounding;
      if (DTypeSize(dtype) < DTypeSize(DType::kF32)) {
        // Rounded to both f16 and bf16: no single dtype describes it.
        if (rounding.has_value() && rounding != dtype) continue;
        narrowest = dtype;
      }
      const auto& uses = result->uses();
      if (narrowest.has_value() &&
          std::any_of(uses.begin(), uses.end(), IsLibraryRead)) {
        readings.push_back({result, *narrowest});
      }
      Collect(*result, narrowest, readings);
    }
  }

  // Returns null if the program does not update the weight.
  Value* NextValue(size_t weight) const {
    for (const ir::Output& output : graph_.outputs()) {
      if (output.alias == static_cast<int>(weight)) return output.value;
    }
    return nullptr;
  }

  void Keep(size_t weight, Value* next, const Reading& reading) {
    const std::string& of = graph_.input(weight)->name();
    const ir::TensorType type = reading.value->type();
    const std::string name = ir::WeightCopyName(of, reading.rounding, type);
    const bool exists =
        places_.empty() ? next != nullptr : places_.contains(name);
    if (!exists || !context_.ConsumeFuel(kCacheWeightCastsPass, *reading.value))
      return;
    Value* copy = graph_.FindInput(name);
    if (copy == nullptr) {
      copy = Add(type, name, of, reading.rounding, next);
      ++context_.counters()["weight_copies"];
      Record(*graph_.input(weight), *copy, *reading.value);
    }
    const std::vector<ir::Use> uses = reading.value->uses();
    for (const ir::Use& use : uses) {
      if (IsLibraryRead(use)) use.node->SetInput(use.operand, copy);
    }
    changed_ = true;
  }

  void Update(const Value& copy, Value* next, DType rounding) {
    ir::Builder builder(graph_);
    if (next->producer() != nullptr) {
      builder.Inherit(next->producer()->location());
    }
    const auto convert = [&](DType dtype) {
      const ir::TensorType& type = copy.type();
      next = builder
                 .Add("copy", {next},
                      {{"layout", FormatLayout(type.layout, type.rank())},
                       {"result_dtype", std::string(DTypeName(dtype))}})
                 ->output();
    };
    convert(rounding);
    if (copy.type().dtype != rounding) convert(copy.type().dtype);
    graph_.AddOutput(next, copy.name(), copy.index());
  }

  void Record(const Value& weight, const Value& copy, const Value& read) {
    Decision decision;
    decision.pass = kCacheWeightCastsPass;
    decision.subject = read.name();
    decision.accepted = true;
    decision.reason = fmt::format("{} is state", ToString(copy.type()));
    decision.saved_ns =
        ir::KernelNs(weight.type().num_bytes(), context_.target().target());
    decision.location = read.producer()->location();
    context_.Record(std::move(decision));
  }

  int64_t CountRepacks() const {
    return std::count_if(
        graph_.nodes().begin(), graph_.nodes().end(),
        [](const auto& node) { return node->kind() == OpKind::kCopy; });
  }

  Graph& graph_;
  PassContext& context_;
  const std::map<std::string, StatePlace>& places_;
  bool changed_ = false;
};

}  // namespace

bool CacheWeightCasts(Graph& graph, PassContext& context) {
  return Keeper(graph, context).Run();
}

}  // namespace fusor::passes
