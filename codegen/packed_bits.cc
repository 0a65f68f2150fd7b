#include "codegen/packed_bits.h"

#include <algorithm>
#include <utility>

#include "ir/cost.h"

namespace fusor::codegen {
namespace {

using ir::Node;
using ir::Value;

constexpr int kBitsPerByte = 8;

class AccessWalk {
 public:
  AccessWalk(const Kernel& kernel, int buffer)
      : kernel_(kernel), buffer_(buffer) {}

  bool WholeBytes() {
    return kernel_.lanes_per_thread() % kBitsPerByte == 0 &&
           std::all_of(kernel_.phases.begin(), kernel_.phases.end(),
                       [this](const Phase& phase) {
                         int axis = -1;
                         for (int a : phase.grid) {
                           if (kernel_.axes[a].vector) axis = a;
                         }
                         return Body(phase.body, axis);
                       });
  }

 private:
  bool Body(const std::vector<Stmt>& body, int vector_axis) const {
    return std::all_of(body.begin(), body.end(), [&](const Stmt& stmt) {
      if (stmt.kind == StmtKind::kLoop) {
        const bool vector = kernel_.axes[stmt.axis].vector;
        return Body(stmt.body, vector ? stmt.axis : vector_axis);
      }
      const bool access =
          stmt.kind == StmtKind::kLoad || stmt.kind == StmtKind::kStore;
      return !access || stmt.buffer != buffer_ ||
             IsWholeGroup(stmt.index, vector_axis);
    });
  }

  bool IsWholeGroup(const Index& index, int vector_axis) const {
    const int group = kernel_.lanes_per_thread();
    if (vector_axis < 0 || kernel_.axes[vector_axis].extent % group != 0 ||
        index.offset % group != 0) {
      return false;
    }
    int64_t lane_stride = 0;
    for (const Index::Term& term : index.terms) {
      if (term.axis == vector_axis) {
        lane_stride = term.coefficient;
      } else if (term.coefficient % group != 0) {
        return false;
      }
    }
    return lane_stride == 1;
  }

  const Kernel& kernel_;
  const int buffer_;
};

// The kernel's buffer that holds the operand or result alone; -1 in a span.
int BufferOf(const std::vector<std::vector<int>>& spans, int tensor) {
  for (size_t s = 0; s < spans.size(); ++s) {
    if (spans[s] == std::vector<int>{tensor}) return static_cast<int>(s);
  }
  return -1;
}

// Where the value lies in the kernels that touch it.
using Places = std::vector<std::pair<LoweredKernel*, int>>;

// False where something else than a kernel does, or not by whole bytes.
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

// A result may not be written over an operand of other bytes.
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

std::vector<uint8_t> PackBits(std::span<const uint8_t> bools) {
  std::vector<uint8_t> bits(
      ir::PackedBytes(static_cast<int64_t>(bools.size())));
  for (size_t i = 0; i < bools.size(); ++i) {
    if (bools[i] != 0) bits[i / kBitsPerByte] |= 1U << (i % kBitsPerByte);
  }
  return bits;
}

std::vector<uint8_t> UnpackBits(std::span<const uint8_t> bits,
                                int64_t elements) {
  std::vector<uint8_t> bools(elements);
  for (int64_t i = 0; i < elements; ++i) {
    bools[i] = bits[i / kBitsPerByte] >> (i % kBitsPerByte) & 1;
  }
  return bools;
}

bool AccessedByWholeBytes(const Kernel& kernel, int buffer) {
  return AccessWalk(kernel, buffer).WholeBytes();
}

void PackMasks(const ir::Graph& graph, LoweredNodes& lowered, bool interface) {
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
