#include "codegen/plan/views.h"

#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/op.h"

namespace fusor::codegen {

const ir::Value* StorageOf(const ir::Value* value) {
  while (value->producer() != nullptr && ir::IsView(*value->producer())) {
    value = value->producer()->input(0);
  }
  return value;
}

ir::Value* StorageOf(ir::Value* value) {
  const ir::Value* storage = value;
  return const_cast<ir::Value*>(StorageOf(storage));
}

std::string ConstantBytes(const ir::Node& constant) {
  const std::vector<uint8_t> bytes =
      ir::TensorBytes(ir::InterpretNode(constant, {}, ir::EvalMode::kTyped)[0]);
  return {bytes.begin(), bytes.end()};
}

}  // namespace fusor::codegen
