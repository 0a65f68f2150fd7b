#include "tests/fakes/emulated_gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <stdexcept>
#include <unordered_map>

#include "ir/support/error.h"
#include "tests/fakes/emulated_compile.h"
#include "tests/fakes/emulated_cuda.h"

namespace fusor::test {
namespace {

constexpr unsigned kWarp = 32;
constexpr size_t kBanks = 32;  // of shared memory, 4 bytes wide
constexpr size_t kMostConflicts = 4;
constexpr size_t kStackBytes = size_t{256} << 10;

using Entry = void (*)(void* const* args);

// The accesses to a byte since the launch began.
struct Trace {
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = -2;
  int write_block = kNobody;
  int write_thread = 0;
  int write_epoch = 0;
  int write_fences = 0;      // of the thread, before the write
  int read_block = kNobody;  // or kSeveral
  int read_thread = 0;       // a reader in read_epoch, or kSeveral
  int read_epoch = 0;
};

// A thread of a launch. The block's barriers increment its epoch.
struct Place {
  int block;
  int thread;
  int epoch;
};

// The access that another one races with.
enum class Race : uint8_t { kNone, kWithWrite, kWithRead };

// Records an access to a byte unless it races.
Race TouchByte(Trace& trace, const Place& at, bool write) {
  const bool after_write =
      trace.write_block != Trace::kNobody &&
      (trace.write_block != at.block ||
       (trace.write_epoch == at.epoch && trace.write_thread != at.thread));
  if (after_write) return Race::kWithWrite;
  if (write) {
    const bool after_read =
        trace.read_block != Trace::kNobody &&
        (trace.read_block != at.block ||
         (trace.read_epoch == at.epoch && trace.read_thread != at.thread));
    if (after_read) return Race::kWithRead;
    trace.write_block = at.block;
    trace.write_thread = at.thread;
    trace.write_epoch = at.epoch;
    return Race::kNone;
  }
  if (trace.read_block != Trace::kNobody && trace.read_block != at.block) {
    trace.read_block = Trace::kSeveral;
    return Race::kNone;
  }
  const bool joins =
      trace.read_block == at.block && trace.read_epoch == at.epoch;
  trace.read_thread =
      joins && trace.read_thread != at.thread ? Trace::kSeveral : at.thread;
  trace.read_block = at.block;
  trace.read_epoch = at.epoch;
  return Race::kNone;
}

// Memory that the kernel may access.
struct Range {
  std::string name;
  const char* begin;
  int64_t bytes;
  bool written;
  std::vector<bool> initialised;
  std::vector<Trace> traces;
};

// A suspended execution with a stack of its own.
class Context {
 public:
  // Lets the next switch to this context call `main`, which must not return.
  void Begin(void (*main)(), char* stack, size_t stack_bytes) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = stack_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, main, 0);
    suspended_ = false;
  }

  // Suspends the running execution as `from` and resumes `to`. swapcontext also
  // switches signal masks: two system calls, which take ten times as long as
  // the rest. Only swapcontext tells AddressSanitizer that the stack changes,
  // and __builtin_longjmp crashes here if Clang compiles it.
  [[gnu::noinline]] static void Switch(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
    swapcontext(&from.context_, &to.context_);
#else
    from.suspended_ = true;
    if (__builtin_setjmp(from.registers_.data()) == 0) to.Resume();
#endif
  }

 private:
  [[gnu::noinline]] void Resume() {
    if (suspended_) __builtin_longjmp(registers_.data(), 1);
    setcontext(&context_);
  }

  ucontext_t context_{};  // until the first switch to it
  bool suspended_ = false;
  std::array<void*, 5> registers_{};
};

// Returns memory for the stacks of `count` threads, which all launches share:
// mapping new memory takes longer than most launches.
char* Stacks(size_t count) {
  static size_t capacity = 0;
  static std::unique_ptr<char[]> memory;
  if (count > capacity) {
    memory.reset(new char[count * kStackBytes]);
    capacity = count;
  }
  return memory.get();
}

// An entry function of a module.
struct Function {
  Entry run = nullptr;
  bool waits = false;  // has a barrier or a shuffle
};

