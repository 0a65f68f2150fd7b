// State initialisation.

#include <algorithm>
#include <cstring>
#include <vector>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "ir/weight_copy.h"
#include "runtime/initial_values.h"
#include "runtime/session.h"

namespace fusor::runtime {

using codegen::StateLayout;

// Writes chunks, several at a time. A host copy of a whole tensor, especially
// in f64, would double the memory that a large model needs.
void Session::WriteInitialValues(const StateLayout::Entry& entry,
                                 const InitialTensor& values,
                                 ir::DType rounding) {
  constexpr int64_t kChunk = int64_t{1} << 17;  // elements
  constexpr int64_t kChunksAtATime = 8;
  const ir::DType dtype = entry.type.dtype;
  const int64_t elements = entry.type.num_elements();
  const int64_t size = ir::DTypeSize(dtype);
  const auto draw = [&](int64_t first, std::span<uint8_t> bytes) {
    std::vector<float> drawn(bytes.size() / size);
    values.Fill(entry.type, first, drawn);
    if (dtype == ir::DType::kF32 && rounding == ir::DType::kF32) {
      std::memcpy(bytes.data(), drawn.data(), bytes.size());
      return;
    }
    ir::Tensor tensor{{dtype, {static_cast<int64_t>(drawn.size())}, {}},
                      {drawn.begin(), drawn.end()}};
    for (double& x : tensor.data) x = ir::RoundTo(rounding, x);
    ir::StoreTensor(tensor, bytes);
  };
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < elements; first += kChunksAtATime * kChunk) {
    const int64_t count = std::min(kChunksAtATime * kChunk, elements - first);
    bytes.resize(count * size);
    ParallelFor((count + kChunk - 1) / kChunk, backend_options_.threads,
                [&](size_t chunk) {
                  const int64_t begin = static_cast<int64_t>(chunk) * kChunk;
                  const int64_t end = std::min(begin + kChunk, count);
                  draw(first + begin, std::span(bytes).subspan(
                                          begin * size, (end - begin) * size));
                });
    stream_->CopyToDevice(
        static_cast<char*>(state_->data()) + entry.offset + first * size,
        bytes.data(), bytes.size());
    Synchronize();
  }
}

void Session::InitializeState(uint64_t seed) {
  FUSOR_CHECK(!programs_.empty(), kUsage,
              "session: initial state: expected a program, there is none");
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
