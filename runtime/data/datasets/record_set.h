#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/support/file.h"
#include "runtime/data/datasets/image_set.h"

namespace fusor::runtime {

// A file of records, and what is known about them without reading them all.
struct RecordShard {
  std::unique_ptr<InputFile> file;
  // Start of each record, and the end of the last one.
  std::vector<int64_t> offsets;
  // Label of each record as stored, kUnknownLabel if it has none. Empty if not
  // read.
  std::vector<int32_t> labels;
  // Names of labels, as far as records give them.
  std::map<int32_t, std::string> names;
  int32_t first_label = 0;  // stored label of class 0

  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

struct RecordOptions {
  // Number of classes if known. Labels are then checked when their records are
  // read. Otherwise all labels are read at the start.
  int num_classes = 0;
  // Read all labels at the start even so.
  bool labels = false;

  bool read_labels() const { return labels || num_classes == 0; }
};

// Largest stored label: more classes are more likely a misread format.
constexpr int32_t kMaxLabel = (1 << 20) - 1;

// A data set whose files are sequences of records. Records are numbered through
// all files, in the order of the files.
class RecordSet : public ImageSet {
 public:
  int64_t size() const override { return first_.back(); }
  int32_t Label(int64_t index) const override;
  std::string Name(int64_t index) const override;
  // Hashes names of files, sizes of records and samples of their contents.
  uint64_t Fingerprint() const override;
  std::string Description() const override;

 protected:
  struct Record {
    const RecordShard& shard;
    int64_t offset;
    int64_t size;
  };

  RecordSet(std::string_view format, std::string path,
            std::vector<RecordShard> shards, const RecordOptions& options);

  Record Find(int64_t index) const;
  // Reads the bytes of a record as stored, with its framing.
  std::span<const uint8_t> ReadRecord(int64_t index,
                                      std::vector<uint8_t>& storage) const;
  // Returns the class of a stored label. Throws kData if there is none.
  int32_t ClassOf(int64_t label, int64_t index) const;

 private:
  size_t ShardOf(int64_t index) const;
  void NameClasses();

  std::vector<RecordShard> shards_;
  std::vector<int64_t> first_;  // record of each shard, and the end
  int32_t first_label_ = 0;
};

// Opens the files with `open`, several at a time: reading the start of each
// record is mostly waiting for storage.
using OpenShard =
    std::function<RecordShard(const std::string& path, bool labels)>;
std::vector<RecordShard> OpenShards(const std::vector<std::string>& files,
                                    bool labels, const OpenShard& open);

// Returns the path of the index that belongs to a file of records, or "": the
// name with .idx appended or as its extension, beside the file or in a folder
// idx or idx_files beside it or beside its folder.
std::string FindIndex(const std::string& path);

// Returns the two whole numbers of each line of an index file. Throws kData.
std::vector<std::pair<int64_t, int64_t>> ReadIndex(const std::string& path);

}  // namespace fusor::runtime
