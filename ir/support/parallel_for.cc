#include "ir/support/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace fusor {

void ParallelFor(size_t count, int threads,
                 const std::function<void(size_t)>& body) {
  size_t workers = threads > 0 ? static_cast<size_t>(threads)
                               : std::thread::hardware_concurrency();
  workers = std::clamp<size_t>(workers, 1, std::max<size_t>(1, count));
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (size_t t = 1; t < workers; ++t) pool.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

}  // namespace fusor
