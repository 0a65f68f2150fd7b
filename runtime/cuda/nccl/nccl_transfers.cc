#include "runtime/cuda/nccl/nccl_transfers.h"

#include <algorithm>
#include <span>

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using runtime::Collective;
using runtime::CollectiveKind;

std::span<const Collective::Tensor> TensorsOf(const Collective& c) {
  return {c.tensors, static_cast<size_t>(c.num_tensors)};
}

bool IsSum(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce ||
         kind == CollectiveKind::kReduceScatter;
}

}  // namespace

NcclTransfers::NcclTransfers(const NcclConnection& connection,
                             const Context& context,
                             std::unique_ptr<codegen::TargetCompiler> compiler)
    : connection_(connection), context_(context) {
  if (compiler != nullptr) {
    sums_ = std::make_unique<OrderedReduce>(connection, context,
                                            std::move(compiler));
  }
  const Driver& driver = context.Enter();
  // One allocation: what follows the float is the votes.
  driver.Check(driver.cuMemAlloc(
                   &barrier_, sizeof(float) +
                                  static_cast<size_t>(connection.world_size())),
               "cuMemAlloc");
  votes_ = barrier_ + sizeof(float);
}

NcclTransfers::~NcclTransfers() {
  Driver::Ignore(context_.EnterNoThrow().cuMemFree(barrier_));
}

void NcclTransfers::Prepare(const Collective& collective) {
  if (sums_ != nullptr && IsSum(collective.kind) && collective.elements > 0) {
    sums_->Prepare(collective);
  }
}

void NcclTransfers::Enqueue(const Collective& c, CUstream stream) {
  if (c.kind == CollectiveKind::kBarrier) return Barrier(stream);
  if (c.elements == 0) return;
  const bool apart = c.num_tensors > 0;
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
      return AllReduce(c, stream);
    case CollectiveKind::kReduceScatter:
      return apart ? ReduceTensors(c, stream) : ReduceScatter(c, stream);
    case CollectiveKind::kAllGather:
      return apart ? GatherTensors(c, stream) : AllGather(c, nullptr, stream);
    case CollectiveKind::kBroadcast: {
      const auto bytes =
          static_cast<size_t>(c.elements * ir::DTypeSize(c.dtype));
      return connection_.Settle(
          connection_.nccl().ncclBroadcast(c.data, c.data, bytes, ncclInt8,
                                           c.root, connection_.comm(), stream),
          "ncclBroadcast");
    }
    case CollectiveKind::kBarrier:
      break;
  }
}

void NcclTransfers::Barrier(CUstream stream) const {
  auto* scratch = reinterpret_cast<void*>(barrier_);
  connection_.Settle(
      connection_.nccl().ncclAllReduce(scratch, scratch, 1, ncclFloat32,
                                       ncclSum, connection_.comm(), stream),
      "ncclAllReduce");
}

void NcclTransfers::AllReduce(const Collective& c, CUstream stream) {
  if (sums_ != nullptr) {
    const CUdeviceptr sum = sums_->SumOfPart(c, stream);
    return AllGather(c, reinterpret_cast<const void*>(sum), stream);
  }
  connection_.Settle(
      connection_.nccl().ncclAllReduce(
          c.data, c.data, static_cast<size_t>(c.elements), NcclTypeOf(c.dtype),
          ncclSum, connection_.comm(), stream),
      "ncclAllReduce");
}

void NcclTransfers::ReduceScatter(const Collective& c, CUstream stream) {
  const int ranks = connection_.world_size();
  const int64_t size = ir::DTypeSize(c.dtype);
  const int64_t part = (c.elements + ranks - 1) / ranks;
  const int64_t first = std::min(c.elements, connection_.rank() * part);
  auto* own = static_cast<char*>(c.data) + first * size;
  if (sums_ != nullptr) {
    const int64_t there = std::min(part, c.elements - first);
    return Copy(own, sums_->SumOfPart(c, stream), there * size, stream);
  }
  // NCCL's parts are equal: the sum of all has this rank's, too.
  if (c.elements != ranks * part) return AllReduce(c, stream);
  connection_.Settle(
      connection_.nccl().ncclReduceScatter(
          c.data, own, static_cast<size_t>(part), NcclTypeOf(c.dtype), ncclSum,
          connection_.comm(), stream),
      "ncclReduceScatter");
}

