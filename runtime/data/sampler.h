#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fusor::runtime {

// Selects the samples of a rank and their order.
struct SamplerOptions {
  int64_t samples = 0;  // in the whole data set
  int batch_size = 0;   // of one rank
  int rank = 0;
  int world_size = 1;
  // Training: shuffle every epoch and drop the incomplete last global batch.
  // Otherwise: data set order, and pad the last batch.
  bool training = false;
  uint64_t seed = 0;
  // Training: repeated augmentation (Hoffer et al., CVPR 2020), as in
  // torchvision's RASampler. Each sample occurs this often in a row, and an
  // epoch ends after as many positions as there are samples, rounded down to a
  // multiple of 256 (of less than 256 samples: after all).
  int repetitions = 1;
};

// The epoch's order is cut into batches, and batch n belongs to rank n %
// world_size. A step on W ranks therefore sees the samples of W micro-batches
// on one rank, in the order in which deterministic sums add them. Step k of all
// ranks covers positions [k, k + 1) * batch_size * world_size. Within a batch,
// the first copies of samples precede the second ones and so on, so that
// neighbours, which mixup pairs, are different samples.
class Sampler {
 public:
  // Throws kData if training has less than one global batch, kUsage for invalid
  // options.
  explicit Sampler(const SamplerOptions& options);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }

  // Writes the sample indices of one batch, `batch_size` of them; -1 is
  // padding. Caches the order of the epoch requested last. Not thread-safe.
  void Batch(int64_t epoch, int64_t index, std::span<int64_t> samples);

  // Returns which copy of its sample element i of a batch is, from 0.
  // Thread-safe.
  int Copy(int64_t index, int i) const;

 private:
  int64_t Position(int64_t index, int i) const;

  SamplerOptions options_;
  int64_t batches_per_epoch_ = 0;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // order of epoch_; empty unless training
};

// Returns 0 to count - 1 in an order drawn from (seed, epoch): Fisher-Yates
// shuffle on Philox bits.
std::vector<int64_t> ShuffledOrder(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace fusor::runtime
