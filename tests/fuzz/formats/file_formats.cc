// Fuzzes weights, checkpoints, images and logs.

#include <algorithm>
#include <vector>

#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/image/decode.h"
#include "runtime/train/train_log.h"
#include "tests/fuzz/formats/format.h"
#include "tools/inspect/logs/speed_log.h"
#include "tools/inspect/observers/stats_trace.h"

namespace fusor::fuzz {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void Write(const std::string& path, std::string_view bytes) {
  WriteFileAtomically(path, bytes, ErrorCode::kInternal);
}

bool Same(const ir::TensorSource& a, const ir::TensorSource& b) {
  return a.name == b.name && a.type == b.type &&
         ir::ReadWhole(a) == ir::ReadWhole(b);
}

}  // namespace

void ReadTensors(std::string_view bytes) {
  const std::string given = ScratchFolder() + "/given";
  Write(given, bytes);
  const runtime::Safetensors file = runtime::ReadSafetensors(given);
  const std::string path = ScratchFolder() + "/weights";
  runtime::WriteSafetensors(path, file.tensors, file.metadata);
  const runtime::Safetensors again = runtime::ReadSafetensors(path);
  Require(again.metadata == file.metadata, "metadata differ");
  Require(again.tensors.size() == file.tensors.size(), "tensors are missing");
  for (const ir::TensorSource& tensor : file.tensors) {
    const ir::TensorSource* found = again.Find(tensor.name);
    Require(found != nullptr && Same(tensor, *found), "a tensor differs");
  }
}

// The bytes are a manifest without its final checksum.
void ReadManifest(std::string_view bytes) {
  static const std::string kFolder = [] {
    const std::string& path = ScratchFolder();
    for (const char* name : {"model", "optimizer"}) {
      runtime::WriteSafetensors(path + "/" + name + ".safetensors", {},
                                {{"format", "pt"}});
    }
    return path;
  }();
  Write(
      kFolder + "/manifest.json",
      fmt::format("{},\n  \"crc32c\": \"{:08x}\"\n}}\n", bytes, Crc32c(bytes)));
  runtime::ReadCheckpointHeader(kFolder);
  runtime::ReadCheckpoint(kFolder);
}

void ReadImage(std::string_view bytes) {
  constexpr runtime::DecodeLimits kLimits{.max_pixels = 1 << 18,
                                          .max_scans = 20};
  const auto reader = runtime::OpenImage(Bytes(bytes), "image", kLimits);
  const runtime::ImageSize size = reader->size();
  runtime::Image whole;
  reader->Read(runtime::WholeImage(size), whole);
  Require(whole.width == size.width && whole.height == size.height,
          "the size differs");
  // A region must have the pixels of the whole image.
  const runtime::Region region{size.width / 3, size.height / 3,
                               (size.width + 2) / 3, (size.height + 2) / 3};
  runtime::Image part;
  reader->Read(region, part);
  for (int y = 0; y < region.height; ++y) {
    Require(std::equal(part.Row(y), part.Row(y) + part.row_bytes(),
                       whole.Row(region.y + y) + size_t{3} * region.x),
            "pixels of a region differ");
  }
}

void ReadSpeedLog(std::string_view bytes) {
  for (const inspect::SpeedRecord& record :
       inspect::ParseSpeedLog(bytes, "log").records) {
    Require(0 <= record.begin && record.begin <= record.end, "steps");
    Require(record.images_per_second >= 0 &&
                record.rank_images_per_second >= 0 && record.step_seconds >= 0,
            "a negative speed");
  }
}

void ReadStatsTrace(std::string_view bytes) {
  const auto print = [](const inspect::Trace& trace) {
    std::string text = inspect::TraceHeader(trace.program, trace.target) + "\n";
    for (const inspect::TraceEntry& entry : trace.entries) {
      text += inspect::TraceLine(entry) + "\n";
    }
    return text;
  };
  const std::string text =
      print(inspect::ParseTrace(std::string(bytes), "trace"));
  Require(print(inspect::ParseTrace(text, "again")) == text,
          "text differs: " + text);
}

// Reads the log as a resumed run does.
void ReadRunLog(std::string_view bytes) {
  const std::string path = ScratchFolder() + "/log.jsonl";
  Write(path, bytes);
  runtime::OpenJsonLines(path, {.start = 5});
}

}  // namespace fusor::fuzz