// `own`: this rank's part; null where it is in place.
void NcclTransfers::AllGather(const Collective& c, const void* own,
                              CUstream stream) const {
  const Nccl& nccl = connection_.nccl();
  const int ranks = connection_.world_size();
  const int64_t size = ir::DTypeSize(c.dtype);
  const int64_t part = (c.elements + ranks - 1) / ranks;
  auto* data = static_cast<char*>(c.data);
  const auto from = [&](int r) {
    return data + std::min(c.elements, r * part) * size;
  };
  if (own == nullptr) own = from(connection_.rank());
  if (c.elements == ranks * part) {
    return connection_.Settle(
        nccl.ncclAllGather(own, data, static_cast<size_t>(part * size),
                           ncclInt8, connection_.comm(), stream),
        "ncclAllGather");
  }
  connection_.Check(nccl.ncclGroupStart(), "ncclGroupStart");
  for (int r = 0; r < ranks; ++r) {
    const auto bytes = static_cast<size_t>(from(r + 1) - from(r));
    const void* source = r == connection_.rank() ? own : from(r);
    connection_.CheckGrouped(
        nccl.ncclBroadcast(source, from(r), bytes, ncclInt8, r,
                           connection_.comm(), stream),
        "ncclBroadcast");
  }
  connection_.Settle(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

// What lies apart goes in one group, each tensor by itself.
void NcclTransfers::GatherTensors(const Collective& c, CUstream stream) const {
  const Nccl& nccl = connection_.nccl();
  connection_.Check(nccl.ncclGroupStart(), "ncclGroupStart");
  for (const Collective::Tensor& t : TensorsOf(c)) {
    const auto bytes = static_cast<size_t>(t.part * ir::DTypeSize(c.dtype));
    connection_.CheckGrouped(
        nccl.ncclAllGather(t.source, t.target, bytes, ncclInt8,
                           connection_.comm(), stream),
        "ncclAllGather");
  }
  connection_.Settle(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

void NcclTransfers::ReduceTensors(const Collective& c, CUstream stream) {
  for (const Collective::Tensor& t : TensorsOf(c)) {
    ClearTail(t, c.dtype, stream);
  }
  if (sums_ != nullptr) {
    CUdeviceptr sum = sums_->SumOfPart(c, stream);
    const int64_t size = ir::DTypeSize(c.dtype);
    for (const Collective::Tensor& t : TensorsOf(c)) {
      Copy(t.target, sum, t.PartElements(connection_.rank()) * size, stream);
      sum += static_cast<CUdeviceptr>(t.part * size);
    }
    return;
  }
  const Nccl& nccl = connection_.nccl();
  connection_.Check(nccl.ncclGroupStart(), "ncclGroupStart");
  for (const Collective::Tensor& t : TensorsOf(c)) {
    ScatterSum(t, c.dtype, stream);
  }
  connection_.Settle(nccl.ncclGroupEnd(), "ncclGroupEnd");
}

// NCCL's parts are equal; what a tensor is short of is not there to be read.
void NcclTransfers::ScatterSum(const Collective::Tensor& t, ir::DType dtype,
                               CUstream stream) const {
  const Nccl& nccl = connection_.nccl();
  const int ranks = connection_.world_size();
  if (t.elements == ranks * t.part) {
    return connection_.CheckGrouped(
        nccl.ncclReduceScatter(t.source, t.target, static_cast<size_t>(t.part),
                               NcclTypeOf(dtype), ncclSum, connection_.comm(),
                               stream),
        "ncclReduceScatter");
  }
  for (int r = 0; r < ranks && t.PartElements(r) > 0; ++r) {
    connection_.CheckGrouped(
        nccl.ncclReduce(static_cast<const char*>(t.source) +
                            r * t.part * ir::DTypeSize(dtype),
                        t.target, static_cast<size_t>(t.PartElements(r)),
                        NcclTypeOf(dtype), ncclSum, r, connection_.comm(),
                        stream),
        "ncclReduce");
  }
}

// Zeros behind what this rank's part has.
void NcclTransfers::ClearTail(const Collective::Tensor& t, ir::DType dtype,
                              CUstream stream) const {
  const int64_t size = ir::DTypeSize(dtype);
  const int64_t there = t.PartElements(connection_.rank());
  if (there == t.part) return;
  const Driver& driver = context_.Enter();
  driver.Check(driver.cuMemsetD8Async(
                   reinterpret_cast<CUdeviceptr>(t.target) + there * size, 0,
                   static_cast<size_t>((t.part - there) * size), stream),
               "cuMemsetD8Async");
}

void NcclTransfers::Copy(void* to, CUdeviceptr from, int64_t bytes,
                         CUstream stream) const {
  if (bytes == 0) return;
  const Driver& driver = context_.Enter();
  driver.Check(driver.cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), from,
                                        static_cast<size_t>(bytes), stream),
               "cuMemcpyDtoDAsync");
}

}  // namespace fusor::cuda
