#include "codegen/plan/views.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"

namespace fusor::codegen {
namespace {

using ir::PhysicalAxis;
using ir::TensorType;

// Returns the loops of the physical order in canonical form: without loops of
// extent 1, and with adjacent loops merged that traverse one dimension
// contiguously. Equal physical orders have equal loops.
std::vector<PhysicalAxis> NormalAxes(const TensorType& type) {
  std::vector<PhysicalAxis> axes;
  for (const PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    if (axis.extent == 1) continue;
    if (!axes.empty()) {
      PhysicalAxis& outer = axes.back();
      if (outer.dim == axis.dim && outer.step == axis.step * axis.extent &&
          outer.stride == axis.stride * axis.extent) {
        outer = {axis.dim, axis.step, outer.extent * axis.extent, axis.stride};
        continue;
      }
    }
    axes.push_back(axis);
  }
  return axes;
}

bool SamePhysicalOrder(const TensorType& a, const TensorType& b) {
  const auto key = [](const PhysicalAxis& axis) {
    return std::tuple(axis.dim, axis.step, axis.extent, axis.stride);
  };
  const std::vector<PhysicalAxis> x = NormalAxes(a);
  const std::vector<PhysicalAxis> y = NormalAxes(b);
  return std::equal(
      x.begin(), x.end(), y.begin(), y.end(),
      [&](const auto& p, const auto& q) { return key(p) == key(q); });
}

// Returns whether the physical order of `type` is the attribute `order` of a
// flatten or unflatten.
bool IsOrdered(const TensorType& type, const ir::Node& node) {
  return SamePhysicalOrder(
      type,
      {type.dtype, type.shape, ir::ParseLayout(node.attrs().String("order"))});
}

// A blocked layout with a single block is row-major, too.
bool IsRowMajor(const TensorType& type) {
  return SamePhysicalOrder(type, {type.dtype, type.shape, {}});
}

}  // namespace

bool IsView(const ir::Node& node) {
  if (node.kind() == ir::OpKind::kReshape) {
    return IsRowMajor(node.input(0)->type()) &&
           IsRowMajor(node.output()->type());
  }
  if (node.kind() == ir::OpKind::kFlatten) {
    return IsOrdered(node.input(0)->type(), node);
  }
  if (node.kind() == ir::OpKind::kUnflatten) {
    return IsOrdered(node.output()->type(), node);
  }
  return node.kind() == ir::OpKind::kCopy &&
         node.input(0)->type().dtype == node.output()->type().dtype &&
         SamePhysicalOrder(node.input(0)->type(), node.output()->type());
}

const ir::Value* StorageOf(const ir::Value* value) {
  while (value->producer() != nullptr && IsView(*value->producer())) {
    value = value->producer()->input(0);
  }
  return value;
}

std::string ConstantBytes(const ir::Node& constant) {
  const std::vector<uint8_t> bytes =
      ir::TensorBytes(ir::InterpretNode(constant, {}, ir::EvalMode::kTyped)[0]);
  return {bytes.begin(), bytes.end()};
}

}  // namespace fusor::codegen
