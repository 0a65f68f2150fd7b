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

// Sums that add rank 0's elements to zero, then rank 1's, and so on, which no
// collective of NCCL's does: each rank gets all ranks' elements of its part,
// adds them up by a kernel of ours, and hands out the sum. What is sent is what
// a ring sends; device memory is a part for each rank and one more.
class OrderedReduce {
 public:
  // The connection and the context must outlive it.
  OrderedReduce(const NcclConnection& connection, const Context& context,
                std::unique_ptr<codegen::TargetCompiler> compiler);
  ~OrderedReduce();
  OrderedReduce(const OrderedReduce&) = delete;
  OrderedReduce& operator=(const OrderedReduce&) = delete;

  // The kernel and the memory for an all_reduce or a reduce_scatter. Throws
  // kOutOfMemory.
  void Prepare(const runtime::Collective& collective);

  // The sum of this rank's part, on the device: of `data`, or of tensors one
  // part after the other. What lies beyond the elements of a part is undefined.
  // Gives its work to the stream, which may be capturing if the collective is
  // prepared; the next sum comes to the same place.
  CUdeviceptr SumOfPart(const runtime::Collective& collective, CUstream stream);

 private:
  struct Sum {
    codegen::CompiledKernel compiled;
    std::unique_ptr<CudaExecutable> kernel;
    int64_t stride = 0;     // elements from rank to rank
    CUdeviceptr parts = 0;  // of all ranks, then their sum
  };

  const Sum& Find(const runtime::Collective& collective);
  void Exchange(const runtime::Collective& collective, const Sum& sum,
                CUstream stream) const;

  const NcclConnection& connection_;
  const Context& context_;
  const std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::map<std::pair<ir::DType, int64_t>, Sum> sums_;
  // One sum at a time needs it. What was too small stays: a captured graph may
  // have its address.
  std::vector<CUdeviceptr> scratch_;
  int64_t scratch_bytes_ = 0;  // of the last
};

}  // namespace fusor::cuda
