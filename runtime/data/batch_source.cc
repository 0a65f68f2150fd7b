#include "runtime/data/batch_source.h"

#include <new>

namespace fusor::runtime {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::shared_ptr<uint8_t> AllocateOnHeap(size_t bytes) {
  constexpr std::align_val_t kAlign{kAlignment};
  return {static_cast<uint8_t*>(::operator new(bytes, kAlign)),
          [](uint8_t* data) { ::operator delete(data, kAlign); }};
}

}  // namespace

Batch::Batch(int size, int image_size, const AllocateImages& allocate)
    : Batch(size,
            SampleForm{
                .inputs = {{"images",
                            {ir::DType::kU8, {image_size, image_size, 3}}}},
                .labels = 1},
            allocate) {
  image_size_ = image_size;
}

Batch::Batch(int size, const SampleForm& form, const AllocateImages& allocate)
    : labels(static_cast<size_t>(size * form.labels)),
      values(static_cast<size_t>(size * form.values)),
      weights(static_cast<size_t>(size)),
      samples(static_cast<size_t>(size)),
      colours(static_cast<size_t>(size)),
      boxes(static_cast<size_t>(size)),
      size_(size) {
  const auto bytes = [&](const InputForm& input) {
    return static_cast<size_t>(size * input.type.num_bytes());
  };
  size_t all = 0;
  for (const InputForm& input : form.inputs) all += Aligned(bytes(input));
  memory_ = allocate ? allocate(all) : AllocateOnHeap(all);
  uint8_t* next = memory_.get();
  for (const InputForm& input : form.inputs) {
    inputs_.emplace_back(next, bytes(input));
    next += Aligned(bytes(input));
  }
}

std::vector<std::span<uint8_t>> Batch::InputsOf(int i) const {
  std::vector<std::span<uint8_t>> parts;
  for (size_t k = 0; k < inputs_.size(); ++k) parts.push_back(input(k, i));
  return parts;
}

ReadRate ReadRateOf(const DataStats& stats, double seconds) {
  if (seconds <= 0) return {};
  return {.megabytes = static_cast<double>(stats.bytes_read) / 1e6 / seconds,
          .files = static_cast<double>(stats.files_read) / seconds};
}

DataStats operator-(const DataStats& later, const DataStats& earlier) {
  return {.wait_seconds = later.wait_seconds - earlier.wait_seconds,
          .read_seconds = later.read_seconds - earlier.read_seconds,
          .decode_seconds = later.decode_seconds - earlier.decode_seconds,
          .bytes_read = later.bytes_read - earlier.bytes_read,
          .files_read = later.files_read - earlier.files_read,
          .bad_records = later.bad_records - earlier.bad_records};
}

}  // namespace fusor::runtime
