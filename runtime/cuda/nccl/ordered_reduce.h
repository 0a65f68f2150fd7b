#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "codegen/target_compiler.h"
#include "runtime/backend/communicator.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/cuda_executable.h"
#include "runtime/cuda/nccl/nccl_connection.h"

namespace fusor::cuda {

// Reduces in rank order: adds rank 0's elements to zero, then rank 1's, and so
// on. NCCL has no collective with this order. Each rank receives all ranks'
// elements of its shard and adds them with a generated kernel. Ranks send as
// many bytes as in a ring all-reduce. Needs device memory for one shard per
// rank and one for the sum.
class OrderedReduce {
 public:
  // The connection and the context must outlive it.
  OrderedReduce(const NcclConnection& connection, const Context& context,
                std::unique_ptr<codegen::TargetCompiler> compiler);
  ~OrderedReduce();
  OrderedReduce(const OrderedReduce&) = delete;
  OrderedReduce& operator=(const OrderedReduce&) = delete;

  // Compiles the kernel and allocates the memory for an all_reduce or a
  // reduce_scatter. Throws kOutOfMemory.
  void Prepare(const runtime::Collective& collective);

  // Enqueues the sum of this rank's shard and returns its device address. The
  // shard is that of `data`, or the tensors' shards, concatenated. Values
  // beyond a shard's elements are undefined. The stream may be capturing if the
  // collective is prepared. The next sum overwrites this one.
  CUdeviceptr SumOfPart(const runtime::Collective& collective, CUstream stream);

 private:
  struct Sum {
    codegen::CompiledKernel compiled;
    std::unique_ptr<CudaExecutable> kernel;
    int64_t stride = 0;     // elements between ranks' shards
    CUdeviceptr parts = 0;  // shards of all ranks, then their sum
  };

  const Sum& Find(const runtime::Collective& collective);
  void AllToAll(const runtime::Collective& collective, const Sum& sum,
                CUstream stream) const;

  const NcclConnection& connection_;
  const Context& context_;
  const std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::map<std::pair<ir::DType, int64_t>, Sum> sums_;
  // Shared by all sums, which run one at a time. Outgrown memory is kept,
  // because a captured graph may hold its address.
  std::vector<CUdeviceptr> scratch_;
  int64_t scratch_bytes_ = 0;  // size of the last one
};

}  // namespace fusor::cuda
