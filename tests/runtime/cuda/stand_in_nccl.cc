// NCCL without GPUs, for processes of one machine: a shared object under NCCL's
// own name. Ranks meet in a file that all of them map; collectives are
// functions of the host in the stream of the stand-in driver, and block there,
// as kernels do, until all ranks have come. Sums add rank 0's elements first.
//
// Half of the calls are not done when they return (ncclInProgress) but when
// they are asked about. FusorPlantNcclFault plants a fault in this process:
//   hang_init     never joins
//   hang_at:N     collective N, from 1, never ends
//   error_at:N    collective N fails, which only polling tells
//   hang_abort    ncclCommAbort does not return

#include <fcntl.h>
#include <fmt/format.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ir/dtype.h"
#include "ir/tensor_bytes.h"
#include "tests/runtime/cuda/stand_in_driver.h"

extern "C" fusor::test::StandIn* FusorStandIn();

namespace fusor::test {
namespace {

constexpr int kMaxRanks = 4;
constexpr size_t kSlotBytes = size_t{16} << 20;

enum class Op : int {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast
};

struct Terms {
  Op op;
  size_t bytes;  // that each rank sends
  int type;
  int root;
  bool operator==(const Terms&) const = default;
};

// What all ranks map.
struct Shared {
  std::atomic<int> present;
  std::array<std::atomic<int64_t>, kMaxRanks> posted;  // collectives
  std::array<std::array<Terms, kMaxRanks>, 2> terms;
  std::array<std::array<std::array<char, kSlotBytes>, kMaxRanks>, 2> data;
};

std::string& Fault() {
  static std::string fault;
  return fault;
}

// N of "word:N"; 0 for another fault.
int64_t FaultAt(const std::string& word) {
  const std::string& fault = Fault();
  return fault.starts_with(word + ":")
             ? std::stoll(fault.substr(word.size() + 1))
             : 0;
}

void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

ir::DType TypeOf(int type) {
  switch (type) {
    case ncclFloat16:
      return ir::DType::kF16;
    case ncclBfloat16:
      return ir::DType::kBF16;
    case ncclFloat64:
      return ir::DType::kF64;
    case ncclFloat32:
      return ir::DType::kF32;
    default:
      return ir::DType::kU8;
  }
}

}  // namespace
}  // namespace fusor::test

struct ncclComm {
  fusor::test::Shared* shared = nullptr;
  int rank = 0;
  int ranks = 0;
  int64_t calls = 0;
  int64_t collectives = 0;  // that have begun
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::mutex mutex;                    // of the rest
  std::function<void()> unfinished{};  // of a call that is not done
  std::thread::id caller{};
};

namespace fusor::test {
namespace {

struct Job {
  ncclComm* comm;
  Terms terms;
  const char* from;
  char* to;
};

void SumUp(const Job& job, const std::array<const char*, kMaxRanks>& parts,
           size_t offset, size_t bytes) {
  const ir::DType dtype = TypeOf(job.terms.type);
  const auto n = static_cast<int64_t>(bytes) / ir::DTypeSize(dtype);
  const ir::TensorType type{dtype, {n}, {}};
  const bool wide = dtype == ir::DType::kF64;
  ir::Tensor sum{type, std::vector<double>(static_cast<size_t>(n), 0)};
  for (int r = 0; r < job.comm->ranks; ++r) {
    const ir::Tensor part = ir::LoadTensor(type, parts[r] + offset);
    for (size_t i = 0; i < sum.data.size(); ++i) {
      const double x = sum.data[i] + part.data[i];
      sum.data[i] = wide ? x : static_cast<float>(x);
    }
  }
  for (double& x : sum.data) x = ir::RoundTo(dtype, x);
  ir::StoreTensor(sum, job.to);
}

// False when it has been given up, or failed.
bool Exchange(const Job& job, int64_t number,
              std::array<const char*, kMaxRanks>& parts) {
  ncclComm& comm = *job.comm;
  Shared& shared = *comm.shared;
  const auto half = static_cast<size_t>(number % 2);
  shared.terms[half][comm.rank] = job.terms;
  std::memcpy(shared.data[half][comm.rank].data(), job.from, job.terms.bytes);
  shared.posted[comm.rank] = number;
  for (int r = 0; r < comm.ranks; ++r) {
    while (shared.posted[r] < number) {
      if (comm.aborted) return false;
      Nap();
    }
    parts[r] = shared.data[half][r].data();
    if (shared.terms[half][r] == job.terms) continue;
    comm.error = ncclInvalidUsage;
    return false;
  }
  return true;
}

void Run(const Job& job) {
  ncclComm& comm = *job.comm;
  if (comm.aborted || comm.error != ncclSuccess) return;
  const int64_t number = ++comm.collectives;
  if (number == FaultAt("error_at")) {
    comm.error = ncclRemoteError;
    return;
  }
  while (number == FaultAt("hang_at")) {
    if (comm.aborted) return;
    Nap();
  }
  std::array<const char*, kMaxRanks> parts{};
  if (!Exchange(job, number, parts)) return;
  const size_t bytes = job.terms.bytes;
  switch (job.terms.op) {
    case Op::kAllReduce:
      return SumUp(job, parts, 0, bytes);
    case Op::kReduce:
      if (comm.rank == job.terms.root) SumUp(job, parts, 0, bytes);
      return;
    case Op::kReduceScatter:
      return SumUp(job, parts, bytes / comm.ranks * comm.rank,
                   bytes / comm.ranks);
    case Op::kAllGather:
      for (int r = 0; r < comm.ranks; ++r) {
        std::memcpy(job.to + r * bytes, parts[r], bytes);
      }
      return;
    case Op::kBroadcast:
      std::memcpy(job.to, parts[job.terms.root], bytes);
  }
}

// Between ncclGroupStart and ncclGroupEnd: what is to be done then.
thread_local bool grouping = false;
thread_local std::vector<std::function<void()>> group;

ncclResult_t Launch(const Job& job, CUstream stream) {
  ncclComm& comm = *job.comm;
  if (comm.aborted || job.terms.bytes > kSlotBytes) return ncclInvalidUsage;
  const auto launch = [job, stream] {
    const auto run = [](void* data) {
      const std::unique_ptr<Job> owned(static_cast<Job*>(data));
      Run(*owned);
    };
    FusorStandIn()->LaunchHost(stream, run, new Job(job));
  };
  if (grouping) {
    group.push_back(launch);
    return ncclInProgress;
  }
  const std::lock_guard lock(comm.mutex);
  if (comm.unfinished) return ncclInvalidUsage;
  if (++comm.calls % 2 == 0) {
    launch();
    return ncclSuccess;
  }
  comm.unfinished = launch;
  comm.caller = std::this_thread::get_id();
  return ncclInProgress;
}

size_t SizeOf(ncclDataType_t type) {
  return static_cast<size_t>(ir::DTypeSize(TypeOf(type)));
}

}  // namespace
}  // namespace fusor::test

