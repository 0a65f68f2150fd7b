// The CUDA backend's communicator on a stand-in NCCL and a stand-in driver:
// each rank a process. No GPU takes part.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/tensor_bytes.h"
#include "ir/training_names.h"
#include "runtime/cuda/nccl_communicator.h"
#include "runtime/session.h"
#include "tests/runtime/cuda/stand_in_backend.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

using ir::DType;
using runtime::Collective;
using runtime::CollectiveKind;
using runtime::Communicator;
using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 4;

// One rank, in a process of its own.
struct Rank {
  StandInBackend backend;
  std::unique_ptr<runtime::TcpStore> store;
  std::unique_ptr<Communicator> communicator;
  void (*plant)(const char* fault) = nullptr;  // see stand_in_nccl.cc

  explicit Rank(const runtime::StoreOptions& options)
      : backend({.seed = static_cast<uint64_t>(options.rank) + 1}),
        store(std::make_unique<runtime::TcpStore>(options)) {}
  void Connect(milliseconds timeout = milliseconds(60'000)) {
    communicator = cuda::ConnectNccl(*store, {.timeout = timeout});
  }
};

int RunRank(const runtime::StoreOptions& options,
            const std::function<void(Rank&)>& run) {
  void* nccl = dlopen(FUSOR_STAND_IN_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  try {
    Rank rank(options);
    rank.plant = reinterpret_cast<void (*)(const char*)>(
        dlsym(nccl, "FusorPlantNcclFault"));
    run(rank);
  } catch (const std::exception& error) {
    fprintf(stderr, "rank %d: %s\n", options.rank, error.what());
    return 1;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// Fails the test when a rank throws or fails an expectation.
void OnRanks(int world_size, const std::function<void(Rank&)>& run) {
  const int port = runtime::Socket::Listen("127.0.0.1", 0).port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(RunRank({.host = "127.0.0.1",
                     .port = port,
                     .rank = rank,
                     .world_size = world_size},
                    run));
    }
    children.push_back(child);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_EQ(status, 0) << "rank " << rank;
  }
}

// Numbers whose sums are exact in every type.
std::vector<double> Whole(int rank, int64_t n) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < n; ++i) {
    numbers.push_back(static_cast<double>((i * 7 + rank * 3) % 17 - 8));
  }
  return numbers;
}

// What a rank's device memory is after a collective on its Whole numbers.
class Memory {
 public:
  Memory(Rank& rank, DType dtype, int64_t n)
      : rank_(rank),
        type_{dtype, {n}, {}},
        device_(rank.backend.OpenDevice(0, {})),
        stream_(device_->CreateStream()),
        memory_(device_->Allocate(std::max<int64_t>(type_.num_bytes(), 1))) {}

  std::vector<double> Run(Collective collective) {
    const ir::Tensor numbers{type_,
                             Whole(rank_.communicator->rank(), type_.shape[0])};
    const std::vector<uint8_t> bytes = ir::TensorBytes(numbers);
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

  runtime::Stream& stream() { return *stream_; }

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
  // Part r of n numbers: [r * most, (r + 1) * most).
  const int64_t most = (n + world - 1) / world;
  const auto scattered = memory.Run({.kind = CollectiveKind::kReduceScatter});
  const auto gathered = memory.Run({.kind = CollectiveKind::kAllGather});
  for (int64_t i = 0; i < n; ++i) {
    const auto owner = static_cast<int>(i / most);
    EXPECT_EQ(gathered[i], Whole(owner, n)[i]) << i;
    EXPECT_EQ(owner == me ? scattered[i] : sum[i], sum[i]) << i;
  }
}

// Sums of two tensors scattered, and gathered again: one of whole parts, one
// that has less than a part for the last ranks.
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
    // What is there before must not show through.
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

TEST(Nccl, ScattersAndGathersTensorsThatLieApart) {
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
      EXPECT_GT(times.size(), 100);
      for (const runtime::CollectiveTime& time : times) {
        EXPECT_LE(time.started, time.begun);
        EXPECT_LE(time.begun, time.ended);
      }
    });
  }
}

// --- Training ----------------------------------------------------------------

// Two steps; `seed` of the batches. All state but what each rank has of its
// own, running statistics.
std::map<std::string, std::vector<float>> Train(runtime::Backend& backend,
                                                Communicator& communicator,
                                                uint64_t seed) {
  runtime::Session session(backend, {}, &communicator);
  codegen::CompileOptions options;
  options.verify = true;
  options.passes.world_size = communicator.world_size();
  options.passes.buckets = passes::ParseBucketPolicy("buckets", "cap:0.1");
  const int program =
      session.AddProgram(NarrowVgg16Bn(models::Phase::kTrain, kBatch),
                         codegen::ProgramKind::kTrain, options);
  session.InitializeState(1);
  const auto set = [&](const std::string& name, const ir::Tensor& tensor) {
    const std::vector<uint8_t> bytes = ir::TensorBytes(tensor);
    session.SetInput(program, session.FindInput(program, name), bytes.data(),
                     bytes.size());
  };
  for (uint64_t step = 0; step < 2; ++step) {
    set("images", RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}},
                               seed + step, 0, 256));
    set("labels",
        RandomTensor({DType::kI32, {kBatch}, {}}, seed + step, 0, 10));
    set(ir::kLearningRate, MakeTensor({DType::kF32, {}, {}}, {0.01}));
    set("random_key", MakeTensor({DType::kI64, {}, {}}, {7}));
    set("step", MakeTensor({DType::kI32, {}, {}}, {1}));
    session.Step(program);
  }
  auto state = AllState(session);
  std::erase_if(state, [&](const auto& entry) {
    return session.StateRole(entry.first) == ir::InputRole::kStatistic;
  });
  return state;
}

