#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fusor::runtime {

// Which samples a rank sees, and in which order.
struct SamplerOptions {
  int64_t samples = 0;  // of the whole data set
  int batch_size = 0;   // of one rank
  int rank = 0;
  int world_size = 1;
  // Training: a new order every epoch, the incomplete last global batch is
  // dropped. Otherwise: the data set's order, the last batch is filled up.
  bool training = false;
  uint64_t seed = 0;
};

// The epoch's order is cut into batches, and batch n is rank n % world_size's:
// W ranks see in a step what one rank sees in W micro-batches, in the order in
// which deterministic sums add them up. Step k of all ranks together covers
// positions [k, k + 1) * batch_size * world_size.
class Sampler {
 public:
  // Throws kData when training has less than one global batch, kUsage for
  // options that make no sense.
  explicit Sampler(const SamplerOptions& options);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }

  // The samples of one batch, `batch_size` of them; -1 is padding. Keeps the
  // order of the last epoch asked for; one thread at a time.
  void Batch(int64_t epoch, int64_t index, std::span<int64_t> samples);

 private:
  SamplerOptions options_;
  int64_t batches_per_epoch_ = 0;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_; empty unless training
};

// 0 to count - 1 in an order drawn from (seed, epoch): Fisher and Yates'
// shuffle on Philox bits.
std::vector<int64_t> ShuffledOrder(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace fusor::runtime
