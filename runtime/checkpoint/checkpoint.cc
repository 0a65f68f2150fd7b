#include "runtime/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/json.h"
#include "runtime/checkpoint/weights.h"

namespace fusor::runtime {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kManifest[] = "manifest.json";
constexpr char kModelFile[] = "model.safetensors";
constexpr char kOptimizerFile[] = "optimizer.safetensors";
constexpr char kFormat[] = "fusor-checkpoint";
constexpr int kFormatVersion = 1;

std::string_view View(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](uint8_t byte) { return byte == 0; });
}

constexpr std::string_view kAccumulated = "accumulated/";

// Returns whether it is a gradient accumulator, which is unused between
// updates.
bool IsSum(std::string_view name, ir::InputRole role) {
  return role == ir::InputRole::kAccumulator && name != ir::kBatches;
}

NamedTensor LogicalTensor(const StateSnapshot& snapshot, size_t index) {
  const codegen::StateLayout::Entry& entry = snapshot.layout.entries[index];
  NamedTensor tensor{entry.name, {entry.type.dtype, entry.type.shape, {}}, {}};
  const auto size = static_cast<size_t>(entry.type.num_bytes());
  tensor.bytes.resize(size);
  ir::ToRowMajor(entry.type, std::span(&snapshot.bytes[entry.offset], size),
                 tensor.bytes);
  return tensor;
}

FileSum WriteTensors(const std::string& path, const StateSnapshot& snapshot,
                     bool model, Metadata metadata = {}) {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < snapshot.roles.size(); ++i) {
    if (IsModelState(snapshot.roles[i]) == model) {
      tensors.push_back(LogicalTensor(snapshot, i));
    }
  }
  metadata["format"] = "pt";
  return WriteSafetensors(path, tensors, metadata);
}

// --- Manifest ----------------------------------------------------------------

std::string SealOf(std::string_view body) {
  return fmt::format(",\n  \"crc32c\": \"{:08x}\"\n}}\n", Crc32c(body));
}

std::string EncodeManifest(const CheckpointHeader& h,
                           const std::map<std::string, FileSum>& files) {
  Json json = {{"format", kFormat},
               {"format_version", kFormatVersion},
               {"version", h.version},
               {"sequence", h.sequence},
               {"step", h.step},
               {"data_order", {{"epoch", h.epoch}, {"batch", h.batch}}},
               {"generator", {{"kind", "philox4x32-10"}, {"seed", h.seed}}},
               {"evaluation_due", h.evaluation_due},
               {"best_top1", h.best_top1},
               {"loss_hash", h.loss_hash},
               {"identity", h.identity},
               {"options", h.options}};
  for (const auto& [name, sum] : files) {
    json["files"][name] = {{"bytes", sum.bytes}, {"crc32c", sum.crc32c}};
  }
  std::string text = json.dump(2);
  text.erase(text.rfind("\n}"));
  return text + SealOf(text);
}

struct Manifest {
  CheckpointHeader header;
  std::map<std::string, FileSum> files;
};

Manifest DecodeManifest(const Json& json) {
  Manifest manifest;
  CheckpointHeader& h = manifest.header;
  json.at("version").get_to(h.version);
  h.sequence = JsonInteger<int64_t>(json.at("sequence"));
  h.step = JsonInteger<int64_t>(json.at("step"));
  const Json& order = json.at("data_order");
  h.epoch = JsonInteger<int64_t>(order.at("epoch"));
  h.batch = JsonInteger<int64_t>(order.at("batch"));
  h.seed = JsonInteger<uint64_t>(json.at("generator").at("seed"));
  json.at("evaluation_due").get_to(h.evaluation_due);
  json.at("best_top1").get_to(h.best_top1);
  h.loss_hash = JsonInteger<uint64_t>(json.at("loss_hash"));
  json.at("identity").get_to(h.identity);
  json.at("options").get_to(h.options);
  for (const char* name : {kModelFile, kOptimizerFile}) {
    const Json& sum = json.at("files").at(name);
    manifest.files[name] = {JsonInteger<int64_t>(sum.at("bytes")),
                            JsonInteger<uint32_t>(sum.at("crc32c"))};
  }
  return manifest;
}