uint64_t HashOf(const std::map<std::string, std::vector<float>>& state) {
  uint64_t hash = 0;
  for (const auto& [name, values] : state) {
    hash = HashCombine(hash, HashBytes(name));
    hash = HashCombine(hash,
                       HashBytes({reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float)}));
  }
  return hash;
}

// Ranks with one batch do what the test device's ranks do, which all have it.
TEST(Nccl, RanksTrainAsOnTheEmulatedGpu) {
  for (const int world : {2, 4}) {
    EmulatedBackend emulated({.compiler = StandInPlanner, .world_size = world});
    const auto communicator = emulated.Connect();
    const uint64_t expected = HashOf(Train(emulated, *communicator, 1));
    OnRanks(world, [expected](Rank& rank) {
      rank.Connect();
      EXPECT_EQ(HashOf(Train(rank.backend, *rank.communicator, 1)), expected);
    });
  }
}

TEST(Nccl, RanksWithTheirOwnBatchesStayTogether) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect();
    const auto seed = static_cast<uint64_t>(100 * rank.store->rank() + 1);
    const uint64_t hash = HashOf(Train(rank.backend, *rank.communicator, seed));
    const auto hashes =
        rank.store->Gather("hash", std::to_string(hash), milliseconds(60'000));
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

// --- Faults ------------------------------------------------------------------

std::string LossOf(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    return error.what();
  }
  return "nothing was thrown";
}

void PlantOn(const Rank& rank, int where, const char* fault) {
  if (rank.store->rank() == where) rank.plant(fault);
}

// Collectives until one is refused.
void RunUntilLost(Rank& rank) {
  Memory memory(rank, DType::kF32, 100);
  for (int i = 0; i < 1000; ++i) {
    memory.Run({});
    std::this_thread::sleep_for(milliseconds(2));
  }
}

TEST(NcclFaults, ARankThatNeverJoins) {
  OnRanks(2, [](Rank& rank) {
    PlantOn(rank, 1, "hang_init");
    EXPECT_THAT(LossOf([&] { rank.Connect(milliseconds(300)); }),
                HasSubstr("ncclCommInitRankConfig: not done after 300 ms"));
  });
}

TEST(NcclFaults, ACollectiveThatFails) {
  for (const char* fault : {"error_at:1", "error_at:2", "error_at:5"}) {
    OnRanks(2, [fault](Rank& rank) {
      PlantOn(rank, 1, fault);
      rank.Connect(milliseconds(500));
      // The other rank waits for it in vain.
      EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }),
                  HasSubstr(rank.store->rank() == 1 ? "remote process exited"
                                                    : "a peer is missing"));
    });
  }
}

TEST(NcclFaults, ACollectiveThatNeverEnds) {
  OnRanks(2, [](Rank& rank) {
    PlantOn(rank, 0, "hang_at:3");
    rank.Connect(milliseconds(300));
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }),
                HasSubstr("not done after 300 ms: a peer is missing"));
  });
}

TEST(NcclFaults, RanksThatDisagreeAboutTheSize) {
  OnRanks(2, [](Rank& rank) {
    rank.Connect(milliseconds(500));
    Memory memory(rank, DType::kF32, 100 + rank.store->rank());
    EXPECT_THAT(
        LossOf([&] {
          for (int i = 0; i < 1000; ++i) {
            memory.Run({});
            std::this_thread::sleep_for(milliseconds(2));
          }
        }),
        AnyOf(HasSubstr("invalid usage"), HasSubstr("a peer is missing")));
  });
}

// Who gives up is not kept by a library that does not come back.
TEST(NcclFaults, AnAbortThatHangs) {
  const auto begun = std::chrono::steady_clock::now();
  OnRanks(2, [](Rank& rank) {
    rank.plant("hang_abort");
    rank.Connect();
    rank.communicator->Abort("enough");
    EXPECT_THAT(LossOf([&] { RunUntilLost(rank); }), HasSubstr("enough"));
    rank.communicator.reset();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
}

TEST(Nccl, RefusesWhatItCannotDo) {
  const int port = runtime::Socket::Listen("127.0.0.1", 0).port();
  runtime::TcpStore store({.host = "127.0.0.1", .port = port});
  EXPECT_THROW(cuda::ConnectNccl(store, {.deterministic = true}), Error);
  EXPECT_THROW(cuda::ConnectNccl(store, {.interface = "eth0"}), Error);
}

}  // namespace
}  // namespace fusor::test
