// Fuzzes files of data sets.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/little_endian.h"
#include "runtime/data/datasets/packed_images.h"
#include "runtime/data/datasets/recordio.h"
#include "runtime/data/datasets/tensor_set.h"
#include "runtime/data/datasets/tfrecord.h"
#include "runtime/data/datasets/webdataset.h"
#include "runtime/data/datasets/zip_images.h"
#include "runtime/data/sample_form.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

std::string Write(std::string_view bytes) {
  const std::string path = ScratchFolder() + "/set";
  WriteFileAtomically(path, bytes, ErrorCode::kInternal);
  return path;
}

// Reads all samples. A sample may be broken, but the set stays usable.
void ReadAll(const runtime::ImageSet& images) {
  Require(images.size() > 0, "an empty set");
  std::vector<uint8_t> storage;
  for (int64_t i = 0; i < images.size(); ++i) {
    const int32_t label = images.Label(i);
    Require(label >= runtime::kUnknownLabel && label < images.num_classes(),
            "a label");
    try {
      const runtime::Sample sample = images.Read(i, storage);
      Require(sample.label == label, "labels differ");
      // Accesses all bytes, for the sanitizers.
      volatile uint8_t sum = 0;
      for (const uint8_t byte : sample.bytes) sum = sum + byte;
    } catch (const Error& error) {
      Require(error.code() == ErrorCode::kData, error.what());
    }
  }
  images.Fingerprint();
}

std::string Number(uint64_t value, size_t bytes) {
  std::string text;
  AppendLittle(value, text);
  return text.substr(0, bytes);
}

}  // namespace

// The bytes are an example, since a fuzzer finds no checksums.
void ReadTfExample(std::string_view bytes) {
  const std::string length = Number(bytes.size(), 8);
  const std::string path =
      Write(length + Number(runtime::MaskedCrc32c(length), 4) +
            std::string(bytes) + Number(runtime::MaskedCrc32c(bytes), 4));
  ReadAll(runtime::TfRecordSet(path, {path}, {}));
}

void ReadRecordIo(std::string_view bytes) {
  const std::string path = Write(bytes);
  ReadAll(runtime::RecordIoSet(path, {path}, {}));
}

void ReadTarArchive(std::string_view bytes) {
  const std::string path = Write(bytes);
  ReadAll(runtime::WebDataset(path, {path}));
}

void ReadZip(std::string_view bytes) {
  const std::string path = Write(bytes);
  for (const std::string& split : runtime::ZipSplits(path)) {
    ReadAll(runtime::ZipImages(path, split));
  }
  ReadAll(runtime::ZipImages(path, ""));
}

// Corrects the checksums of the file.
void ReadShard(std::string_view bytes) {
  constexpr size_t kTrailerBytes = 48;
  std::string file(bytes);
  if (file.size() > kTrailerBytes) {
    const size_t trailer = file.size() - kTrailerBytes;
    const auto index = LoadLittle<uint64_t>(
        {reinterpret_cast<const uint8_t*>(file.data()) + trailer + 8, 8});
    if (index < trailer) {
      file.replace(trailer + 28, 4,
                   Number(Crc32c(file.substr(index, trailer - index)), 4));
    }
    file.replace(trailer + 36, 4, Number(Crc32c(file.substr(trailer, 36)), 4));
  }
  const std::string path = Write(file);
  ReadAll(runtime::PackedImages(path, {path}));
}

// Converts targets to labels if they are integers, otherwise to values.
void ReadTensorSet(std::string_view bytes) {
  const std::string path = Write(bytes);
  const runtime::TensorSet set(path, {path});
  const ir::TensorType& input = set.tensors()->inputs[0];
  const ir::TensorType& target = set.tensors()->target;
  runtime::SampleForm form{
      .inputs = {{"input", input, ir::IsFloat(input.dtype) ? 0 : 5}},
      .classes = 3,
      .ignores = true};
  (ir::IsFloat(target.dtype) ? form.values : form.labels) =
      target.num_elements();
  std::vector<uint8_t> inputs(static_cast<size_t>(input.num_bytes()));
  std::vector<uint8_t> targets(static_cast<size_t>(target.num_bytes()));
  std::vector<int32_t> labels(static_cast<size_t>(form.labels));
  std::vector<float> values(static_cast<size_t>(form.values));
  for (int64_t i = 0; i < set.size(); ++i) {
    set.ReadTensors(i, {inputs}, targets);
    try {
      runtime::CheckTokens(form.inputs[0], inputs, set.Name(i));
      runtime::ConvertTarget(form, target, targets, set.Name(i), labels,
                             values);
    } catch (const Error& error) {
      Require(error.code() == ErrorCode::kData, error.what());
    }
  }
  Require(set.size() > 0, "an empty set");
  set.Description();
}

}  // namespace fusor::fuzz
