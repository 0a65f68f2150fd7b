#include "runtime/cuda/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "runtime/cuda/context.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_executable.h"
#include "runtime/cuda/nccl/nccl_connection.h"
#include "runtime/cuda/nccl/nccl_transfers.h"

namespace fusor::cuda {
namespace {

using runtime::Collective;
using runtime::CollectiveTime;
using runtime::Executable;
using runtime::Stream;
using Clock = std::chrono::steady_clock;

constexpr int64_t kKept = 4096;  // latest collectives with events and times

double Now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

class DriverStream {
 public:
  DriverStream(const Context& context, bool urgent) : context_(context) {
    const Driver& driver = context.Enter();
    int least = 0;
    int greatest = 0;
    driver.Check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                 "cuCtxGetStreamPriorityRange");
    driver.Check(
        driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING,
                                          urgent ? greatest : least),
        "cuStreamCreateWithPriority");
  }
  // Leaks an abandoned stream, whose work may never end.
  ~DriverStream() {
    if (abandoned_) return;
    const Driver& driver = context_.EnterNoThrow();
    Driver::Ignore(driver.cuStreamSynchronize(stream_));
    Driver::Ignore(driver.cuStreamDestroy(stream_));
  }
  DriverStream(const DriverStream&) = delete;
  DriverStream& operator=(const DriverStream&) = delete;

  CUstream get() const { return stream_; }
  void Abandon() { abandoned_ = true; }

 private:
  const Context& context_;
  CUstream stream_ = nullptr;
  bool abandoned_ = false;
};

// Collectives run on one stream. A second stream, which waits for the first,
// runs host functions that record when each begins and ends. Nothing waits for
// them, and their records can be read without driver calls.
class NcclCommunicator : public runtime::Communicator {
 public:
  NcclCommunicator(runtime::TcpStore& store,
                   const runtime::CommunicatorOptions& options,
                   std::unique_ptr<codegen::TargetCompiler> compiler)
      : context_(DeviceOfRank()),
        connection_(context_, store, options),
        stream_(context_, true),
        notes_(context_, false),
        before_(context_, false),
        transfers_(std::make_unique<NcclTransfers>(connection_, context_,
                                                   std::move(compiler))) {
    for (auto& event : ends_) {
      event = std::make_unique<DriverEvent>(context_, false);
    }
  }

  ~NcclCommunicator() override {
    const Driver& driver = context_.EnterNoThrow();
    // The end of the last collective may not have been recorded yet.
    if (noted_apart_ && !connection_.failed() &&
        driver.cuEventQuery(EndOf(connection_.num_started() - 1)) ==
            CUDA_SUCCESS) {
      Driver::Ignore(driver.cuStreamSynchronize(notes_.get()));
    }
    if (connection_.End()) return;
    stream_.Abandon();
    notes_.Abandon();
    static_cast<void>(transfers_.release());
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return connection_.rank(); }
  int world_size() const override { return connection_.world_size(); }
  std::string description() const override {
    int version = 0;
    connection_.nccl().ncclGetVersion(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100,
                       version % 100);
  }

  std::unique_ptr<runtime::Memory> Allocate(runtime::Device&,
                                            size_t bytes) override {
    connection_.ThrowFailure();
    return AllocateRegistered(connection_, context_, bytes);
  }

  void Prepare(const Collective& collective) override {
    connection_.ThrowFailure();
    transfers_->Prepare(collective);
  }

  int64_t Start(const Collective& collective, Stream& stream) override {
    const auto hold = connection_.Hold();
    const Driver& driver = context_.Enter();
    const int64_t bytes = collective.elements * ir::DTypeSize(collective.dtype);
    const int64_t number =
        capturing_ ? ExpectCaptured(bytes) : Expect(std::span(&bytes, 1));
    if (!capturing_) noted_apart_ = true;
    Order(stream_.get(), DriverStreamOf(stream));
    Order(notes_.get(), stream_.get());
    driver.Check(driver.cuLaunchHostFunc(notes_.get(), &OnBegin, this),
                 "cuLaunchHostFunc");
    try {
      transfers_->Enqueue(collective, stream_.get());
    } catch (const Error& error) {
      // A capture that the device rejects has started nothing on any rank.
      if (!capturing_ || error.code() == ErrorCode::kPeerLost) {
        connection_.Fail(error.what());
      }
      throw;
    }
    driver.Check(driver.cuEventRecord(EndOf(number), stream_.get()),
                 "cuEventRecord");
    driver.Check(driver.cuStreamWaitEvent(notes_.get(), EndOf(number), 0),
                 "cuStreamWaitEvent");
    driver.Check(driver.cuLaunchHostFunc(notes_.get(), &OnEnd, this),
                 "cuLaunchHostFunc");
    return number;
  }

