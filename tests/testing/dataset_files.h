#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_set.h"
#include "runtime/data/datasets/shard_writer.h"
#include "tests/testing/image_files.h"

// Writes data sets for tests.
namespace fusor::testing {

// A sample with an encoded image that is only compared, never decoded.
struct TestSample {
  std::string image;
  int32_t label = 0;
  std::string class_name = "";
};

// Returns the bytes of a file of these samples.
std::string ShardBytes(runtime::ShardFormat format,
                       const std::vector<TestSample>& samples);

// Writes text to a file. Creates missing folders.
void WriteTestText(const std::string& path, std::string_view text);

// Lists the samples as "label image", where the image is its bytes as text.
std::vector<std::string> ListSamples(const runtime::ImageSet& images);

}  // namespace fusor::testing
