#include "tests/fakes/emulated_machine.h"

#include <algorithm>
#include <unordered_map>

#include "ir/support/error.h"

namespace fusor::test {
namespace {

// A compiled text.
struct EmulatedText {
  std::shared_ptr<EmulatedModule> module;
  size_t index;  // in the module
};

// Caches the texts of all machines of the process, since compiling is slow.
std::unordered_map<std::string, EmulatedText>& CompiledTexts() {
  static std::unordered_map<std::string, EmulatedText> texts;
  return texts;
}

}  // namespace

int EmulatedMachine::AddQueue() {
  if (!removed_queues_.empty()) {
    const int queue = removed_queues_.back();
    removed_queues_.pop_back();
    return queue;
  }
  FUSOR_ASSERT(queues_.size() < kMaxQueues, "an emulated GPU has {} queues",
               kMaxQueues);
  queues_.emplace_back();
  return static_cast<int>(queues_.size()) - 1;
}

void EmulatedMachine::RemoveQueue(int queue) {
  if (queues_[queue].items.empty()) removed_queues_.push_back(queue);
}

void EmulatedMachine::Add(int queue, Work work) {
  ++issued_[queue];
  queues_[queue].items.push_back({std::move(work), nullptr, nullptr});
  // Sometimes the device runs work before the host waits for it.
  while (random_() % 3 == 0 && RunOne()) {
  }
}

HappeningPtr EmulatedMachine::Record(int queue) {
  auto happening = std::make_shared<Happening>();
  queues_[queue].items.push_back({nullptr, happening, nullptr});
  return happening;
}

void EmulatedMachine::Wait(int queue, HappeningPtr happening) {
  if (happening == nullptr) return;
  queues_[queue].items.push_back({nullptr, nullptr, std::move(happening)});
}

void EmulatedMachine::RunAll() {
  while (RunOne()) {
  }
  CheckNotStuck(
      std::any_of(queues_.begin(), queues_.end(),
                  [](const Queue& queue) { return !queue.items.empty(); }));
  if (watch_ != nullptr && watch_->ended()) {
    const auto watch = std::move(watch_);
    watch->CheckEnd();
  }
}

void EmulatedMachine::RunUntil(const HappeningPtr& happening) {
  while (!happening->happened && RunOne()) {
  }
  CheckNotStuck(!happening->happened);
}

void EmulatedMachine::CheckNotStuck(bool stuck) {
  if (stuck) Forget();
  FUSOR_ASSERT(!stuck, "a queue waits for what never happens");
}

// Runs one item of a random queue that is ready. Returns false if none is.
bool EmulatedMachine::RunOne() {
  std::vector<size_t> ready;
  for (size_t q = 0; q < queues_.size(); ++q) {
    if (queues_[q].items.empty()) continue;
    const HappeningPtr& waits = queues_[q].items.front().waits;
    if (waits == nullptr || waits->happened) ready.push_back(q);
  }
  if (ready.empty()) return false;
  const size_t q = ready[random_() % ready.size()];
  Queue& queue = queues_[q];
  const Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (item.records != nullptr) *item.records = {true, queue.clock};
  if (item.waits != nullptr) {
    for (size_t i = 0; i < kMaxQueues; ++i) {
      queue.clock[i] = std::max(queue.clock[i], item.waits->clock[i]);
    }
  }
  if (!item.work) return true;
  ++queue.clock[q];
  try {
    item.work(static_cast<int>(q), queue.clock);
  } catch (...) {
    Forget();
    throw;
  }
  return true;
}

// Drops all work. Nothing runs after an error.
void EmulatedMachine::Forget() {
  for (Queue& queue : queues_) queue.items.clear();
  watch_.reset();
}

void EmulatedMachine::Expect(const codegen::Plan& plan) {
  RunAll();
  watch_ = std::make_shared<PlanWatch>(
      plan,
      [this](const char* begin, int64_t bytes) { return Owns(begin, bytes); },
      issued_);
}

void EmulatedMachine::Launch(const std::string& text,
                             const codegen::Kernel& kernel, void* const* args) {
  std::vector<EmulatedBuffer> buffers;
  for (size_t b = 0; b < kernel.buffers.size(); ++b) {
    const codegen::KernelBuffer& buffer = kernel.buffers[b];
    buffers.push_back({args[b], buffer.num_bytes(), buffer.written, true});
  }
  Launch(text, CudaLaunches(kernel), buffers);
}

void EmulatedMachine::Launch(const std::string& text,
                             std::span<const codegen::CudaLaunch> launches,
                             std::span<const EmulatedBuffer> buffers) {
  if (!CompiledTexts().contains(text)) CompileTexts();
  const EmulatedText& compiled = CompiledTexts().at(text);
  const std::string problem = compiled.module->Run(
      compiled.index, launches, buffers, random_(), EmulatedChecks::kBounds);
  // "fusor kernel" and its hash.
  FUSOR_ASSERT(problem.empty(), "{}: {}", text.substr(3, text.find('\n') - 3),
               problem);
  ++num_launches_;
}

void EmulatedMachine::CompileTexts() const {
  std::vector<std::string> sources;
  for (const std::string& text : texts_) {
    if (!CompiledTexts().contains(text)) sources.push_back(text);
  }
  if (sources.empty()) return;
  const auto module = std::make_shared<EmulatedModule>(sources);
  for (size_t i = 0; i < sources.size(); ++i) {
    CompiledTexts().try_emplace(sources[i], EmulatedText{module, i});
  }
}

void EmulatedMachine::AddMemory(const char* begin, int64_t bytes) {
  memory_[begin] = bytes;
  used_bytes_ += bytes;
}

void EmulatedMachine::RemoveMemory(const char* begin) {
  used_bytes_ -= memory_.at(begin);
  memory_.erase(begin);
}

int64_t EmulatedMachine::BytesFrom(const char* begin) const {
  auto it = memory_.upper_bound(begin);
  if (it == memory_.begin()) return 0;
  --it;
  return std::max<int64_t>(it->first + it->second - begin, 0);
}

bool EmulatedMachine::Owns(const char* begin, int64_t bytes) const {
  return BytesFrom(begin) >= bytes;
}

}  // namespace fusor::test
