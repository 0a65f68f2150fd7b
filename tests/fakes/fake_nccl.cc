// A fake NCCL without GPUs for processes of one machine: a shared object under
// NCCL's name. Ranks communicate through a file that all of them map.
// Collectives are host functions in a stream of the fake driver. Like NCCL's
// kernels, they block until all ranks have arrived. Sums add from the last rank
// to the first.
//
// Every other call returns ncclInProgress and completes when it is polled.
// FusorInjectNcclFault adds a fault in this process:
//   hang_init     initialisation never ends
//   error_init    initialisation fails, visible only by polling
//   hang_at:N     collective N, from 1, never ends
//   error_at:N    collective N fails, visible only by polling
//   reject_at:N   the call of collective N is rejected
//   hang_abort    ncclCommAbort does not return
//   slow_calls    each call of a collective takes 20 ms

#include <fcntl.h>
#include <fmt/format.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ir/dtype.h"
#include "ir/interpreter/host_tensor.h"
#include "tests/fakes/fake_driver.h"

extern "C" fusor::test::FakeDriver* FusorFakeDriver();

namespace fusor::test {
namespace {

constexpr int kMaxRanks = 4;
constexpr size_t kSlotBytes = size_t{64} << 20;

enum class Op : int {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kExchange  // all sends and receives of a group
};

struct Terms {
  Op op;
  size_t bytes;  // that each rank sends
  int type;
  int root;
  // For kExchange: bytes sent to, and expected from, each rank.
  std::array<size_t, kMaxRanks> to{}, from{};
};

// Returns whether ranks `me` and `other` call the same collective.
bool Agree(const Terms& mine, int me, const Terms& theirs, int other) {
  if (mine.op != theirs.op) return false;
  if (mine.op == Op::kExchange) {
    return mine.to[other] == theirs.from[me] &&
           mine.from[other] == theirs.to[me];
  }
  return mine.bytes == theirs.bytes && mine.type == theirs.type &&
         mine.root == theirs.root;
}

// Memory that all ranks map.
struct Shared {
  std::atomic<int> present;
  std::array<std::atomic<int64_t>, kMaxRanks> posted;  // number of collectives
  std::array<std::array<Terms, kMaxRanks>, 2> terms;
  std::array<std::array<std::array<char, kSlotBytes>, kMaxRanks>, 2> data;
};

std::vector<std::string>& Faults() {
  static std::vector<std::string> faults;
  return faults;
}

bool IsInjected(const std::string& fault) {
  return std::find(Faults().begin(), Faults().end(), fault) != Faults().end();
}

bool IsInjected(const std::string& fault, int64_t number) {
  return IsInjected(fmt::format("{}:{}", fault, number));
}

std::set<void*>& Allocated() {
  static std::set<void*> memory;
  return memory;
}
std::set<void*>& Registered() {
  static std::set<void*> memory;
  return memory;
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
  int64_t asked = 0;        // number of collectives called
  int64_t collectives = 0;  // number of collectives started
  std::atomic<bool> aborted = false;
  std::atomic<int> calling = 0;  // threads in the call of a collective
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::set<void*> registered{};
  std::mutex mutex;                    // guards the members below
  std::function<void()> unfinished{};  // rest of the call in progress
  std::thread::id caller{};
};

namespace fusor::test {
namespace {

// Data sent to a rank or received from it.
struct Message {
  int rank;
  char* data;
  size_t bytes;
};

struct Job {
  ncclComm* comm;
  Terms terms;
  const char* from = nullptr;
  char* to = nullptr;
  std::vector<Message> sent{}, received{};  // of kExchange
};

// Copies all data that a rank sends, ordered by receiver.
void Pack(const Job& job, char* to) {
  if (job.terms.op != Op::kExchange) {
    std::memcpy(to, job.from, job.terms.bytes);
    return;
  }
  for (int r = 0; r < job.comm->ranks; ++r) {
    for (const Message& message : job.sent) {
      if (message.rank != r) continue;
      std::memcpy(to, message.data, message.bytes);
      to += message.bytes;
    }
  }
}

void Unpack(const Job& job, const std::array<Terms, kMaxRanks>& terms,
            const std::array<const char*, kMaxRanks>& parts) {
  for (int r = 0; r < job.comm->ranks; ++r) {
    const auto& to = terms[r].to;
    const char* from =
        std::accumulate(to.begin(), to.begin() + job.comm->rank, parts[r]);
    for (const Message& message : job.received) {
      if (message.rank != r) continue;
      std::memcpy(message.data, from, message.bytes);
      from += message.bytes;
    }
  }
}

void SumUp(const Job& job, const std::array<const char*, kMaxRanks>& parts,
           size_t offset, size_t bytes) {
  const ir::DType dtype = TypeOf(job.terms.type);
  const auto n = static_cast<int64_t>(bytes) / ir::DTypeSize(dtype);
  const ir::TensorType type{dtype, {n}, {}};
  const bool wide = dtype == ir::DType::kF64;
  ir::Tensor sum{type, std::vector<double>(static_cast<size_t>(n), 0)};
  for (int r = job.comm->ranks - 1; r >= 0; --r) {
    const ir::Tensor part = ir::LoadTensor(type, parts[r] + offset);
    for (size_t i = 0; i < sum.data.size(); ++i) {
      const double x = sum.data[i] + part.data[i];
      sum.data[i] = wide ? x : static_cast<float>(x);
    }
  }
  for (double& x : sum.data) x = ir::RoundTo(dtype, x);
  ir::StoreTensor(sum, job.to);
}

// Waits for all ranks. Returns false if the communicator was aborted or the
// ranks disagree.
bool Meet(const Job& job, int64_t number,
          std::array<const char*, kMaxRanks>& parts) {
  ncclComm& comm = *job.comm;
  Shared& shared = *comm.shared;
  const auto half = static_cast<size_t>(number % 2);
  shared.terms[half][comm.rank] = job.terms;
  Pack(job, shared.data[half][comm.rank].data());
  shared.posted[comm.rank] = number;
  for (int r = 0; r < comm.ranks; ++r) {
    while (shared.posted[r] < number) {
      if (comm.aborted) return false;
      Nap();
    }
    parts[r] = shared.data[half][r].data();
    if (Agree(job.terms, comm.rank, shared.terms[half][r], r)) continue;
    comm.error = ncclInvalidUsage;
    return false;
  }
  return true;
}

// A kernel that cannot continue waits until it is aborted.
void AwaitAbort(const ncclComm& comm) {
  while (!comm.aborted) Nap();
}

void Run(const Job& job) {
  ncclComm& comm = *job.comm;
  if (comm.aborted) return;
  const int64_t number = ++comm.collectives;
  if (IsInjected("error_at", number)) comm.error = ncclRemoteError;
  if (IsInjected("hang_at", number) || comm.error != ncclSuccess) {
    return AwaitAbort(comm);
  }
  std::array<const char*, kMaxRanks> parts{};
  if (!Meet(job, number, parts)) return AwaitAbort(comm);
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
      return;
    case Op::kExchange:
      Unpack(job, comm.shared->terms[static_cast<size_t>(number % 2)], parts);
  }
}

// Calls between ncclGroupStart and ncclGroupEnd, to be run by the latter.
thread_local bool grouping = false;
thread_local std::vector<std::function<void()>> group;
thread_local std::optional<Job> exchange;
thread_local CUstream exchange_stream = nullptr;

// Keeps jobs forever, since a graph runs them repeatedly.
void Enqueue(const Job& job, CUstream stream) {
  static std::deque<Job> jobs;
  jobs.push_back(job);
  const auto run = [](void* data) { Run(*static_cast<const Job*>(data)); };
  FusorFakeDriver()->LaunchHost(stream, run, &jobs.back());
}

// Completes every second call at once, the others when they are polled.
ncclResult_t Finish(ncclComm& comm, const std::function<void()>& launch) {
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

// Calls on a communicator that was aborted before or during the call.
std::atomic<int> dangling = 0;

bool Rejected(ncclComm& comm) {
  if (comm.aborted) ++dangling;
  ++comm.calling;
  for (int i = 0; i < 100 && IsInjected("slow_calls"); ++i) Nap();
  --comm.calling;
  return comm.aborted || IsInjected("reject_at", ++comm.asked);
}

ncclResult_t Launch(const Job& job, CUstream stream) {
  if (Rejected(*job.comm) || job.terms.bytes > kSlotBytes) {
    return ncclInvalidUsage;
  }
  const auto launch = [job, stream] { Enqueue(job, stream); };
  if (!grouping) return Finish(*job.comm, launch);
  group.emplace_back(launch);
  return ncclInProgress;
}

// Adds a message to the group. Outside of a group, ranks would wait for each
// other.
ncclResult_t AddMessage(ncclComm_t comm, CUstream stream, Message message,
                        bool sends) {
  if (!grouping || message.rank >= comm->ranks) return ncclInvalidUsage;
  if (!exchange) {
    exchange = Job{comm, {Op::kExchange, 0, ncclInt8, 0}};
    exchange_stream = stream;
  }
  if (exchange->comm != comm || exchange_stream != stream) {
    return ncclInvalidUsage;
  }
  Terms& terms = exchange->terms;
  (sends ? terms.to : terms.from)[message.rank] += message.bytes;
  if (sends) terms.bytes += message.bytes;
  (sends ? exchange->sent : exchange->received).push_back(message);
  return ncclInProgress;
}

size_t SizeOf(ncclDataType_t type) {
  return static_cast<size_t>(ir::DTypeSize(TypeOf(type)));
}

}  // namespace
}  // namespace fusor::test

using fusor::test::AddMessage;
using fusor::test::IsInjected;
using fusor::test::Launch;
using fusor::test::Op;
using fusor::test::Shared;
using fusor::test::SizeOf;

extern "C" {

void FusorInjectNcclFault(const char* fault) {
  fusor::test::Faults().emplace_back(fault);
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::string name =
      (std::filesystem::temp_directory_path() / "fake_nccl.XXXXXX").string();
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
  if (IsInjected("hang_init")) return ncclInProgress;
  if (IsInjected("error_init")) {
    made->error = ncclSystemError;
    return ncclInProgress;
  }
  // The last rank removes the file.
  if (++made->shared->present == ranks) unlink(id.internal);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->error;
  if (*error != ncclSuccess) return ncclSuccess;
  const std::lock_guard lock(comm->mutex);
  if (comm->shared->present < comm->ranks) *error = ncclInProgress;
  if (!comm->unfinished) return ncclSuccess;
  // Only the calling thread may use the driver's stream.
  *error = ncclInProgress;
  if (comm->caller != std::this_thread::get_id()) return ncclSuccess;
  std::exchange(comm->unfinished, nullptr)();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fusor::test::dangling += comm->calling;
  comm->aborted = true;
  for (void* memory : comm->registered) {
    fusor::test::Registered().erase(memory);
  }
  while (IsInjected("hang_abort")) fusor::test::Nap();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->registered.empty()) return ncclInvalidUsage;
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "some error";
}
// As in NCCL, the communicator may be null.
const char* ncclGetLastError(ncclComm_t) { return "the fake rejects"; }

// Only memory from ncclMemAlloc can be registered. It must be deregistered
// before it is freed.
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  CUdeviceptr made = 0;
  if (cuMemAlloc(&made, bytes) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  *memory = reinterpret_cast<void*>(made);
  fusor::test::Allocated().insert(*memory);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  if (fusor::test::Allocated().erase(memory) == 0 ||
      fusor::test::Registered().contains(memory)) {
    return ncclInvalidArgument;
  }
  return cuMemFree(reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS
             ? ncclSuccess
             : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t,
                              void** handle) {
  if (!fusor::test::Allocated().contains(memory)) return ncclInvalidArgument;
  comm->registered.insert(memory);
  fusor::test::Registered().insert(memory);
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  fusor::test::Registered().erase(handle);
  return comm->registered.erase(handle) == 1 ? ncclSuccess
                                             : ncclInvalidArgument;
}

int FusorNcclAllocated() {
  return static_cast<int>(fusor::test::Allocated().size());
}
int FusorNcclDangling() { return fusor::test::dangling; }
int FusorNcclRegistered() {
  return static_cast<int>(fusor::test::Registered().size());
}

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

ncclResult_t ncclSend(const void* from, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* data = static_cast<char*>(const_cast<void*>(from));
  return AddMessage(comm, stream, {peer, data, n * SizeOf(type)}, true);
}

ncclResult_t ncclRecv(void* to, size_t n, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return AddMessage(comm, stream,
                    {peer, static_cast<char*>(to), n * SizeOf(type)}, false);
}

ncclResult_t ncclGroupStart() {
  fusor::test::grouping = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  fusor::test::grouping = false;
  for (const auto& launch : std::exchange(fusor::test::group, {})) launch();
  const auto job = std::exchange(fusor::test::exchange, {});
  return job ? Launch(*job, fusor::test::exchange_stream) : ncclSuccess;
}

}  // extern "C"
