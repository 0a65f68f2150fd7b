#include "runtime/data/datasets/shard_format.h"

#include <algorithm>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/zip_directory.h"
#include "runtime/data/datasets/packed_images.h"
#include "runtime/data/datasets/recordio.h"
#include "runtime/data/datasets/tfrecord.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/files/tar.h"
#include "runtime/data/files/unpack.h"

namespace fusor::runtime {

std::string_view FormatName(ShardFormat format) {
  switch (format) {
    case ShardFormat::kNone:
      return "none";
    case ShardFormat::kTfRecord:
      return "TFRecord";
    case ShardFormat::kRecordIo:
      return "RecordIO";
    case ShardFormat::kPacked:
      return "fusor's shards";
    case ShardFormat::kZip:
      return "zip";
    case ShardFormat::kTar:
      return "tar";
    case ShardFormat::kSafetensors:
      return "safetensors";
  }
  FUSOR_ASSERT(false, "format {}", static_cast<int>(format));
}

ShardFormat DetectFormat(std::span<const uint8_t> start) {
  if (IsTfRecord(start)) return ShardFormat::kTfRecord;
  if (IsRecordIo(start)) return ShardFormat::kRecordIo;
  if (IsPackedImages(start)) return ShardFormat::kPacked;
  if (IsZip(start)) return ShardFormat::kZip;
  if (IsTar(start) || IsGzip(start)) return ShardFormat::kTar;
  if (IsSafetensors(start)) return ShardFormat::kSafetensors;
  return ShardFormat::kNone;
}

ShardFormat DetectFormat(const std::string& path) {
  constexpr int64_t kStartBytes = 512;
  const InputFile file(path, ErrorCode::kData);
  std::vector<uint8_t> start(
      static_cast<size_t>(std::min(file.size(), kStartBytes)));
  file.Read(0, start);
  return DetectFormat(start);
}

}  // namespace fusor::runtime
