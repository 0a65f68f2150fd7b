#include "codegen/kernel/bitmask.h"

#include <algorithm>

#include "codegen/kernel/access_analysis.h"
#include "ir/target/cost.h"

namespace fusor::codegen {
namespace {

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
      if (Iterates(stmt)) {
        const bool vector = kernel_.axes[stmt.axis].vector;
        return Body(stmt.body, vector ? stmt.axis : vector_axis);
      }
      if (stmt.kind == StmtKind::kGuard) {
        return std::ranges::all_of(stmt.bounds,
                                   [&](const Bound& bound) {
                                     return KeepsThreadsWhole(kernel_, bound,
                                                              vector_axis);
                                   }) &&
               Body(stmt.body, vector_axis);
      }
      if (!stmt.indexed.empty() && stmt.buffer == buffer_) return false;
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

}  // namespace fusor::codegen