using fusor::test::Fault;
using fusor::test::Launch;
using fusor::test::Op;
using fusor::test::Shared;
using fusor::test::SizeOf;

extern "C" {

void FusorPlantNcclFault(const char* fault) { Fault() = fault; }

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::string name =
      (std::filesystem::temp_directory_path() / "stand_in_nccl.XXXXXX")
          .string();
  if (name.size() >= sizeof(id->internal)) return ncclSystemError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, name.data(), name.size());
  const int file = mkstemp(id->internal);
  if (file < 0) return ncclSystemError;
  const int sized = ftruncate(file, sizeof(Shared));
  close(file);
  return sized == 0 ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks,
                                    ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;
  const int file = open(id.internal, O_RDWR);
  if (file < 0) return ncclSystemError;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  auto* made = new ncclComm;
  made->shared = static_cast<Shared*>(memory);
  made->rank = rank;
  made->ranks = ranks;
  *comm = made;
  if (Fault() == "hang_init") return ncclInProgress;
  // The last one takes the name away.
  if (++made->shared->present == ranks) unlink(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->error;
  if (*error != ncclSuccess) return ncclSuccess;
  const std::lock_guard lock(comm->mutex);
  if (comm->shared->present < comm->ranks) *error = ncclInProgress;
  if (!comm->unfinished) return ncclSuccess;
  // A driver's stream is one thread's.
  *error = ncclInProgress;
  if (comm->caller != std::this_thread::get_id()) return ncclSuccess;
  std::exchange(comm->unfinished, nullptr)();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  while (Fault() == "hang_abort") fusor::test::Nap();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "some error";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, size_t,
                              void** handle) {
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclAllReduce(const void* from, void* to, size_t n,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Launch({comm,
                 {Op::kAllReduce, n * SizeOf(type), type, 0},
                 static_cast<const char*>(from),
                 static_cast<char*>(to)},
                stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t n,
                        ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Launch({comm,
                 {Op::kReduce, n * SizeOf(type), type, root},
                 static_cast<const char*>(from),
                 static_cast<char*>(to)},
                stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t n,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return Launch({comm,
                 {Op::kReduceScatter, n * comm->ranks * SizeOf(type), type, 0},
                 static_cast<const char*>(from),
                 static_cast<char*>(to)},
                stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t n,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Launch({comm,
                 {Op::kAllGather, n * SizeOf(type), type, 0},
                 static_cast<const char*>(from),
                 static_cast<char*>(to)},
                stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t n,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Launch({comm,
                 {Op::kBroadcast, n * SizeOf(type), type, root},
                 static_cast<const char*>(from),
                 static_cast<char*>(to)},
                stream);
}

ncclResult_t ncclGroupStart() {
  fusor::test::grouping = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  fusor::test::grouping = false;
  for (const auto& launch : std::exchange(fusor::test::group, {})) launch();
  return ncclSuccess;
}

}  // extern "C"
