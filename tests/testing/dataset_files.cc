#include "tests/testing/dataset_files.h"

#include <fmt/core.h>

#include <algorithm>

namespace fusor::testing {
namespace {

std::span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

std::string ShardBytes(runtime::ShardFormat format,
                       const std::vector<TestSample>& samples) {
  std::vector<std::string> class_names;
  for (const TestSample& sample : samples) {
    const auto label = static_cast<size_t>(std::max(sample.label, 0));
    class_names.resize(std::max(class_names.size(), label + 1));
    class_names[label] = sample.class_name;
  }
  std::string file;
  const auto writer = runtime::MakeShardWriter(
      format, class_names, [&](std::string_view bytes) { file += bytes; });
  for (size_t i = 0; i < samples.size(); ++i) {
    writer->Add({.image = BytesOf(samples[i].image),
                 .label = samples[i].label,
                 .index = static_cast<int64_t>(i)});
  }
  writer->Finish();
  return file;
}

void WriteTestText(const std::string& path, std::string_view text) {
  WriteTestFile(path, BytesOf(text));
}

std::vector<std::string> ListSamples(const runtime::ImageSet& images) {
  std::vector<std::string> samples;
  std::vector<uint8_t> storage;
  for (int64_t i = 0; i < images.size(); ++i) {
    const runtime::Sample sample = images.Read(i, storage);
    samples.push_back(
        fmt::format("{} {}", sample.label,
                    std::string(sample.bytes.begin(), sample.bytes.end())));
  }
  return samples;
}

}  // namespace fusor::testing
