// The CUDA backend's communicator on a fake NCCL and a fake driver, with one
// process per rank. Needs no GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "runtime/cuda/nccl/nccl_communicator.h"
#include "tests/runtime/cuda/nccl/nccl_ranks.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using ir::DType;
using runtime::Collective;
using runtime::CollectiveKind;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns numbers whose sums are exact in every dtype.
std::vector<double> Whole(int rank, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) {
    numbers.push_back(static_cast<double>((i * 7 + rank * 3) % 17 - 8));
  }
  return numbers;
}

// Runs collectives on a rank's numbers and returns its device memory.
class Memory {
 public:
  Memory(Rank& rank, DType dtype, int64_t n)
      : rank_(rank),
        type_{dtype, {n}, {}},
        device_(rank.backend.OpenDevice(0, {})),
        stream_(device_->CreateStream()),
        memory_(device_->Allocate(std::max<int64_t>(type_.num_bytes(), 1))) {}

  std::vector<double> Run(Collective collective) {
    return Run(collective, Whole(rank_.communicator->rank(), type_.shape[0]));
  }
  std::vector<double> Run(Collective collective,
                          const std::vector<double>& numbers) {
    const std::vector<uint8_t> bytes = ir::TensorBytes({type_, numbers});
    stream_->CopyToDevice(memory_->data(), bytes.data(), bytes.size());
    collective.data = memory_->data();
    collective.elements = type_.shape[0];
    collective.dtype = type_.dtype;
    rank_.communicator->Run(collective, *stream_);
    std::vector<uint8_t> result(bytes.size());
    stream_->CopyToHost(result.data(), memory_->data(), result.size());
    stream_->Synchronize();
    return ir::LoadTensor(type_, result.data()).data;
  }

 private:
  Rank& rank_;
  const ir::TensorType type_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
  std::unique_ptr<runtime::Memory> memory_;
};

std::vector<double> Sum(int world_size, int64_t n) {
  std::vector<double> sum(static_cast<size_t>(n), 0);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<double> part = Whole(r, n);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

void CheckCollectives(Rank& rank, DType dtype, int64_t n) {
  const int world = rank.communicator->world_size();
  const int me = rank.communicator->rank();
  Memory memory(rank, dtype, n);
  const std::vector<double> sum = Sum(world, n);
  EXPECT_EQ(memory.Run({.kind = CollectiveKind::kAllReduce}), sum);
  const auto broadcast =
      memory.Run({.kind = CollectiveKind::kBroadcast, .root = world - 1});
  EXPECT_EQ(broadcast, Whole(world - 1, n));
  memory.Run({.kind = CollectiveKind::kBarrier});
  // Rank r owns the numbers in [r * most, (r + 1) * most).
  const int64_t most = (n + world - 1) / world;
  const auto scattered = memory.Run({.kind = CollectiveKind::kReduceScatter});
  const auto gathered = memory.Run({.kind = CollectiveKind::kAllGather});
  for (int64_t i = 0; i < n; ++i) {
    const auto owner = static_cast<int>(i / most);
    EXPECT_EQ(gathered[i], Whole(owner, n)[i]) << i;
    EXPECT_EQ(owner == me ? scattered[i] : sum[i], sum[i]) << i;
  }
}

// Reduce-scatters and all-gathers two tensors. The second is smaller than the
// sum of its shards.
void CheckTensors(Rank& rank, DType dtype) {
  const int world = rank.communicator->world_size();
  const auto device = rank.backend.OpenDevice(0, {});
  const auto stream = device->CreateStream();
  struct Tensor {
    int64_t n, part;
    std::unique_ptr<runtime::Memory> whole, own, all;
  };
  std::vector<Tensor> tensors;
  std::vector<Collective::Tensor> scatter, gather;
  int64_t elements = 0;
  for (const auto& [n, part] :
       {std::pair<int64_t, int64_t>{world * 250, 250}, {150, 64}}) {
    const ir::Tensor numbers{{dtype, {n}, {}},
                             Whole(rank.communicator->rank(), n)};
    const std::vector<uint8_t> bytes = ir::TensorBytes(numbers);
    const int64_t size = ir::DTypeSize(dtype);
    tensors.push_back({n, part, device->Allocate(bytes.size()),
                       device->Allocate(part * size),
                       device->Allocate(world * part * size)});
    const Tensor& t = tensors.back();
    stream->CopyToDevice(t.whole->data(), bytes.data(), bytes.size());
    // Old contents must be overwritten.
    stream->CopyToDevice(t.own->data(), bytes.data(), part * size);
    scatter.push_back({t.whole->data(), t.own->data(), n, part});
    gather.push_back({t.own->data(), t.all->data(), part, part});
    elements += world * part;
  }
  rank.communicator->Run({.kind = CollectiveKind::kReduceScatter,
                          .elements = elements,
                          .dtype = dtype,
                          .tensors = scatter.data(),
                          .num_tensors = 2},
                         *stream);
  rank.communicator->Run({.kind = CollectiveKind::kAllGather,
                          .elements = elements,
                          .dtype = dtype,
                          .tensors = gather.data(),
                          .num_tensors = 2},
                         *stream);
  for (const Tensor& t : tensors) {
    const ir::TensorType type{dtype, {world * t.part}, {}};
    std::vector<uint8_t> bytes(static_cast<size_t>(type.num_bytes()));
    stream->CopyToHost(bytes.data(), t.all->data(), bytes.size());
    stream->Synchronize();
    std::vector<double> sum = Sum(world, t.n);
    sum.resize(static_cast<size_t>(world * t.part), 0);
    EXPECT_EQ(ir::LoadTensor(type, bytes.data()).data, sum) << t.n;
  }
}

TEST(Nccl, ScattersAndGathersSeparateTensors) {
  for (const int world : {3, 4}) {
    OnRanks(world, [](Rank& rank) {
      rank.Connect();
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        CheckTensors(rank, dtype);
      }
    });
  }
}

