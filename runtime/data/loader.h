#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "runtime/data/augment/augment.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/dataset.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/sample_form.h"
#include "runtime/data/sampler.h"

namespace fusor::runtime {

// How to handle a sample that cannot be read or decoded.
enum class BadRecord {
  kFail,  // Next throws for its batch
  // It is counted and reported once. Training replaces it with the next
  // readable sample of the data set; evaluation gives it weight 0.
  kSkip,
};

struct LoaderOptions {
  int batch_size = 0;   // of this rank
  Transform transform;  // of images
  // Shapes and types of input and target. Only for a data set of tensors, whose
  // types they must match.
  std::optional<SampleForm> form{};
  bool training = false;  // see SamplerOptions
  uint64_t seed = 0;      // seed of order and augmentation
  int repetitions = 1;    // see SamplerOptions
  int rank = 0;
  int world_size = 1;
  int threads = 2;
  int prefetch = 4;  // finished batches to keep ready
  BadRecord bad_record = BadRecord::kFail;
  DecodeLimits limits;
  AllocateImages allocate{};
  // Position of the first batch that Next returns, to resume a run.
  int64_t start_epoch = 0;
  int64_t start_batch = 0;
};

// Returns the memory of a Loader's batches.
int64_t LoaderBytes(const LoaderOptions& options);

// Reads, decodes and augments samples in worker threads, which prefetch at most
// `prefetch` batches. A batch's contents depend only on data set, options and
// position, never on thread timing.
class Loader : public BatchSource {
 public:
  // Throws kUsage or kData for invalid options (see Sampler, Augmenter),
  // kOutOfMemory if LoaderBytes(options) are not available.
  Loader(std::unique_ptr<const Dataset> dataset, const LoaderOptions& options);
  // Waits until each worker has finished its current sample.
  ~Loader() override;

  int64_t batches_per_epoch() const override {
    return sampler_.batches_per_epoch();
  }
  int num_classes() const override { return dataset_->num_classes(); }
  const Batch& Next() override;
  DataStats stats() const override;
  std::vector<std::string> TakeWarnings() override;

 private:
  // A batch being filled or waiting to be returned.
  struct Slot {
    explicit Slot(const LoaderOptions& options)
        : batch(options.form
                    ? Batch(options.batch_size, *options.form, options.allocate)
                    : Batch(options.batch_size, options.transform.image_size,
                            options.allocate)) {}
    Batch batch;
    int missing = 0;  // samples not yet filled
    // Error of the failed sample with the lowest index, so that the reported
    // error does not depend on thread timing.
    std::exception_ptr error;
    int error_sample = 0;
  };
  // State that a worker keeps between samples.
  struct Worker;
  // A sample to be filled: slot and index in the batch.
  struct Ticket {
    Slot* slot = nullptr;
    int sample = 0;
    int copy = 0;  // see Sampler::Copy
  };

  void Work();
  bool Take(Ticket& ticket);
  void Open(Slot& slot);
  void Fill(const Ticket& ticket, Worker& worker);
  void LoadImage(int64_t sample, const Ticket& ticket, Worker& worker) const;
  void LoadTensors(int64_t sample, const Ticket& ticket, Worker& worker) const;
  void NoteBadRecord(int64_t sample, const std::string& message);
  void Stop();

  const std::unique_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  Sampler sampler_;  // guarded by mutex_

  mutable std::mutex mutex_;
  std::condition_variable work_;   // a slot became free, or stop_ is set
  std::condition_variable ready_;  // a batch is complete
  bool stop_ = false;
  // Batches are numbered from the start; batch b is in slot b % slots_.size().
  std::vector<std::unique_ptr<Slot>> slots_;
  int64_t taken_batch_ = 0;  // position of the next ticket
  int taken_sample_ = 0;
  int64_t next_batch_ = 0;  // batch that Next returns next
  bool holding_ = false;    // the caller holds batch next_batch_ - 1
  int64_t epoch_ = 0;       // position of the next batch to be opened
  int64_t index_ = 0;
  DataStats stats_;
  std::unordered_set<int64_t> named_;  // bad samples already reported
  std::vector<std::string> warnings_;

  std::vector<std::thread> threads_;
};

}  // namespace fusor::runtime
