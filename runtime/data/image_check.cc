#include "runtime/data/image_check.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ir/support/signals_blocked.h"
#include "runtime/data/image/decode.h"

namespace fusor::runtime {
namespace {

// Returns the indices of the images to check.
std::vector<int64_t> Candidates(const Dataset& dataset, bool all) {
  std::vector<int64_t> indices;
  std::vector<bool> seen(static_cast<size_t>(dataset.num_classes()) + 1);
  for (int64_t i = 0; i < dataset.size(); ++i) {
    // Samples of unknown class count as one class, the last.
    const int32_t label = dataset.Label(i);
    const size_t group =
        label == kUnknownLabel ? seen.size() - 1 : static_cast<size_t>(label);
    if (!all && seen[group]) continue;
    seen[group] = true;
    indices.push_back(i);
  }
  return indices;
}

class Checker {
 public:
  Checker(const Dataset& dataset, const Transform& transform,
          std::vector<int64_t> indices)
      : dataset_(dataset),
        transform_(transform),
        indices_(std::move(indices)),
        bad_(indices_.size()) {}

  void Run(const ImageCheckOptions& options) {
    next_ = static_cast<size_t>(options.rank);
    const auto stride = static_cast<size_t>(options.world_size);
    const size_t share = indices_.size() / stride + 1;
    const size_t count =
        std::min(static_cast<size_t>(std::max(options.threads, 1)), share);
    std::vector<std::jthread> threads;
    {
      const SignalsBlocked blocked;
      for (size_t i = 1; i < count; ++i) {
        threads.emplace_back([this, stride] { Work(stride); });
      }
    }
    Work(stride);
    threads.clear();  // joins
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Skips images after the first known bad one.
  void Work(size_t stride) {
    std::vector<uint8_t> storage;
    for (size_t at = next_.fetch_add(stride); at < bad_;
         at = next_.fetch_add(stride)) {
      try {
        Check(indices_[at], storage);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (at >= bad_) continue;
        bad_ = at;
        error_ = std::current_exception();
      }
    }
  }

  void Check(int64_t index, std::vector<uint8_t>& storage) const {
    const Sample sample = dataset_.Read(index, storage);
    const std::string name = dataset_.Name(index);
    CheckImageSize(transform_, ReadImageSize(sample.bytes, name), name);
  }

  const Dataset& dataset_;
  const Transform& transform_;
  const std::vector<int64_t> indices_;
  std::atomic<size_t> next_{0};
  std::atomic<size_t> bad_;  // position of the first bad image, or the end
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void CheckImages(const Dataset& dataset, const Transform& transform,
                 const ImageCheckOptions& options) {
  Checker(dataset, transform, Candidates(dataset, TakesOneSize(transform.kind)))
      .Run(options);
}

}  // namespace fusor::runtime