TEST(Nccl, MovesAndSumsEveryTypeAtEverySize) {
  for (const int world : {1, 2, 3, 4}) {
    OnRanks(world, [](Rank& rank) {
      rank.Connect();
      EXPECT_THAT(rank.communicator->description(), HasSubstr("NCCL 2."));
      for (const DType dtype :
           {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
        for (const int64_t n : {0, 1, 3, 4, 12, 1001}) {
          CheckCollectives(rank, dtype, n);
        }
      }
      const auto times = rank.communicator->TakeTimes();
      EXPECT_GT(times.size(), 100);  // some may not be recorded yet
      for (const runtime::CollectiveTime& time : times) {
        EXPECT_LE(time.started, time.begun);
        EXPECT_LE(time.begun, time.ended);
      }
    });
  }
}

// --- Rank order --------------------------------------------------------------

const runtime::CommunicatorOptions kInOrder{.timeout = milliseconds(60'000),
                                            .deterministic = true};

// Returns numbers whose sum changes with the order, and if it is rounded more
// than once.
std::vector<double> Rough(int rank, DType dtype, int64_t n) {
  const ir::TensorType type{dtype, {n}, {}};
  std::vector<double> numbers =
      RandomTensor(type, 100 + static_cast<uint64_t>(rank)).data;
  for (int64_t i = 0; i < n; ++i) {
    numbers[i] = ir::RoundTo(dtype, std::ldexp(numbers[i], (i + rank) % 9));
  }
  return numbers;
}

// Adds in the order that runtime/backend/communicator.h specifies.
std::vector<double> SumInOrder(int world_size, DType dtype, int64_t n) {
  std::vector<double> sum(static_cast<size_t>(n), 0);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<double> part = Rough(r, dtype, n);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += part[i];
      if (dtype != DType::kF64) sum[i] = static_cast<float>(sum[i]);
    }
  }
  for (double& x : sum) x = ir::RoundTo(dtype, x);
  return sum;
}

