// How state gets its first values.

#include <algorithm>
#include <vector>

#include "ir/support/error.h"
#include "ir/tensor_bytes.h"
#include "ir/weight_copy.h"
#include "runtime/initialize.h"
#include "runtime/session.h"

namespace fusor::runtime {

using codegen::StateLayout;

// By chunks: a copy of a whole tensor on the host, let alone in f64, would
// double what a large model needs.
void Session::WriteInitialValues(const StateLayout::Entry& entry,
                                 const InitialTensor& values,
                                 ir::DType rounding) {
  constexpr int64_t kChunk = int64_t{1} << 18;  // elements
  const ir::DType dtype = entry.type.dtype;
  const int64_t elements = entry.type.num_elements();
  const int64_t size = ir::DTypeSize(dtype);
  std::vector<float> drawn;
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < elements; first += kChunk) {
    const int64_t count = std::min(kChunk, elements - first);
    drawn.resize(count);
    values.Fill(entry.type, first, drawn);
    ir::Tensor tensor{{dtype, {count}, {}}, {drawn.begin(), drawn.end()}};
    for (double& x : tensor.data) x = ir::RoundTo(rounding, x);
    bytes.resize(count * size);
    ir::StoreTensor(tensor, bytes);
    stream_->CopyToDevice(
        static_cast<char*>(state_->data()) + entry.offset + first * size,
        bytes.data(), bytes.size());
    Synchronize();
  }
}

void Session::InitializeState(uint64_t seed) {
  FUSOR_ASSERT(!programs_.empty(), "no program");
  shown_ = Shown::kParts;
  for (const codegen::PlanInput& input : plan(0).inputs) {
    if (!IsState(input.role) || input.role == ir::InputRole::kWeightCopy ||
        IsParameterShard(input.name)) {
      continue;
    }
    const StateLayout::Entry& entry = FindState(input.name);
    if (IsInParts(input.name)) {
      WriteState(input.name,
                 InitialValues(input.attrs, entry.type.num_elements(),
                               input.name, seed));
      continue;
    }
    const InitialTensor values(input.attrs, input.name, seed);
    WriteInitialValues(entry, values, entry.type.dtype);
    for (const codegen::PlanInput& copy : plan(0).inputs) {
      if (copy.role != ir::InputRole::kWeightCopy ||
          ir::CopiedWeight(copy.attrs) != input.name) {
        continue;
      }
      WriteInitialValues(FindState(copy.name), values,
                         ir::CopyRounding(copy.attrs));
    }
  }
}

}  // namespace fusor::runtime
