#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/datasets/image_set.h"
#include "runtime/data/files/mapped_file.h"

namespace fusor::runtime {

// fusor's own shards, made by `fusor data convert`: images in the size that
// training needs, in files that are mapped into memory. All numbers are
// little-endian.
//
//   header, 16 bytes
//      0  char[8]  "fusorimg"
//      8  u32      version, 1
//     12  u32      zero
//   images, one after the other, each an encoded file: JPEG, or binary PPM (P6)
//     for raw pixels
//   index, 24 bytes per image
//      0  u64      position in the file
//      8  u64      size in bytes
//     16  u32      CRC-32C of the image
//     20  i32      label
//   names of classes by label, each
//      0  u32      size in bytes
//      4  char[]   the name
//   trailer, 48 bytes: the end of the file
//      0  u64      number of images
//      8  u64      position of the index
//     16  u64      size of the names in bytes
//     24  u32      number of classes
//     28  u32      CRC-32C of index and names
//     32  u32      zero
//     36  u32      CRC-32C of the 36 bytes before
//     40  char[8]  "fusorend"
class PackedImages : public ImageSet {
 public:
  // Throws kData if a file cannot be read or is damaged, or if the files have
  // different classes.
  PackedImages(std::string path, const std::vector<std::string>& files);

  int64_t size() const override { return first_.back(); }
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  // The bytes are those of the mapped file.
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override;
  // Hashes the checksums of all images.
  uint64_t Fingerprint() const override;
  std::string Description() const override;

 private:
  // Where an image is stored.
  struct Entry {
    const MappedFile* file = nullptr;
    std::span<const uint8_t> row;  // of the index
    int64_t number = 0;            // in the file
  };

  void Open(const std::string& path);
  Entry Find(int64_t index) const;

  std::vector<std::unique_ptr<MappedFile>> files_;
  mutable std::atomic<size_t> loaded_bytes_ = 0;  // since the last release
  // Copies of the files' indices: a file that becomes shorter takes its own
  // away.
  std::vector<std::vector<uint8_t>> indices_;
  std::vector<int64_t> first_ = {0};  // image of each file, and the end
};

// Constants of the format.
inline constexpr std::string_view kPackedStart = "fusorimg";
inline constexpr std::string_view kPackedEnd = "fusorend";
constexpr uint32_t kPackedVersion = 1;

// Returns whether a file that starts with these bytes is such a shard.
bool IsPackedImages(std::span<const uint8_t> start);

}  // namespace fusor::runtime