class Launcher {
 public:
  // If there are `shortcuts`, the kernel reports only accesses outside of them.
  Launcher(EmulatedDevice& device, std::vector<Range>& ranges,
           std::span<const EmulatedRange> shortcuts, uint64_t seed)
      : device_(device),
        ranges_(ranges),
        every_byte_(shortcuts.empty()),
        random_(seed) {
    current_ = this;
    device.ranges = shortcuts.data();
    device.num_ranges = static_cast<int>(shortcuts.size());
    device.shared_range = {};
    device.access = [](EmulatedDevice::Access access, const void* pointer,
                       size_t bytes) {
      current_->Access(access, static_cast<const char*>(pointer), bytes);
    };
    device.shared = [](const void* pointer, size_t bytes) {
      current_->DeclareShared(static_cast<const char*>(pointer), bytes);
    };
    device.barrier = [] { current_->Wait(State::kBarrier); };
    device.fence = [] { ++current_->fibers_[current_->thread_].fences; };
    device.fail = [](const char* what) { current_->Fail(what); };
    device.shuffle = [](uint32_t mask, uint64_t bits, unsigned from) {
      return current_->Shuffle(mask, bits, from);
    };
  }

  std::string Run(const Function& function, void* const* args,
                  const codegen::CudaLaunch& launch) {
    function_ = function;
    args_ = args;
    launch_ = launch;
    for (Range& range : ranges_) {
      if (every_byte_) range.traces.assign(range.bytes, Trace{});
    }
    fibers_ = std::vector<Fiber>(launch.threads);
    if (function.waits) {
      char* const stacks = Stacks(fibers_.size());
      for (size_t i = 0; i < fibers_.size(); ++i) {
        fibers_[i].context.Begin(&Launcher::Main, stacks + i * kStackBytes,
                                 kStackBytes);
      }
    }
    std::vector<int> blocks(launch.blocks);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int>(i);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (int block : blocks) {
      RunBlock(block);
      if (!problem_.empty()) break;
    }
    return problem_;
  }

 private:
  enum class State : uint8_t { kReady, kBarrier, kShuffle, kDone };

  struct Fiber {
    Context context;  // if the function waits
    State state = State::kReady;
    uint32_t mask = 0;  // of the shuffle
    uint64_t bits = 0;  // operand, then result of the shuffle
    unsigned from = 0;
    int shared_accesses = 0;  // since the last barrier
    int fences = 0;
    int fences_before_barrier = 0;  // the last one
  };
  // Per bank, the words that one access of a warp reads or writes.
  using Banks = std::array<std::vector<const char*>, kBanks>;

  // Ends a thread that has no stack.
  struct Failed {};

  // --- Threads ---------------------------------------------------------------

  // Runs a thread of one block after another.
  static void Main() {
    for (;;) {
      current_->function_.run(current_->args_);
      current_->Wait(State::kDone);
    }
  }

  void Enter(int thread) {
    thread_ = thread;
    device_.thread.x = static_cast<unsigned>(thread);
  }

