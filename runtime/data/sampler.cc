#include "runtime/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// Returns the number of positions of an epoch.
int64_t EpochLength(const SamplerOptions& o) {
  constexpr int64_t kGroup = 256;
  if (o.repetitions == 1 || o.samples < kGroup) return o.samples;
  return o.samples / kGroup * kGroup;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const SamplerOptions& o = options_;
  FUSOR_CHECK(o.batch_size > 0, kUsage,
              "data loader: expected a positive batch size, got {}",
              o.batch_size);
  FUSOR_CHECK(o.world_size > 0 && o.rank >= 0 && o.rank < o.world_size, kUsage,
              "data loader: expected a rank below the world size {}, got {}",
              o.world_size, o.rank);
  FUSOR_CHECK(o.samples > 0, kData, "data loader: the data set is empty");
  FUSOR_CHECK(o.repetitions == 1 || (o.training && o.repetitions > 0), kUsage,
              "data loader: expected 1 or more repetitions in training, got {}",
              o.repetitions);
  const int64_t global_batch = int64_t{o.batch_size} * o.world_size;
  if (o.training) {
    const int64_t length = EpochLength(o);
    FUSOR_CHECK(length >= global_batch, kData,
                "data loader: expected at least one batch of {} x {} ranks, "
                "got {} training samples",
                o.batch_size, o.world_size, length);
    batches_per_epoch_ = length / global_batch;
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
    const int64_t position = Position(index, i);
    if (position >= o.samples) {
      samples[i] = -1;
    } else {
      samples[i] = o.training ? order_[position / o.repetitions] : position;
    }
  }
}

int Sampler::Copy(int64_t index, int i) const {
  return static_cast<int>(Position(index, i) % options_.repetitions);
}

int64_t Sampler::Position(int64_t index, int i) const {
  const SamplerOptions& o = options_;
  const int64_t begin = (index * o.world_size + o.rank) * o.batch_size;
  for (int copy = 0; copy + 1 < o.repetitions; ++copy) {
    // The batch's positions of this copy are `first`, first + repetitions, ...
    const auto first = static_cast<int>(
        (copy - begin % o.repetitions + o.repetitions) % o.repetitions);
    const int count =
        (std::max(o.batch_size - first, 0) + o.repetitions - 1) / o.repetitions;
    if (i < count) return begin + first + int64_t{i} * o.repetitions;
    i -= count;
  }
  const int64_t last =
      (2 * o.repetitions - 1 - begin % o.repetitions) % o.repetitions;
  return begin + last + int64_t{i} * o.repetitions;
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
