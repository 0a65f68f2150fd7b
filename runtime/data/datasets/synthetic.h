#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch_source.h"

namespace fusor::runtime {

struct SyntheticOptions {
  int batch_size = 0;  // of this rank
  int image_size = 224;
  int num_classes = 1000;
  std::optional<SampleForm> form{};  // tensors instead of images
  int64_t samples = 1'281'167;       // per epoch, over all ranks
  // Batches generated at the start and returned cyclically; kept in memory.
  int distinct_batches = 1;
  uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
  int64_t start = 0;  // batches to skip, to resume a run
  AllocateImages allocate{};
};

// Noise and random labels, for benchmarks without a data set: Next costs
// nothing. Each rank gets different samples.
class SyntheticSource : public BatchSource {
 public:
  // Throws kUsage for invalid options.
  explicit SyntheticSource(const SyntheticOptions& options);

  int64_t batches_per_epoch() const override { return batches_per_epoch_; }
  int num_classes() const override { return options_.num_classes; }
  const Batch& Next() override;
  DataStats stats() const override { return {}; }
  std::vector<std::string> TakeWarnings() override { return {}; }

 private:
  SyntheticOptions options_;
  int64_t batches_per_epoch_;
  int64_t next_ = 0;
  std::vector<Batch> batches_;
};

}  // namespace fusor::runtime