  void RunBlock(int block) {
    block_ = block;
    epoch_ = 0;
    shared_begin_ = nullptr;
    shared_traces_.clear();
    banks_.clear();
    device_.block.x = static_cast<unsigned>(block);
    std::vector<int> order;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      fibers_[i].shared_accesses = 0;
      fibers_[i].fences = fibers_[i].fences_before_barrier = 0;
      fibers_[i].state = State::kReady;
      order.push_back(static_cast<int>(i));
    }
    std::shuffle(order.begin(), order.end(), random_);
    if (!function_.waits) return RunToEnd(order);
    do {
      for (int thread : order) {
        if (fibers_[thread].state != State::kReady) continue;
        Enter(thread);
        Context::Switch(scheduler_, fibers_[thread].context);
        if (!problem_.empty()) return;
      }
    } while (Resume());
  }

  // Runs one thread after another on the host's stack, since none waits.
  void RunToEnd(const std::vector<int>& order) {
    try {
      for (int thread : order) {
        Enter(thread);
        function_.run(args_);
      }
    } catch (const Failed&) {
      // problem_ has the reason.
    }
  }

  // Resumes the threads whose barrier or shuffle is complete. Returns false if
  // the block has ended or a thread can never resume.
  bool Resume() {
    if (AllAre(State::kDone)) return false;
    if (AllAre(State::kBarrier)) {
      ++epoch_;
      banks_.clear();
      for (Fiber& fiber : fibers_) {
        fiber.state = State::kReady;
        fiber.shared_accesses = 0;
        fiber.fences_before_barrier = fiber.fences;
      }
      return true;
    }
    bool resumed = false;
    for (size_t i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].state == State::kShuffle) resumed |= TryShuffle(i);
    }
    if (!resumed && problem_.empty()) {
      const auto waiting = std::count_if(
          fibers_.begin(), fibers_.end(),
          [](const Fiber& fiber) { return fiber.state != State::kDone; });
      problem_ = fmt::format(
          "{} block {}: {} of {} threads wait at a barrier or shuffle that the "
          "others do not reach",
          launch_.entry, block_, waiting, fibers_.size());
    }
    return problem_.empty();
  }

  bool AllAre(State state) const {
    return std::all_of(
        fibers_.begin(), fibers_.end(),
        [state](const Fiber& fiber) { return fiber.state == state; });
  }

  // Completes the shuffle of thread `i` if all threads of its mask have reached
  // it.
  bool TryShuffle(size_t i) {
    const size_t first = i / kWarp * kWarp;
    const uint32_t mask = fibers_[i].mask;
    std::array<uint64_t, kWarp> bits{};
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      if (first + lane >= fibers_.size()) return false;
      const Fiber& fiber = fibers_[first + lane];
      if (fiber.state != State::kShuffle || fiber.mask != mask) return false;
      bits[lane] = fiber.bits;
    }
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      Fiber& fiber = fibers_[first + lane];
      fiber.bits = bits[fiber.from];
      fiber.state = State::kReady;
    }
    return true;
  }

  void Wait(State state) {
    Fiber& fiber = fibers_[thread_];
    fiber.state = state;
    Context::Switch(fiber.context, scheduler_);
  }

  uint64_t Shuffle(uint32_t mask, uint64_t bits, unsigned from) {
    Fiber& fiber = fibers_[thread_];
    if ((mask >> (static_cast<unsigned>(thread_) % kWarp) & 1) == 0) {
      Fail("shuffles without being in the mask");
    }
    if ((mask >> from & 1) == 0) Fail("shuffles from outside the mask");
    fiber.mask = mask;
    fiber.bits = bits;
    fiber.from = from;
    Wait(State::kShuffle);
    return fiber.bits;
  }

  // --- Memory ----------------------------------------------------------------

  // Ends the thread with an error.
  void Fail(const std::string& what) {
    problem_ = fmt::format("{} block {} thread {}: {}", launch_.entry, block_,
                           thread_, what);
    if (!function_.waits) throw Failed{};
    Context::Switch(fibers_[thread_].context, scheduler_);
  }

  void DeclareShared(const char* pointer, size_t bytes) {
    if (shared_begin_ == pointer) return;
    const auto needed = static_cast<int64_t>(bytes);
    if (needed >
        std::max(codegen::BlockMemory::kStaticBytes, launch_.dynamic_bytes)) {
      Fail(fmt::format("has {} bytes of shared memory, launched with {}",
                       needed, launch_.dynamic_bytes));
    }
    shared_begin_ = pointer;
    shared_bytes_ = needed;
    device_.shared_range = {pointer, pointer + bytes, true};
    if (every_byte_) shared_traces_.assign(bytes, Trace{});
  }

  void Access(EmulatedDevice::Access access, const char* pointer,
              size_t bytes) {
    const bool write = access == EmulatedDevice::kWrite ||
                       access == EmulatedDevice::kSharedWrite;
    const char* verb = write ? "writes" : "reads";
    if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
      return Fail(fmt::format(
          "{} {} bytes at an address that they do not divide", verb, bytes));
    }
    // Local buffers are accessed like global ones.
    const bool shared = shared_begin_ != nullptr && pointer >= shared_begin_ &&
                        pointer < shared_begin_ + shared_bytes_;
    if (shared || access >= EmulatedDevice::kSharedRead) {
      const int64_t offset = pointer - shared_begin_;
      CheckWithin("shared memory", offset, bytes, shared_bytes_, write);
      if (!every_byte_) return;
      if (bytes == sizeof(float)) CheckBanks(pointer, verb);
      if (access == EmulatedDevice::kFactorRead) CheckFence(offset);
      return AccessTraces("shared memory", shared_traces_, offset, bytes,
                          write);
    }
    for (Range& range : ranges_) {
      const int64_t offset = pointer - range.begin;
      if (offset < 0 || offset >= range.bytes) continue;
      if (write && !range.written) {
        return Fail(fmt::format("writes {}, which is an operand", range.name));
      }
      CheckWithin(range.name, offset, bytes, range.bytes, write);
      if (!every_byte_) continue;
      AccessTraces(range.name, range.traces, offset, bytes, write);
      for (size_t i = 0; i < bytes; ++i) {
        if (!write && !range.initialised[offset + i]) {
          return Fail(
              fmt::format("reads byte {} of {}, which nobody has written",
                          offset + i, range.name));
        }
        range.initialised[offset + i] = true;
      }
      return;
    }
    Fail(fmt::format("{} {} bytes outside all buffers", verb, bytes));
  }

  // Checks that a fence and a barrier follow the last write of a byte.
  void CheckFence(int64_t offset) {
    const Trace& trace = shared_traces_[offset];
    if (trace.write_block == Trace::kNobody) return;
    const Fiber& writer = fibers_[trace.write_thread];
    const int fences = trace.write_thread == thread_
                           ? writer.fences
                           : writer.fences_before_barrier;
    if (fences > trace.write_fences) return;
    Fail(
        fmt::format("reads byte {} of shared memory without a fence after "
                    "thread {}, which writes it",
                    offset, trace.write_thread));
  }

  // Compares the n-th accesses of a warp's threads. Between two barriers, each
  // thread makes the same number of accesses or none.
  void CheckBanks(const char* pointer, const char* verb) {
    const auto offset = static_cast<size_t>(pointer - shared_begin_);
    const std::pair access(static_cast<size_t>(thread_) / kWarp,
                           fibers_[thread_].shared_accesses++);
    auto& words = banks_[access][offset / sizeof(float) % kBanks];
    if (std::find(words.begin(), words.end(), pointer) != words.end()) return;
    words.push_back(pointer);
    if (words.size() < kMostConflicts) return;
    Fail(fmt::format("{} shared memory with a bank conflict of {} ways", verb,
                     words.size()));
  }

  void CheckWithin(const std::string& name, int64_t offset, size_t bytes,
                   int64_t size, bool write) {
    if (offset >= 0 && offset + static_cast<int64_t>(bytes) <= size) return;
    Fail(fmt::format("{} {} bytes at byte {} of {}, which has {}",
                     write ? "writes" : "reads", bytes, offset, name, size));
  }

  void AccessTraces(const std::string& name, std::vector<Trace>& traces,
                    int64_t offset, size_t bytes, bool write) {
    const char* verb = write ? "writes" : "reads";
    for (size_t i = 0; i < bytes; ++i) {
      const Trace& trace = traces[offset + i];
      const Race race =
          TouchByte(traces[offset + i], {block_, thread_, epoch_}, write);
      if (write) traces[offset + i].write_fences = fibers_[thread_].fences;
      if (race == Race::kNone) continue;
      return Fail(fmt::format(
          "{} byte {} of {} and races with {}", verb, offset + i, name,
          race == Race::kWithRead
              ? "another thread, which reads it"
              : fmt::format("thread {} of block {}, which writes it",
                            trace.write_thread, trace.write_block)));
    }
  }

  static Launcher* current_;

  EmulatedDevice& device_;
  std::vector<Range>& ranges_;
  const bool every_byte_;
  std::mt19937_64 random_;
  Function function_;
  void* const* args_ = nullptr;
  codegen::CudaLaunch launch_;
  std::vector<Fiber> fibers_;
  Context scheduler_;
  int block_ = 0;
  int thread_ = 0;
  int epoch_ = 0;
  const char* shared_begin_ = nullptr;
  int64_t shared_bytes_ = 0;
  std::vector<Trace> shared_traces_;
  // By warp and index of the access since the last barrier.
  std::map<std::pair<size_t, int>, Banks> banks_;
  std::string problem_;
};

