#include "runtime/data/datasets/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "ir/dtype.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// Generates one image: label from block 0, image from the next blocks.
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

// Generates the tensors of one sample.
void MakeTensors(int64_t sample, uint64_t key, const SampleForm& form,
                 const std::vector<std::span<uint8_t>>& inputs,
                 std::span<int32_t> labels, std::span<float> values) {
  uint32_t next = 0;
  std::array<uint32_t, 4> bits{};
  const auto draw = [&] {
    if (next % 4 == 0) {
      bits = Philox({next / 4, static_cast<uint32_t>(sample),
                     static_cast<uint32_t>(sample >> 32), 0},
                    key);
    }
    return UniformFloat(bits[next++ % 4]);
  };
  const auto below = [&](int64_t count) {
    return std::floor(draw() * static_cast<double>(count));
  };
  // Uniform values of mean 0 and variance 1, like those of normalised images.
  const double bound = std::sqrt(3.0);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& [name, type, tokens] = form.inputs[k];
    const ir::DType dtype = type.dtype;
    // Integers of unknown range are 1, like a mask that hides nothing.
    const bool levels = tokens == 0 && dtype == ir::DType::kU8;
    const auto value = [&] {
      if (ir::IsFloat(dtype)) return bound * (2 * draw() - 1);
      if (levels) return below(256);
      return tokens > 0 ? below(tokens) : 1.0;
    };
    ir::Tensor drawn{type, {}};
    for (int64_t i = 0; i < type.num_elements(); ++i) {
      drawn.data.push_back(ir::RoundTo(dtype, value()));
    }
    ir::StoreTensor(drawn, inputs[k].data());
  }
  for (int32_t& label : labels) {
    label = static_cast<int32_t>(below(form.classes));
  }
  for (float& value : values) value = static_cast<float>(draw());
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
    Batch& batch = batches_.emplace_back(
        o.form ? Batch(o.batch_size, *o.form, o.allocate)
               : Batch(o.batch_size, o.image_size, o.allocate));
    for (int i = 0; i < o.batch_size; ++i) {
      const int64_t position = int64_t{b} * o.batch_size + i;
      batch.samples[i] = position * o.world_size + o.rank;
      batch.weights[i] = 1;
      if (o.form) {
        MakeTensors(batch.samples[i], key, *o.form, batch.InputsOf(i),
                    batch.PartOf(batch.labels, i),
                    batch.PartOf(batch.values, i));
      } else {
        MakeSample(batch.samples[i], key, o.num_classes, batch.labels[i],
                   batch.image(i));
      }
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