  void Wait(int64_t number, Stream& stream) override {
    connection_.ThrowFailure();
    const int64_t started = capturing_
                                ? static_cast<int64_t>(captured_bytes_.size())
                                : connection_.num_started();
    FUSOR_ASSERT(number < started && number >= started - kKept,
                 "collective {} of {}", number, started);
    const Driver& driver = context_.Enter();
    driver.Check(
        driver.cuStreamWaitEvent(DriverStreamOf(stream), EndOf(number), 0),
        "cuStreamWaitEvent");
  }

  std::unique_ptr<Executable> Capture(
      Stream& stream, const std::function<void()>& work) override {
    connection_.ThrowFailure();
    std::unique_ptr<Executable> graph;
    try {
      graph = stream.Capture([&] {
        captured_bytes_.clear();
        capturing_ = true;
        work();
        // All streams of a capture must join its first stream.
        if (!captured_bytes_.empty()) {
          Order(DriverStreamOf(stream), notes_.get());
        }
        capturing_ = false;
      });
    } catch (...) {
      capturing_ = false;
      throw;
    }
    capturing_ = false;
    // NCCL requires that a collective is in a graph on all ranks, or on none.
    if (!AllRanksHave(graph != nullptr, stream)) return nullptr;
    return std::make_unique<Graph>(*this, std::move(graph), captured_bytes_);
  }

  void Check() override { connection_.ThrowFailure(); }

  void Abort(const std::string& why) noexcept override {
    connection_.Fail(why);
  }

  std::vector<CollectiveTime> TakeTimes() override {
    const int64_t ended = connection_.num_ended();
    taken_ = std::max(taken_, ended - kKept);
    std::vector<CollectiveTime> times;
    for (; taken_ < ended; ++taken_) times.push_back(times_[taken_ % kKept]);
    return times;
  }

 private:
  // A graph with collectives, whose ends are counted as those outside a graph.
  class Graph : public CudaExecutable {
   public:
    Graph(NcclCommunicator& communicator, std::unique_ptr<Executable> graph,
          std::vector<int64_t> bytes)
        : CudaExecutable("step", 0),
          communicator_(communicator),
          graph_(std::move(graph)),
          bytes_(std::move(bytes)) {}
    void Enqueue(const Driver& driver, CUstream stream,
                 void* const* args) const override {
      const auto hold = communicator_.connection_.Hold();
      communicator_.ExpectGraph(bytes_, stream);
      static_cast<const CudaExecutable&>(*graph_).Enqueue(driver, stream, args);
    }

   private:
    NcclCommunicator& communicator_;
    const std::unique_ptr<Executable> graph_;
    const std::vector<int64_t> bytes_;  // of each collective
  };

  // Run in the order of collectives, on a driver thread.
  static void OnBegin(void* self) {
    auto* c = static_cast<NcclCommunicator*>(self);
    c->times_[c->num_begun_++ % kKept].begun = Now();
  }
  static void OnEnd(void* self) {
    auto* c = static_cast<NcclCommunicator*>(self);
    c->times_[c->connection_.num_ended() % kKept].ended = Now();
    c->connection_.Ended();
  }

  CUevent EndOf(int64_t number) const {
    return capturing_ ? captured_ends_[number]->get()
                      : ends_[number % kKept]->get();
  }