Launcher* Launcher::current_ = nullptr;

// Returns one translation unit for all texts. Entries are prefixed by the index
// of their text.
std::string ModuleSource(std::span<const std::string> texts) {
  std::string out = "#define FUSOR_EMULATED\n";
  out += "#include \"tests/fakes/emulated_cuda.h\"\n";
  out += "FUSOR_EMULATED_MODULE\n";
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<std::string> entries;
    for (size_t p = 0;; ++p) {
      const std::string entry = fmt::format("fusor_p{}", p);
      if (texts[i].find(" " + entry + "(") == std::string::npos) break;
      entries.push_back(entry);
      out += fmt::format("#define {} k{}_{}\n", entry, i, entry);
    }
    out += texts[i];
    for (const std::string& entry : entries) {
      out += fmt::format("#undef {}\nFUSOR_EMULATED_ENTRY(k{}_{})\n", entry, i,
                         entry);
    }
  }
  return out;
}

// Merges buffers that share memory.
std::vector<Range> MergedRanges(std::span<const EmulatedBuffer> buffers) {
  std::map<const char*, Range> ranges;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const EmulatedBuffer& buffer = buffers[b];
    const auto* begin = static_cast<const char*>(buffer.data);
    const auto [it, added] = ranges.try_emplace(
        begin, Range{fmt::format("b{}", b),
                     begin,
                     buffer.bytes,
                     buffer.written,
                     std::vector<bool>(buffer.bytes, buffer.initialised),
                     {}});
    if (added) continue;
    it->second.written |= buffer.written;
    if (buffer.initialised) {
      it->second.initialised.assign(it->second.bytes, true);
    }
  }
  std::vector<Range> out;
  for (auto& [begin, range] : ranges) out.push_back(std::move(range));
  return out;
}

