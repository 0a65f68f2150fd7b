#include <algorithm>
#include <utility>

#include "codegen/kernel/bitmask.h"
#include "codegen/lower/lower.h"

namespace fusor::codegen {
namespace {

using ir::Node;
using ir::Value;

// Returns the kernel buffer of the operand or result; -1 if the buffer holds
// several tensors.
int BufferOf(const std::vector<std::vector<int>>& spans, int tensor) {
  for (size_t s = 0; s < spans.size(); ++s) {
    if (spans[s] == std::vector<int>{tensor}) return static_cast<int>(s);
  }
  return -1;
}

// The kernels that access a value, and the value's buffer in each.
using Places = std::vector<std::pair<LoweredKernel*, int>>;

// Sets `places`. Returns false if the value is also accessed outside of
// kernels, or if a kernel does not access it by whole bytes.
bool FindPlaces(const Value* value, LoweredNodes& lowered, Places& places) {
  const auto add = [&](const Node* node, int buffer) {
    LoweredKernel& kernel = lowered.at(node);
    places.emplace_back(&kernel, buffer);
    return AccessedByWholeBytes(kernel.kernel, buffer);
  };
  if (const Node* producer = value->producer()) {
    const LoweredKernel& writer = lowered.at(producer);
    const int result = BufferOf(writer.result_spans, value->index());
    const auto operands = static_cast<int>(writer.operand_spans.size());
    if (result < 0 || !add(producer, operands + result)) return false;
  }
  return std::all_of(
      value->uses().begin(), value->uses().end(), [&](const ir::Use& use) {
        const auto reader = lowered.find(use.node);
        if (reader == lowered.end()) return false;
        const int operand = BufferOf(reader->second.operand_spans, use.operand);
        return operand >= 0 && add(use.node, operand);
      });
}

// Drops aliases of a bitmask and an unpacked buffer: their sizes differ.
void DropUnequalAliases(LoweredKernel& lowered) {
  std::erase_if(lowered.in_place, [&](const LoweredKernel::Alias& alias) {
    const int operand = BufferOf(lowered.operand_spans, alias.operand);
    const int result = BufferOf(lowered.result_spans, alias.result);
    if (operand < 0 || result < 0) return false;
    const std::vector<KernelBuffer>& buffers = lowered.kernel.buffers;
    return buffers[operand].packed !=
           buffers[lowered.operand_spans.size() + result].packed;
  });
}

}  // namespace

void PackBitmasks(const ir::Graph& graph, LoweredNodes& lowered,
                  bool interface) {
  std::vector<const Value*> values;
  if (interface) {
    for (const ir::Input& input : graph.inputs()) {
      const Value* value = input.value.get();
      if (!graph.IsOutput(value)) values.push_back(value);
    }
  }
  for (const auto& node : graph.nodes()) {
    if (!lowered.contains(node.get())) continue;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      if (interface || !graph.IsOutput(node->output(i))) {
        values.push_back(node->output(i));
      }
    }
  }
  for (const Value* value : values) {
    Places places;
    if (value->type().dtype != ir::DType::kBool ||
        !FindPlaces(value, lowered, places)) {
      continue;
    }
    for (const auto& [kernel, buffer] : places) {
      kernel->kernel.buffers[buffer].packed = true;
    }
  }
  for (auto& [node, kernel] : lowered) DropUnequalAliases(kernel);
}

bool IsReadPacked(const Value& value, const LoweredNodes& lowered) {
  return std::any_of(
      value.uses().begin(), value.uses().end(), [&](const ir::Use& use) {
        const auto reader = lowered.find(use.node);
        if (reader == lowered.end()) return false;
        const int operand = BufferOf(reader->second.operand_spans, use.operand);
        return operand >= 0 && reader->second.kernel.buffers[operand].packed;
      });
}

}  // namespace fusor::codegen
