#include "runtime/cuda/nccl/ordered_reduce.h"

#include <algorithm>
#include <array>
#include <span>

#include "codegen/kernel/ordered_sum.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using runtime::Collective;

// Returns the number of elements of a rank's shard, over all tensors.
int64_t PartOf(const Collective& c, int ranks) {
  if (c.num_tensors == 0) return (c.elements + ranks - 1) / ranks;
  return c.elements / ranks;
}

}  // namespace

OrderedReduce::OrderedReduce(const NcclConnection& connection,
                             const Context& context,
                             std::unique_ptr<codegen::TargetCompiler> compiler)
    : connection_(connection),
      context_(context),
      compiler_(std::move(compiler)) {}

OrderedReduce::~OrderedReduce() {
  const Driver& driver = context_.EnterNoThrow();
  for (const CUdeviceptr memory : scratch_) {
    Driver::Ignore(driver.cuMemFree(memory));
  }
}

void OrderedReduce::Prepare(const Collective& collective) { Find(collective); }

const OrderedReduce::Sum& OrderedReduce::Find(const Collective& collective) {
  const int ranks = connection_.world_size();
  const int64_t part = PartOf(collective, ranks);
  const auto [it, added] = sums_.try_emplace({collective.dtype, part});
  Sum& sum = it->second;
  if (!added) return sum;
  const int64_t size = ir::DTypeSize(collective.dtype);
  const int64_t padded = codegen::PadToAlignment(part * size);
  try {
    const int64_t bytes = (ranks + 1) * padded;
    if (bytes > scratch_bytes_) {
      const Driver& driver = context_.Enter();
      CUdeviceptr memory = 0;
      const CUresult result =
          driver.cuMemAlloc(&memory, static_cast<size_t>(bytes));
      FUSOR_CHECK(result != CUDA_ERROR_OUT_OF_MEMORY, kOutOfMemory,
                  "{}: sums in the order of ranks: {} bytes asked for, {} free",
                  context_.name(), bytes, context_.free_bytes());
      driver.Check(result, "cuMemAlloc");
      scratch_.push_back(memory);
      scratch_bytes_ = bytes;
    }
    sum.parts = scratch_.back();
    sum.stride = padded / size;
    sum.compiled.kernel = codegen::OrderedSumKernel(
        collective.dtype, ranks, sum.stride, part, compiler_->target());
    Verify(sum.compiled.kernel);
    sum.compiled.binary = compiler_->CompileKernel(sum.compiled.kernel);
    sum.kernel = LoadKernelModule(context_, sum.compiled);
  } catch (...) {
    sums_.erase(it);
    throw;
  }
  return sum;
}

CUdeviceptr OrderedReduce::SumOfPart(const Collective& collective,
                                     CUstream stream) {
  const Sum& sum = Find(collective);
  AllToAll(collective, sum, stream);
  const CUdeviceptr result = sum.parts + connection_.world_size() * sum.stride *
                                             ir::DTypeSize(collective.dtype);
  const std::array<void*, 2> args{reinterpret_cast<void*>(sum.parts),
                                  reinterpret_cast<void*>(result)};
  sum.kernel->Enqueue(context_.Enter(), stream, args.data());
  return result;
}

// Sends every rank its shard of this rank's elements. Receives this rank's
// shard from rank r at index r of sum.parts.
void OrderedReduce::AllToAll(const Collective& c, const Sum& sum,
                             CUstream stream) const {
  const Nccl& nccl = connection_.nccl();
  const int ranks = connection_.world_size();
  const int64_t size = ir::DTypeSize(c.dtype);
  const ncclDataType_t type = NcclTypeOf(c.dtype);
  const Collective::Tensor whole{c.data, c.data, c.elements, PartOf(c, ranks)};
  const auto tensors =
      c.num_tensors == 0
          ? std::span(&whole, 1)
          : std::span(c.tensors, static_cast<size_t>(c.num_tensors));
  connection_.Check(nccl.ncclGroupStart(), "ncclGroupStart");
  int64_t offset = 0;  // of the tensor's shard
  for (const Collective::Tensor& t : tensors) {
    const auto own = static_cast<size_t>(t.PartElements(connection_.rank()));
    for (int r = 0; r < ranks; ++r) {
      const auto there = static_cast<size_t>(t.PartElements(r));
      if (there > 0) {
        const auto* from =
            static_cast<const char*>(t.source) + r * t.part * size;
        connection_.CheckGrouped(
            nccl.ncclSend(from, there, type, r, connection_.comm(), stream),
            "ncclSend");
      }
      if (own > 0) {
        void* to = reinterpret_cast<void*>(sum.parts +
                                           (r * sum.stride + offset) * size);
        connection_.CheckGrouped(
            nccl.ncclRecv(to, own, type, r, connection_.comm(), stream),
            "ncclRecv");
      }
    }
    offset += t.part;
  }
  connection_.Settle(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace fusor::cuda