Manifest ReadManifest(const std::string& path) {
  const std::string file = path + "/" + kManifest;
  std::vector<uint8_t> bytes;
  ReadFile(file, ErrorCode::kCheckpoint, bytes);
  const std::string_view text = View(bytes);
  const size_t seal_size = SealOf("").size();
  const size_t body = text.size() - std::min(text.size(), seal_size);
  FUSOR_CHECK(text.substr(body) == SealOf(text.substr(0, body)), kCheckpoint,
              "{}: damaged: its checksum is not that of its text", file);
  // Beyond this point, errors occur only if another program wrote the file.
  try {
    const Json json = Json::parse(text);
    FUSOR_CHECK(json.at("format") == kFormat &&
                    json.at("format_version") == kFormatVersion,
                kCheckpoint, "{}: expected {} version {}, got {} version {}",
                file, kFormat, kFormatVersion, json.at("format").dump(),
                json.at("format_version").dump());
    return DecodeManifest(json);
  } catch (const std::exception& e) {
    if (dynamic_cast<const Error*>(&e) != nullptr) throw;
    ThrowError(ErrorCode::kCheckpoint,
               fmt::format("{}: not a manifest of fusor: {}", file, e.what()));
  }
}

std::vector<NamedTensor> ReadTensors(const std::string& path,
                                     const FileSum& expected) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kCheckpoint, bytes);
  FUSOR_CHECK(static_cast<int64_t>(bytes.size()) == expected.bytes, kCheckpoint,
              "{}: damaged: expected {} bytes, got {}", path, expected.bytes,
              bytes.size());
  const uint32_t crc = Crc32c(View(bytes));
  FUSOR_CHECK(crc == expected.crc32c, kCheckpoint,
              "{}: damaged: expected CRC-32C {:08x}, got {:08x}", path,
              expected.crc32c, crc);
  return ParseSafetensors(path, bytes).tensors;
}

// Appends a gathered tensor to the state and points its entry there.
void AppendWhole(const StateStore& state, StateSnapshot& snapshot,
                 codegen::StateLayout::Entry& entry) {
  const std::vector<uint8_t> whole = state.GatherShard(entry.name);
  entry.type = state.LogicalType(entry.name);
  entry.offset = static_cast<int64_t>(snapshot.bytes.size());
  snapshot.bytes.insert(snapshot.bytes.end(), whole.begin(), whole.end());
  snapshot.layout.bytes = static_cast<int64_t>(snapshot.bytes.size());
}

}  // namespace

void TakeSnapshot(StateStore& state, StateSnapshot& snapshot) {
  const codegen::StateLayout& layout = state.layout();
  snapshot.bytes.resize(static_cast<size_t>(layout.bytes));
  state.Show(ParameterView::kCurrent);
  state.CopyTo(snapshot.bytes);
  const auto* batches = layout.Find(ir::kBatches);
  const bool updated =
      batches != nullptr &&
      IsZero(std::span(snapshot.bytes)
                 .subspan(batches->offset, batches->type.num_bytes()));
  snapshot.layout.bytes = layout.bytes;
  snapshot.layout.entries.clear();
  snapshot.roles.clear();
  for (const auto& entry : layout.entries) {
    const ir::InputRole role = state.Role(entry.name);
    if (role == ir::InputRole::kWeightCopy) continue;
    if (state.IsParameterShard(entry.name)) continue;
    if (updated && IsSum(entry.name, role)) continue;
    snapshot.layout.entries.push_back(entry);
    snapshot.roles.push_back(role);
    if (state.IsShard(entry.name)) {
      AppendWhole(state, snapshot, snapshot.layout.entries.back());
    }
  }
}

