#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_printer.h"
#include "codegen/kernel/kernel_ir.h"
#include "codegen/plan/plan.h"
#include "tests/fakes/emulated_gpu.h"
#include "tests/testing/plan_watch.h"

namespace fusor::test {

// One record of an event.
struct Happening {
  bool happened = false;
  QueueClock clock{};
};
using HappeningPtr = std::shared_ptr<Happening>;

// The state that the streams, events, memory and communicators of an
// EmulatedBackend share: queues of work, kernel texts and allocations. Not
// thread-safe.
class EmulatedMachine {
 public:
  using Work = std::function<void(int queue, const QueueClock& clock)>;

  explicit EmulatedMachine(uint64_t seed) : random_(seed) {}

  // --- Work ------------------------------------------------------------------

  int AddQueue();
  // AddQueue may reuse the number of an empty queue.
  void RemoveQueue(int queue);
  // May run some of the queued work and throw its errors, which drops all work.
  void Add(int queue, Work work);
  HappeningPtr Record(int queue);
  // Does nothing if `happening` is null: the event was never recorded.
  void Wait(int queue, HappeningPtr happening);
  // Throw kInternal if work waits for an event that never happens. RunUntil
  // runs no more work than it draws.
  void RunAll();
  void RunUntil(const HappeningPtr& happening);

  // --- Plans -----------------------------------------------------------------

  void Expect(const codegen::Plan& plan);
  const std::shared_ptr<PlanWatch>& watch() const { return watch_; }

  // --- Kernels ---------------------------------------------------------------

  // Returns a stable pointer. The first launch compiles all new texts.
  const std::string* AddText(const std::string& text) {
    return &*texts_.insert(text).first;
  }
  void CompileTexts() const;
  void Launch(const std::string& text, const codegen::Kernel& kernel,
              void* const* args);
  void Launch(const std::string& text,
              std::span<const codegen::CudaLaunch> launches,
              std::span<const EmulatedBuffer> buffers);
  int64_t num_launches() const { return num_launches_; }
  size_t num_texts() const { return texts_.size(); }

  // --- Memory ----------------------------------------------------------------

  void AddMemory(const char* begin, int64_t bytes);
  void RemoveMemory(const char* begin);
  // Returns whether the bytes are within one allocation.
  bool Owns(const char* begin, int64_t bytes) const;
  // Returns the number of bytes up to the end of the allocation, or 0 outside
  // of all allocations.
  int64_t BytesFrom(const char* begin) const;
  int64_t used_bytes() const { return used_bytes_; }

 private:
  // Work, the record of an event, or the wait for one.
  struct Item {
    Work work;
    HappeningPtr records;
    HappeningPtr waits;
  };
  struct Queue {
    std::deque<Item> items;
    QueueClock clock{};
  };

  bool RunOne();
  void Forget();
  void CheckNotStuck(bool stuck);
  std::mt19937_64 random_;
  std::vector<Queue> queues_;
  std::vector<int> removed_queues_;
  QueueClock issued_{};
  std::shared_ptr<PlanWatch> watch_;
  std::set<std::string> texts_;
  int64_t num_launches_ = 0;
  std::map<const char*, int64_t> memory_;
  int64_t used_bytes_ = 0;
};

}  // namespace fusor::test
