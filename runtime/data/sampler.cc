#include "runtime/data/sampler.h"

#include <numeric>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const SamplerOptions& o = options_;
  FUSOR_CHECK(o.batch_size > 0, kUsage,
              "data loader: expected a positive batch size, got {}",
              o.batch_size);
  FUSOR_CHECK(o.world_size > 0 && o.rank >= 0 && o.rank < o.world_size, kUsage,
              "data loader: expected a rank below the world size {}, got {}",
              o.world_size, o.rank);
  FUSOR_CHECK(o.samples > 0, kData, "data loader: the data set is empty");
  const int64_t global_batch = int64_t{o.batch_size} * o.world_size;
  if (o.training) {
    FUSOR_CHECK(o.samples >= global_batch, kData,
                "data loader: expected at least one batch of {} x {} ranks, "
                "got {} training samples",
                o.batch_size, o.world_size, o.samples);
    batches_per_epoch_ = o.samples / global_batch;
  } else {
    batches_per_epoch_ = (o.samples + global_batch - 1) / global_batch;
  }
}

void Sampler::Batch(int64_t epoch, int64_t index, std::span<int64_t> samples) {
  const SamplerOptions& o = options_;
  FUSOR_ASSERT(samples.size() == static_cast<size_t>(o.batch_size) &&
                   index >= 0 && index < batches_per_epoch_,
               "batch {} of {} with {} samples", index, batches_per_epoch_,
               samples.size());
  if (o.training && epoch != epoch_) {
    order_ = ShuffledOrder(o.samples, o.seed, epoch);
    epoch_ = epoch;
  }
  for (int i = 0; i < o.batch_size; ++i) {
    const int64_t position = (index * o.world_size + o.rank) * o.batch_size + i;
    if (position >= o.samples) {
      samples[i] = -1;
    } else {
      samples[i] = o.training ? order_[position] : position;
    }
  }
}

std::vector<int64_t> ShuffledOrder(int64_t count, uint64_t seed,
                                   int64_t epoch) {
  const uint64_t key = HashCombine(HashCombine(HashBytes("shuffle"), seed),
                                   static_cast<uint64_t>(epoch));
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    const auto bits = Philox(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0}, key);
    const uint64_t wide = uint64_t{bits[1]} << 32 | bits[0];
    // 64 bits for i + 1 choices: the modulo bias is negligible, below 2^-30.
    const auto j = static_cast<int64_t>(wide % static_cast<uint64_t>(i + 1));
    std::swap(order[i], order[j]);
  }
  return order;
}

}  // namespace fusor::runtime
