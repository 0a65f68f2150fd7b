#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/support/file.h"
#include "runtime/data/datasets/shard_format.h"

namespace fusor::runtime {

// A sample to be written.
struct OutputSample {
  std::span<const uint8_t> image;  // encoded
  int32_t label = 0;
  int64_t index = 0;  // in the data set
};

// Writes one file of a data set, front to back.
class ShardWriter {
 public:
  // `append` appends to the file.
  explicit ShardWriter(AppendBytes append) : append_(std::move(append)) {}
  virtual ~ShardWriter() = default;

  virtual void Add(const OutputSample& sample) = 0;
  // Writes what follows the samples.
  virtual void Finish() {}

  // Returns the text of the index file that belongs to the file; "" if the
  // format has none.
  const std::string& index() const { return index_; }

 protected:
  // Appends to the file.
  void Append(std::string_view bytes) {
    append_(bytes);
    position_ += static_cast<int64_t>(bytes.size());
  }
  int64_t position() const { return position_; }

  std::string index_;

 private:
  AppendBytes append_;
  int64_t position_ = 0;
};

// Returns a writer of files that the reader of `format` reads. Labels of
// TFRecords count from 1 and have names, as TfRecordSet expects; only TFRecords
// and fusor's shards keep the names of classes.
std::unique_ptr<ShardWriter> MakeShardWriter(
    ShardFormat format, const std::vector<std::string>& class_names,
    AppendBytes append);

}  // namespace fusor::runtime