void CheckSumsInOrder(Rank& rank, DType dtype, int64_t n) {
  const int world = rank.communicator->world_size();
  const int me = rank.communicator->rank();
  Memory memory(rank, dtype, n);
  const std::vector<double> own = Rough(me, dtype, n);
  const std::vector<double> sum = SumInOrder(world, dtype, n);
  EXPECT_EQ(memory.Run({}, own), sum) << n;
  const auto scattered =
      memory.Run({.kind = CollectiveKind::kReduceScatter}, own);
  const int64_t most = (n + world - 1) / world;
  for (int64_t i = me * most; i < std::min((me + 1) * most, n); ++i) {
    EXPECT_EQ(scattered[i], sum[i]) << i;
  }
}

TEST(NcclInOrder, SumsEveryTypeAtEverySize) {
  const std::vector<DType> every{DType::kF64, DType::kF32, DType::kF16,
                                 DType::kBF16};
  for (const int world : {1, 2, 3, 4}) {
    // Each size and dtype is another kernel to compile, which takes time.
    const bool all = world == 3;
    OnRanks(world, [&](Rank& rank) {
      rank.Connect(kInOrder);
      for (const DType dtype : all ? every : std::vector{DType::kF16}) {
        for (const int64_t n :
             all ? std::vector<int64_t>{2, 1001} : std::vector<int64_t>{1001}) {
          CheckSumsInOrder(rank, dtype, n);
        }
      }
      EXPECT_EQ(rank.backend.driver().problem(), "");
    });
  }
}

// Without `deterministic`, the fake adds from the last rank to the first.
TEST(NcclInOrder, IsNotTheLibrarysOrder) {
  OnRanks(3, [](Rank& rank) {
    rank.Connect();
    Memory memory(rank, DType::kF32, 1000);
    const int me = rank.communicator->rank();
    EXPECT_NE(memory.Run({}, Rough(me, DType::kF32, 1000)),
              SumInOrder(3, DType::kF32, 1000));
  });
}

TEST(NcclInOrder, ScattersAndGathersSeparateTensors) {
  for (const int world : {3, 4}) {
    OnRanks(world, [](Rank& rank) {
      rank.Connect(kInOrder);
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        CheckTensors(rank, dtype);
      }
    });
  }
}

// The first sum of a size allocates and compiles. Later ones do not, nor does a
// prepared one.
TEST(NcclInOrder, PreparesASizeOnce) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect(kInOrder);
    const auto device = rank.backend.OpenDevice(0, {});
    const auto stream = device->CreateStream();
    const auto memory = device->Allocate(4000);
    const auto run = [&](int64_t elements) {
      rank.backend.driver().TakeCalls();
      rank.communicator->Run({.data = memory->data(), .elements = elements},
                             *stream);
      return rank.backend.driver().TakeCalls();
    };
    EXPECT_THAT(run(100),
                AllOf(Contains("cuMemAlloc"), Contains("cuModuleLoadData")));
    EXPECT_THAT(run(100), Not(AnyOf(Contains("cuMemAlloc"),
                                    Contains("cuModuleLoadData"))));
    rank.communicator->Prepare({.elements = 1000});
    EXPECT_THAT(run(1000), Not(AnyOf(Contains("cuMemAlloc"),
                                     Contains("cuModuleLoadData"))));
    // A smaller size fits.
    EXPECT_THAT(run(10), Not(Contains("cuMemAlloc")));
    stream->Synchronize();
  });
}

TEST(Nccl, HasOneStreamOfHighPriority) {
  OnRanks(1, [](Rank& rank) {
    rank.backend.driver().TakeCalls();
    rank.Connect();
    const auto calls = rank.backend.driver().TakeCalls();
    EXPECT_EQ(
        std::count(calls.begin(), calls.end(), "cuStreamCreateWithPriority"),
        1);
  });
}

TEST(Nccl, RejectsWhatItCannotDo) {
  const int port = runtime::Socket::Listen("127.0.0.1", 0).port();
  runtime::TcpStore store({.host = "127.0.0.1", .port = port});
  EXPECT_THROW(cuda::ConnectNccl(store, {.interface = "eth0"}), Error);
}

}  // namespace
}  // namespace fusor::test
