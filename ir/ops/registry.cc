#include <algorithm>
#include <string>
#include <unordered_map>

#include "ir/op.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

std::vector<const OpDef*> Concatenate() {
  std::vector<const OpDef*> all;
  for (const auto& family :
       {ElementwiseOps(), SourceOps(), ShapeOps(), ReduceOps(), MatmulOps(),
        ConvOps(), PoolOps(), NormOps(), ControlOps()}) {
    for (const OpDef& op : family) all.push_back(&op);
  }
  return all;
}

}  // namespace

std::span<const OpDef* const> AllOps() {
  static const std::vector<const OpDef*> all = Concatenate();
  return all;
}

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

ScalarOp NodeScalar(const Node& node) {
  FUSOR_ASSERT(node.op().scalar != nullptr, "{} has no scalar function",
               node.op_name());
  return node.op().scalar(node.attrs());
}

}  // namespace fusor::ir
