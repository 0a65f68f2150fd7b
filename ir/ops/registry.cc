#include <algorithm>
#include <string>
#include <unordered_map>

#include "ir/op.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

std::vector<const OpDef*> IndexByKind() {
  std::vector<const OpDef*> all(kNumOps);
  for (const auto& family : {ElementwiseOps(), SourceOps(), ShapeOps(),
                             IndexedOps(), ReduceOps(), MatmulOps(), ConvOps(),
                             PoolOps(), NormOps(), ImageOps(), ControlOps()}) {
    for (const OpDef& op : family) {
      const OpDef*& row = all[static_cast<size_t>(op.kind)];
      FUSOR_ASSERT(row == nullptr, "ops {} and {} of one kind", row->name,
                   op.name);
      row = &op;
    }
  }
  FUSOR_ASSERT(std::find(all.begin(), all.end(), nullptr) == all.end(),
               "a kind without op");
  return all;
}

}  // namespace

std::span<const OpDef* const> AllOps() {
  static const std::vector<const OpDef*> all = IndexByKind();
  return all;
}

const OpDef& GetOp(OpKind kind) { return *AllOps()[static_cast<size_t>(kind)]; }

std::string_view OpName(OpKind kind) { return GetOp(kind).name; }

const OpDef* FindOp(std::string_view name) {
  static const auto by_name = [] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef* op : AllOps()) map.emplace(op->name, op);
    return map;
  }();
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

const OpDef& GetOp(std::string_view name) {
  const OpDef* op = FindOp(name);
  if (op == nullptr) {
    std::vector<std::string> names;
    for (const OpDef* known : AllOps()) names.emplace_back(known->name);
    const std::string nearest = NearestName(name, names);
    FUSOR_CHECK(false, kGraph, "unknown op {}{}", name,
                nearest.empty() ? "" : "; did you mean " + nearest + "?");
  }
  return *op;
}

void FillDefaults(const OpDef& op, Attrs& attrs) {
  for (const AttrSpec& spec : op.attrs) {
    if (spec.required || attrs.Has(spec.name)) continue;
    attrs.Set(std::string(spec.name), spec.default_value);
  }
}

void CheckAttrs(const OpDef& op, const Attrs& attrs) {
  for (const AttrSpec& spec : op.attrs) {
    FUSOR_CHECK(attrs.Has(spec.name), kGraph, "attribute {} is missing",
                spec.name);
  }
  for (const auto& [name, value] : attrs.values()) {
    const auto spec =
        std::find_if(op.attrs.begin(), op.attrs.end(),
                     [&n = name](const AttrSpec& s) { return s.name == n; });
    FUSOR_CHECK(spec != op.attrs.end(), kGraph, "no attribute {}", name);
    FUSOR_CHECK(spec->default_value.index() == value.index(), kGraph,
                "attribute {}: expected {}, got {}", name,
                AttrTypeName(spec->default_value), AttrTypeName(value));
  }
}

std::vector<TensorType> InferResults(const OpDef& op,
                                     std::span<const TensorType> operands,
                                     const Attrs& attrs, const Graph* body) {
  const int count = static_cast<int>(operands.size());
  FUSOR_CHECK(count >= op.min_inputs, kGraph,
              "expected at least {} operands, got {}", op.min_inputs, count);
  FUSOR_CHECK(op.max_inputs < 0 || count <= op.max_inputs, kGraph,
              "expected at most {} operands, got {}", op.max_inputs, count);
  FUSOR_CHECK((body != nullptr) == op.has_body, kGraph, "{}",
              op.has_body ? "expected a body" : "expected no body");
  std::vector<TensorType> results;
  if (body == nullptr) {
    results = op.infer(operands, attrs);
  } else {
    for (const Output& output : body->outputs()) {
      results.push_back(output.value->type());
    }
  }
  for (const TensorType& type : results) CheckType(type);
  return results;
}

ScalarOp NodeScalar(const Node& node) {
  FUSOR_ASSERT(node.op().scalar != nullptr, "{} has no scalar function",
               node.op_name());
  return node.op().scalar(node.attrs());
}

namespace {

// Returns whether mixed precision could narrow the operands and their products.
bool IsNarrowable(const Node& node) {
  return node.op().precision == PrecisionRule::kAllow &&
         node.input(0)->type().dtype == DType::kF32;
}

}  // namespace

void KeepPrecision(const Graph& graph, size_t first) {
  for (size_t i = first; i < graph.nodes().size(); ++i) {
    Node& node = *graph.nodes()[i];
    if (IsNarrowable(node)) {
      node.mutable_attrs().Set("result_dtype",
                               std::string(DTypeName(DType::kF32)));
    }
  }
}

bool KeepsPrecision(const Node& node) {
  return IsNarrowable(node) &&
         node.attrs().String("result_dtype") == DTypeName(DType::kF32);
}

}  // namespace fusor::ir
