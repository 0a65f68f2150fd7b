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

// What the streams, events, memory and communicators of an EmulatedBackend
// share: queues of work, the text of kernels, which memory there is. One
// thread.
class EmulatedMachine {
 public:
  using Work = std::function<void(int queue, const QueueClock& clock)>;

  explicit EmulatedMachine(uint64_t seed) : random_(seed) {}

  // --- Work ------------------------------------------------------------------

  int AddQueue();
  // The number of a queue that has nothing left to do may be given out again.
  void RemoveQueue(int queue);
  // May run some of what there is, and throw its errors, after which all work
  // is forgotten.
  void Add(int queue, Work work);
  HappeningPtr Record(int queue);
  // Null: of an event that was never recorded, which is no wait.
  void Wait(int queue, HappeningPtr happening);
  // Throw kInternal when work waits for what never happens. The second runs no
  // more than it draws.
  void RunAll();
  void RunUntil(const HappeningPtr& happening);

  // --- Plans -----------------------------------------------------------------

  void Expect(const codegen::Plan& plan);
  const std::shared_ptr<PlanWatch>& watch() const { return watch_; }

  // --- Kernels ---------------------------------------------------------------

  // All texts that are new are compiled when the first is launched. The
  // pointer stays.
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
  // Whether it lies within one piece.
  bool Owns(const char* begin, int64_t bytes) const;
  // From there to the end of its piece; 0 outside of all.
  int64_t BytesFrom(const char* begin) const;
  int64_t used_bytes() const { return used_bytes_; }

 private:
  // One of: work, the record of an event, the wait for one.
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