std::vector<Range> BoundsOf(std::span<const EmulatedBuffer> buffers) {
  std::vector<Range> ranges;
  for (const EmulatedBuffer& buffer : buffers) {
    ranges.push_back({fmt::format("b{}", ranges.size()),
                      static_cast<const char*>(buffer.data),
                      buffer.bytes,
                      buffer.written,
                      {},
                      {}});
  }
  return ranges;
}

// Returns whether the entry's text contains a barrier or a shuffle.
bool Waits(const std::string& text, const std::string& entry) {
  const size_t begin = text.find(" " + entry + "(");
  const size_t end = text.find("extern \"C\"", begin);
  const std::string_view body =
      std::string_view(text).substr(begin, end - begin);
  for (const char* word : {"__syncthreads", "__shfl", "Reduce"}) {
    if (body.find(word) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

struct EmulatedModule::Library {
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }
  template <typename Symbol>
  Symbol Find(const std::string& name) const {
    void* symbol = dlsym(handle, name.c_str());
    FUSOR_ASSERT(symbol != nullptr, "emulated kernels have no {}", name);
    return reinterpret_cast<Symbol>(symbol);
  }
  Function FindEntry(size_t text, const std::string& entry) const {
    return {Find<Entry>(fmt::format("k{}_{}_run", text, entry)),
            Waits(texts[text], entry)};
  }

  std::vector<std::string> texts;
  void* handle = nullptr;
  void (*set_device)(EmulatedDevice* device) = nullptr;
  mutable EmulatedDevice device;
};

EmulatedModule::EmulatedModule(std::span<const std::string> texts)
    : library_(std::make_unique<Library>()) {
  library_->texts.assign(texts.begin(), texts.end());
  library_->handle = LoadCompiled(ModuleSource(texts));
  library_->set_device =
      library_->Find<void (*)(EmulatedDevice*)>("FusorSetDevice");
}

EmulatedModule::~EmulatedModule() = default;

std::string EmulatedModule::Run(size_t index,
                                std::span<const codegen::CudaLaunch> launches,
                                std::span<const EmulatedBuffer> buffers,
                                uint64_t seed, EmulatedChecks checks) const {
  const bool every_byte = checks == EmulatedChecks::kEveryByte;
  std::vector<Range> ranges =
      every_byte ? MergedRanges(buffers) : BoundsOf(buffers);
  std::vector<void*> args;
  std::vector<EmulatedRange> shortcuts;
  for (const EmulatedBuffer& buffer : buffers) {
    args.push_back(buffer.data);
    if (every_byte) continue;
    const auto* begin = static_cast<const char*>(buffer.data);
    shortcuts.push_back({begin, begin + buffer.bytes, buffer.written});
  }
  // The pointer to the device is shared by modules.
  library_->set_device(&library_->device);
  for (const codegen::CudaLaunch& launch : launches) {
    const Function function = library_->FindEntry(index, launch.entry);
    const std::string problem =
        Launcher(library_->device, ranges, shortcuts, seed)
            .Run(function, args.data(), launch);
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string RunEmulated(const codegen::Kernel& kernel,
                        std::span<const EmulatedBuffer> buffers) {
  const std::string text = PrintCuda(kernel);
  return EmulatedModule(std::span(&text, 1))
      .Run(0, CudaLaunches(kernel), buffers);
}

}  // namespace fusor::test
