#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/support/file.h"
#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// Tar archives in WebDataset's convention. Consecutive files whose names are
// equal up to the first dot of their last part are one sample: an image (jpg,
// jpeg, png, ppm, webp, bmp or gif) and its class, a whole number in a .cls
// file or in the field "label" or "cls" of a .json file. Class i is label i.
// Samples are in the order of the archives. Archives are listed at the start;
// those packed with gzip are unpacked into temporary files (see Gunzip).
class WebDataset : public ImageSet {
 public:
  // Throws kData if a file cannot be read or is damaged, or there is no image.
  WebDataset(std::string path, const std::vector<std::string>& files);
  ~WebDataset() override;

  int64_t size() const override {
    return static_cast<int64_t>(samples_.size());
  }
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
  uint64_t Fingerprint() const override;
  std::string Description() const override;

 private:
  // Where a sample is stored. Names are kept together: a million strings would
  // cost several times as much.
  struct Entry {
    int64_t offset = 0;
    int64_t size = -1;  // -1: it has no image
    int32_t label = kUnknownLabel;
    uint32_t name_bytes = 0;
    int64_t name_begin = 0;  // in the shard's names
  };
  struct Shard;

  const Shard& ShardOf(int64_t index) const;
  static Shard List(const std::string& path);

  std::vector<Shard> shards_;
  std::vector<Entry> samples_;
};

}  // namespace fusor::runtime
