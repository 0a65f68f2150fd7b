#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fusor::runtime {

// Gives the images of a batch their memory, 64-byte aligned: of
// Session::AllocateHost, where they go to a device.
using AllocateImages = std::function<std::shared_ptr<uint8_t>(size_t bytes)>;

// One rank's input of one step. The buffers are allocated once and reused.
class Batch {
 public:
  // Null: memory of the heap.
  Batch(int size, int image_size, const AllocateImages& allocate = nullptr);

  int size() const { return size_; }
  int image_size() const { return image_size_; }

  // [size, image_size, image_size, 3], RGB levels, 64-byte aligned.
  std::span<uint8_t> images() { return {images_.get(), images_bytes_}; }
  std::span<const uint8_t> images() const {
    return {images_.get(), images_bytes_};
  }
  // The part of images() that belongs to sample i.
  std::span<uint8_t> image(int i) {
    const size_t bytes = images_bytes_ / static_cast<size_t>(size_);
    return images().subspan(bytes * static_cast<size_t>(i), bytes);
  }

  std::vector<int32_t> labels;   // [size]
  std::vector<float> weights;    // [size], 1 for a sample, 0 for padding
  std::vector<int64_t> samples;  // [size], index in the data set, -1 padding
  int64_t epoch = 0;
  int64_t index = 0;  // in the epoch

 private:
  int size_;
  int image_size_;
  size_t images_bytes_;
  std::shared_ptr<uint8_t> images_;
};

// Running totals since the source was made.
struct DataStats {
  double wait_seconds = 0;    // the caller spent in Next
  double read_seconds = 0;    // all workers together spent reading files
  double decode_seconds = 0;  // ... decoding and augmenting
  int64_t bytes_read = 0;
  int64_t files_read = 0;
  int64_t bad_records = 0;  // samples left out under BadRecord::kSkip
};

// What happened between two readings of stats().
DataStats operator-(const DataStats& later, const DataStats& earlier);

// What is read in so many seconds, a second.
struct ReadRate {
  double megabytes = 0;  // 1e6 bytes
  double files = 0;
};
ReadRate ReadRateOf(const DataStats& stats, double seconds);

// A run is called input-bound when it waits for data for more than this share
// of its time.
constexpr double kInputBoundShare = 0.02;

// An endless stream of batches; epoch follows epoch. One thread at a time.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual int64_t batches_per_epoch() const = 0;
  virtual int num_classes() const = 0;

  // Blocks until the next batch is there. It is valid until the next call.
  // Throws what went wrong with it, and again when called again.
  virtual const Batch& Next() = 0;

  virtual DataStats stats() const = 0;

  // Messages for the log since the last call, one line each.
  virtual std::vector<std::string> TakeWarnings() = 0;
};

}  // namespace fusor::runtime