uint64_t StateHash(const StateSnapshot& snapshot) {
  std::map<std::string, uint32_t> sums;
  for (size_t i = 0; i < snapshot.roles.size(); ++i) {
    const NamedTensor tensor = LogicalTensor(snapshot, i);
    sums[tensor.name] = Crc32c(View(tensor.bytes));
  }
  uint64_t hash = kHashSeed;
  for (const auto& [name, sum] : sums) {
    hash = HashCombine(HashBytes(name, hash), sum);
  }
  return hash;
}

void WriteCheckpointFiles(const std::string& path,
                          const CheckpointHeader& header,
                          const StateSnapshot& snapshot) {
  std::map<std::string, FileSum> files;
  files[kModelFile] = WriteTensors(path + "/" + kModelFile, snapshot,
                                   /*model=*/true, header.description);
  files[kOptimizerFile] =
      WriteTensors(path + "/" + kOptimizerFile, snapshot, /*model=*/false);
  const std::string manifest = EncodeManifest(header, files);
  const std::string_view text = manifest;
  WriteFileDurably(path + "/" + kManifest, std::span(&text, 1),
                   ErrorCode::kCheckpoint);
}

Checkpoint ReadCheckpoint(const std::string& path) {
  const Manifest manifest = ReadManifest(path);
  Checkpoint checkpoint{path, manifest.header, {}};
  for (const auto& [name, sum] : manifest.files) {
    for (NamedTensor& tensor : ReadTensors(path + "/" + name, sum)) {
      checkpoint.tensors.push_back(std::move(tensor));
    }
  }
  return checkpoint;
}

CheckpointHeader ReadCheckpointHeader(const std::string& path) {
  const Manifest manifest = ReadManifest(path);
  for (const auto& [name, sum] : manifest.files) {
    const std::string file = path + "/" + name;
    struct stat status = {};
    FUSOR_CHECK(stat(file.c_str(), &status) == 0, kCheckpoint,
                "cannot read {}: {}", file, std::strerror(errno));
    FUSOR_CHECK(status.st_size == sum.bytes, kCheckpoint,
                "{}: damaged: expected {} bytes, got {}", file, sum.bytes,
                status.st_size);
  }
  return manifest.header;
}

void RestoreState(StateStore& state, const Checkpoint& checkpoint) {
  const codegen::StateLayout& layout = state.layout();
  // Whether the checkpoint was saved between two updates. Accumulators are then
  // unused, and a run with other ranks and micro-batches may have others or
  // none.
  const bool updated =
      std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                  [](const NamedTensor& tensor) {
                    return tensor.name != ir::kBatches || IsZero(tensor.bytes);
                  });
  std::map<std::string_view, const NamedTensor*> tensors;
  for (const NamedTensor& tensor : checkpoint.tensors) {
    if (updated && tensor.name.starts_with(kAccumulated) &&
        layout.Find(tensor.name) == nullptr) {
      continue;
    }
    FUSOR_CHECK(layout.Find(tensor.name) != nullptr, kCheckpoint,
                "{}: tensor {}: this run has no such state: it has another "
                "model or other options",
                checkpoint.path, tensor.name);
    tensors[tensor.name] = &tensor;
  }
  for (const codegen::StateLayout::Entry& entry : layout.entries) {
    const ir::InputRole role = state.Role(entry.name);
    if (role == ir::InputRole::kWeightCopy ||
        state.IsParameterShard(entry.name)) {
      continue;
    }
    const auto it = tensors.find(entry.name);
    if (updated && it == tensors.end() && role == ir::InputRole::kAccumulator) {
      continue;
    }
    FUSOR_CHECK(it != tensors.end(), kCheckpoint,
                "{}: tensor {} is missing: this run has another model or other "
                "options",
                checkpoint.path, entry.name);
    const ir::TensorType type = state.LogicalType(entry.name);
    FUSOR_CHECK(it->second->type == type, kCheckpoint,
                "{}: tensor {}: expected {}, got {}", checkpoint.path,
                entry.name, ToString(type), ToString(it->second->type));
  }
  for (const auto& [name, tensor] : tensors) {
    state.WriteBytes(std::string(name), tensor->bytes);
  }
}

}  // namespace fusor::runtime
