#include "runtime/data/batch_source.h"

#include <new>

namespace fusor::runtime {
namespace {

std::shared_ptr<uint8_t> AllocateOnHeap(size_t bytes) {
  constexpr std::align_val_t kAlignment{64};
  return {static_cast<uint8_t*>(::operator new(bytes, kAlignment)),
          [](uint8_t* data) { ::operator delete(data, kAlignment); }};
}

}  // namespace

Batch::Batch(int size, int image_size, const AllocateImages& allocate)
    : Batch(size,
            SampleForm{.input = {ir::DType::kU8, {image_size, image_size, 3}},
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
      size_(size),
      images_bytes_(static_cast<size_t>(size * form.input.num_bytes())),
      images_(allocate ? allocate(images_bytes_)
                       : AllocateOnHeap(images_bytes_)) {}

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