  // Makes work enqueued on `later` from now on wait for the work on `sooner`.
  void Order(CUstream later, CUstream sooner) {
    const Driver& driver = context_.Enter();
    driver.Check(driver.cuEventRecord(before_.get(), sooner), "cuEventRecord");
    driver.Check(driver.cuStreamWaitEvent(later, before_.get(), 0),
                 "cuStreamWaitEvent");
  }

  // Returns whether `has` is true on all ranks. Waits for all of them.
  bool AllRanksHave(bool has, Stream& stream) {
    const auto ranks = static_cast<size_t>(world_size());
    if (ranks == 1) return has;
    const Driver& driver = context_.Enter();
    const CUstream on = DriverStreamOf(stream);
    const CUdeviceptr votes = transfers_->votes();
    driver.Check(driver.cuMemsetD8Async(
                     votes + static_cast<CUdeviceptr>(rank()), has, 1, on),
                 "cuMemsetD8Async");
    Run({.kind = runtime::CollectiveKind::kAllGather,
         .data = reinterpret_cast<void*>(votes),
         .elements = world_size(),
         .dtype = ir::DType::kU8},
        stream);
    std::vector<char> all(ranks);
    driver.Check(driver.cuMemcpyDtoHAsync(all.data(), votes, ranks, on),
                 "cuMemcpyDtoHAsync");
    stream.Synchronize();
    connection_.ThrowFailure();
    return std::find(all.begin(), all.end(), '\0') == all.end();
  }

  // Registers a collective that is captured next and returns its number.
  int64_t ExpectCaptured(int64_t bytes) {
    const size_t number = captured_bytes_.size();
    FUSOR_CHECK(number < kKept, kDevice, "more than {} collectives in a graph",
                kKept);
    captured_bytes_.push_back(bytes);
    if (captured_ends_.size() == number) {
      captured_ends_.push_back(std::make_unique<DriverEvent>(context_, false));
    }
    return static_cast<int64_t>(number);
  }

  // Registers collectives of these sizes that are enqueued next, and returns
  // the number of the first. Waits while more than kKept would be pending.
  int64_t Expect(std::span<const int64_t> bytes) {
    const auto count = static_cast<int64_t>(bytes.size());
    while (connection_.num_started() + count - connection_.num_ended() >
           kKept) {
      connection_.ThrowFailure();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int64_t first = connection_.num_started();
    for (int64_t i = 0; i < count; ++i) {
      times_[(first + i) % kKept] = {.started = Now(), .bytes = bytes[i]};
    }
    connection_.Started(count);
    return first;
  }

  void ExpectGraph(std::span<const int64_t> bytes, CUstream stream) {
    Expect(bytes);
    // Earlier collectives are recorded before the graph's.
    if (std::exchange(noted_apart_, false)) Order(stream, notes_.get());
  }

  const Context context_;
  NcclConnection connection_;
  DriverStream stream_;
  DriverStream notes_;
  DriverEvent before_;
  std::unique_ptr<NcclTransfers> transfers_;
  std::array<std::unique_ptr<DriverEvent>, kKept> ends_;
  std::array<CollectiveTime, kKept> times_;
  int64_t num_begun_ = 0;
  int64_t taken_ = 0;  // collectives whose times were taken or dropped
  bool capturing_ = false;
  // Per collective of the last capture:
  std::vector<int64_t> captured_bytes_;
  std::vector<std::unique_ptr<DriverEvent>> captured_ends_;
  bool noted_apart_ = false;  // collectives ran outside since the last graph
};

}  // namespace

std::unique_ptr<runtime::Communicator> ConnectNccl(
    runtime::TcpStore& store, const runtime::CommunicatorOptions& options,
    std::unique_ptr<codegen::TargetCompiler> compiler) {
  FUSOR_ASSERT(!options.deterministic || compiler != nullptr,
               "no compiler for sums in the order of ranks");
  FUSOR_CHECK(options.interface.empty(), kUsage,
              "NCCL: network interface {}: set NCCL_SOCKET_IFNAME instead",
              options.interface);
  if (!options.deterministic) compiler = nullptr;
  return std::make_unique<NcclCommunicator>(store, options,
                                            std::move(compiler));
}

}  // namespace fusor::cuda
