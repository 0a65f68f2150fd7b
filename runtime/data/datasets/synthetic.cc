#include "runtime/data/datasets/synthetic.h"

#include <algorithm>
#include <cstring>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// Generates one sample: label from block 0, image from the next blocks.
void MakeSample(int64_t sample, uint64_t key, int num_classes, int32_t& label,
                std::span<uint8_t> image) {
  const auto block = [&](size_t index) {
    return Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(sample),
                   static_cast<uint32_t>(sample >> 32), 0},
                  key);
  };
  label = static_cast<int32_t>(
      uint64_t{block(0)[0]} * static_cast<uint64_t>(num_classes) >> 32);
  for (size_t i = 0; i < image.size(); i += 16) {
    const auto bits = block(1 + i / 16);
    std::memcpy(&image[i], bits.data(),
                std::min(sizeof(bits), image.size() - i));
  }
}

}  // namespace

SyntheticSource::SyntheticSource(const SyntheticOptions& options)
    : options_(options), next_(options.start) {
  const SyntheticOptions& o = options_;
  FUSOR_CHECK(o.batch_size > 0 && o.image_size > 0 && o.num_classes > 0 &&
                  o.distinct_batches > 0,
              kUsage,
              "synthetic data: expected positive sizes, got batch {}, image "
              "{}, {} classes, {} batches",
              o.batch_size, o.image_size, o.num_classes, o.distinct_batches);
  FUSOR_CHECK(o.world_size > 0 && o.rank >= 0 && o.rank < o.world_size, kUsage,
              "synthetic data: expected a rank below the world size {}, got {}",
              o.world_size, o.rank);
  const int64_t global_batch = int64_t{o.batch_size} * o.world_size;
  batches_per_epoch_ = std::max<int64_t>(1, o.samples / global_batch);
  const uint64_t key = HashCombine(HashBytes("synthetic"), o.seed);
  batches_.reserve(static_cast<size_t>(o.distinct_batches));
  for (int b = 0; b < o.distinct_batches; ++b) {
    Batch& batch =
        batches_.emplace_back(o.batch_size, o.image_size, o.allocate);
    for (int i = 0; i < o.batch_size; ++i) {
      const int64_t position = int64_t{b} * o.batch_size + i;
      batch.samples[i] = position * o.world_size + o.rank;
      batch.weights[i] = 1;
      MakeSample(batch.samples[i], key, o.num_classes, batch.labels[i],
                 batch.image(i));
    }
  }
}

const Batch& SyntheticSource::Next() {
  Batch& batch = batches_[next_ % options_.distinct_batches];
  batch.epoch = next_ / batches_per_epoch_;
  batch.index = next_ % batches_per_epoch_;
  ++next_;
  return batch;
}

}  // namespace fusor::runtime
