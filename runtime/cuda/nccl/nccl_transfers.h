#pragma once

#include <cuda.h>

#include <memory>

#include "codegen/target_compiler.h"
#include "runtime/backend/communicator.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/nccl/nccl_connection.h"
#include "runtime/cuda/nccl/ordered_reduce.h"

namespace fusor::cuda {

// Enqueues the NCCL calls and other device work of each collective.
class NcclTransfers {
 public:
  // `compiler`: for reductions in rank order; null for NCCL's order. The
  // connection and the context must outlive it.
  NcclTransfers(const NcclConnection& connection, const Context& context,
                std::unique_ptr<codegen::TargetCompiler> compiler);
  ~NcclTransfers();
  NcclTransfers(const NcclTransfers&) = delete;
  NcclTransfers& operator=(const NcclTransfers&) = delete;

  void Prepare(const runtime::Collective& collective);
  // Enqueues the collective on the stream, which may be capturing if the
  // collective is prepared. Throws kPeerLost.
  void Enqueue(const runtime::Collective& collective, CUstream stream);
  // Returns device memory with one byte per rank, for all-gathering a flag.
  CUdeviceptr votes() const { return votes_; }

 private:
  void Barrier(CUstream stream) const;
  void AllReduce(const runtime::Collective& c, CUstream stream);
  void ReduceScatter(const runtime::Collective& c, CUstream stream);
  void AllGather(const runtime::Collective& c, const void* own,
                 CUstream stream) const;
  void GatherTensors(const runtime::Collective& c, CUstream stream) const;
  void ReduceTensors(const runtime::Collective& c, CUstream stream);
  void ScatterSum(const runtime::Collective::Tensor& t, ir::DType dtype,
                  CUstream stream) const;
  void ClearTail(const runtime::Collective::Tensor& t, ir::DType dtype,
                 CUstream stream) const;
  void Copy(void* to, CUdeviceptr from, int64_t bytes, CUstream stream) const;

  const NcclConnection& connection_;
  const Context& context_;
  CUdeviceptr barrier_ = 0;
  CUdeviceptr votes_ = 0;
  std::unique_ptr<OrderedReduce> sums_;  // null: NCCL's
};

}  // namespace fusor::cuda
