#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/augment/deferred_ops.h"
#include "runtime/data/sample_form.h"

namespace fusor::runtime {

// Allocates 64-byte aligned memory for a batch's inputs; use
// Session::AllocateHost for images copied to a device.
using AllocateImages = std::function<std::shared_ptr<uint8_t>(size_t bytes)>;

// One rank's input for one step. Buffers are allocated once and reused.
class Batch {
 public:
  // `allocate` null: heap memory.
  Batch(int size, int image_size, const AllocateImages& allocate = nullptr);
  // A batch of tensors, whose image size is 0.
  Batch(int size, const SampleForm& form,
        const AllocateImages& allocate = nullptr);

  int size() const { return size_; }
  int image_size() const { return image_size_; }

  // Number of inputs: 1, the images, or those of the form.
  size_t inputs() const { return inputs_.size(); }
  // [size, image_size, image_size, 3], RGB levels, or input k of the form,
  // [size, ..]; 64-byte aligned.
  std::span<uint8_t> input(size_t k) { return inputs_[k]; }
  std::span<const uint8_t> input(size_t k) const { return inputs_[k]; }
  std::span<uint8_t> images() { return input(0); }
  std::span<const uint8_t> images() const { return input(0); }
  // Returns the part of an input that belongs to sample i.
  std::span<uint8_t> input(size_t k, int i) const {
    const size_t bytes = inputs_[k].size() / static_cast<size_t>(size_);
    return inputs_[k].subspan(bytes * static_cast<size_t>(i), bytes);
  }
  std::span<uint8_t> image(int i) { return input(0, i); }
  std::vector<std::span<uint8_t>> InputsOf(int i) const;

  // Returns the part of labels or values that belongs to sample i.
  template <typename T>
  std::span<T> PartOf(std::vector<T>& all, int i) const {
    const size_t count = all.size() / static_cast<size_t>(size_);
    return std::span(all).subspan(count * static_cast<size_t>(i), count);
  }

  void SetDeferred(int i, const DeferredOps& ops) {
    colours[static_cast<size_t>(i)] = ops.colour;
    boxes[static_cast<size_t>(i)] = ops.box;
  }

  std::vector<int32_t> labels;   // [size], or [size, form.labels]
  std::vector<float> values;     // [size, form.values], empty without a form
  std::vector<float> weights;    // [size], 1 for a sample, 0 for padding
  std::vector<int64_t> samples;  // [size], data set index, -1 for padding
  // [size], the ops that the training graph applies.
  std::vector<ColourMap> colours;
  std::vector<std::array<int32_t, 4>> boxes;
  int64_t epoch = 0;
  int64_t index = 0;  // within the epoch

 private:
  int size_;
  int image_size_ = 0;
  std::shared_ptr<uint8_t> memory_;
  std::vector<std::span<uint8_t>> inputs_;  // parts of memory_
};

// Running totals since the source was created.
struct DataStats {
  double wait_seconds = 0;    // time the caller spent in Next
  double read_seconds = 0;    // reading files, summed over workers
  double decode_seconds = 0;  // decoding and augmenting, summed over workers
  int64_t bytes_read = 0;
  int64_t files_read = 0;
  int64_t bad_records = 0;  // samples skipped under BadRecord::kSkip
};

// Returns the difference of two readings of stats().
DataStats operator-(const DataStats& later, const DataStats& earlier);

// Read throughput per second.
struct ReadRate {
  double megabytes = 0;  // 1e6 bytes
  double files = 0;
};
ReadRate ReadRateOf(const DataStats& stats, double seconds);

// A run is input-bound if it waits for data for more than this share of its
// time.
constexpr double kInputBoundShare = 0.02;

// An endless stream of batches over consecutive epochs. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int64_t batches_per_epoch() const = 0;
  virtual int num_classes() const = 0;

  // Blocks until the next batch is ready. It is valid until the next call.
  // Throws the batch's error, and throws it again if called again.
  virtual const Batch& Next() = 0;

  virtual DataStats stats() const = 0;

  // Returns log messages since the last call, one line each.
  virtual std::vector<std::string> TakeWarnings() = 0;
};

}  // namespace fusor::runtime
