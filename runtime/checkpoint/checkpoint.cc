#include "runtime/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ir/interpreter/host_tensor.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/json.h"
#include "ir/support/str.h"
#include "runtime/checkpoint/weights.h"

namespace fusor::runtime {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr char kManifest[] = "manifest.json";
constexpr char kModelFile[] = "model.safetensors";
constexpr char kOptimizerFile[] = "optimizer.safetensors";
constexpr char kFormat[] = "fusor-checkpoint";
constexpr int kFormatVersion = 1;

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

// Returns a tensor of the snapshot, row-major; refers to the snapshot.
ir::TensorSource SourceOf(const StateSnapshot& snapshot, size_t index) {
  const codegen::StateLayout::Entry& entry = snapshot.layout.entries[index];
  const auto physical =
      std::span(snapshot.bytes)
          .subspan(entry.offset, static_cast<size_t>(entry.type.num_bytes()));
  return {
      entry.name,
      {entry.type.dtype, entry.type.shape, {}},
      [&type = entry.type, physical](int64_t offset, std::span<uint8_t> bytes) {
        ir::ToRowMajor(type, physical, bytes,
                       offset / ir::DTypeSize(type.dtype));
      }};
}

FileSum WriteTensors(const std::string& path, const StateSnapshot& snapshot,
                     bool model, Metadata metadata = {}) {
  std::vector<ir::TensorSource> tensors;
  for (size_t i = 0; i < snapshot.roles.size(); ++i) {
    if (IsModelState(snapshot.roles[i]) == model) {
      tensors.push_back(SourceOf(snapshot, i));
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
  OrderedJson json = {
      {"format", kFormat},
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
      {"options", h.options},
      {"choices", h.choices}};
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

Manifest DecodeManifest(const OrderedJson& json) {
  Manifest manifest;
  CheckpointHeader& h = manifest.header;
  json.at("version").get_to(h.version);
  h.sequence = JsonInteger<int64_t>(json.at("sequence"));
  h.step = JsonInteger<int64_t>(json.at("step"));
  const OrderedJson& order = json.at("data_order");
  h.epoch = JsonInteger<int64_t>(order.at("epoch"));
  h.batch = JsonInteger<int64_t>(order.at("batch"));
  h.seed = JsonInteger<uint64_t>(json.at("generator").at("seed"));
  json.at("evaluation_due").get_to(h.evaluation_due);
  json.at("best_top1").get_to(h.best_top1);
  h.loss_hash = JsonInteger<uint64_t>(json.at("loss_hash"));
  json.at("identity").get_to(h.identity);
  json.at("options").get_to(h.options);
  h.choices = json.value("choices", "");  // since version 0.2
  for (const char* name : {kModelFile, kOptimizerFile}) {
    const OrderedJson& sum = json.at("files").at(name);
    manifest.files[name] = {JsonInteger<int64_t>(sum.at("bytes")),
                            JsonInteger<uint32_t>(sum.at("crc32c"))};
  }
  return manifest;
}

Manifest ReadManifest(const std::string& path) {
  const std::string file = path + "/" + kManifest;
  std::vector<uint8_t> bytes;
  ReadFile(file, ErrorCode::kCheckpoint, bytes);
  const std::string_view text = AsText(bytes);
  const size_t seal_size = SealOf("").size();
  const size_t body = text.size() - std::min(text.size(), seal_size);
  FUSOR_CHECK(text.substr(body) == SealOf(text.substr(0, body)), kCheckpoint,
              "{}: damaged: its checksum is not that of its text", file);
  // Beyond this point, errors occur only if another program wrote the file.
  try {
    const OrderedJson json = OrderedJson::parse(text);
    FUSOR_CHECK(json.at("format") == kFormat &&
                    json.at("format_version") == kFormatVersion,
                kCheckpoint, "{}: expected {} version {}, got {} version {}",
                file, kFormat, kFormatVersion, json.at("format").dump(),
                json.at("format_version").dump());
    return DecodeManifest(json);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    if (dynamic_cast<const Error*>(&e) != nullptr) throw;
    ThrowError(ErrorCode::kCheckpoint,
               fmt::format("{}: not a manifest of fusor: {}", file, e.what()));
  }
}

// Returns the tensors that a snapshot has. Makes parameters current.
std::vector<ir::TensorSource> SavedTensors(StateStore& state) {
  state.Show(ParameterView::kCurrent);
  const bool updated = state.Has(ir::kBatches) &&
                       IsZero(ir::ReadWhole(state.Source(ir::kBatches)));
  std::vector<ir::TensorSource> tensors;
  for (const auto& [name, type, offset] : state.layout().entries) {
    const ir::InputRole role = state.Role(name);
    if (role == ir::InputRole::kWeightCopy || state.IsParameterShard(name) ||
        (updated && IsSum(name, role))) {
      continue;
    }
    tensors.push_back(state.Source(name));
  }
  return tensors;
}

// Rounds up to the alignment of tensors in a snapshot.
int64_t Aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t HashOf(std::span<const ir::TensorSource> tensors) {
  std::map<std::string, uint32_t> sums;
  for (const ir::TensorSource& tensor : tensors) {
    uint32_t& sum = sums[tensor.name];
    ir::ForEachPiece(tensor, [&](int64_t, std::span<const uint8_t> piece) {
      sum = Crc32c(AsText(piece), sum);
    });
  }
  uint64_t hash = kHashSeed;
  for (const auto& [name, sum] : sums) {
    hash = HashCombine(HashBytes(name, hash), sum);
  }
  return hash;
}

}  // namespace

void TakeSnapshot(StateStore& state, StateSnapshot& snapshot) {
  snapshot.layout = {};
  snapshot.roles.clear();
  for (const ir::TensorSource& tensor : SavedTensors(state)) {
    codegen::StateLayout::Entry entry = *state.layout().Find(tensor.name);
    if (state.IsShard(entry.name)) entry.type = tensor.type;
    entry.offset = snapshot.layout.bytes;
    snapshot.layout.bytes += Aligned(entry.type.num_bytes());
    snapshot.roles.push_back(state.Role(entry.name));
    snapshot.layout.entries.push_back(std::move(entry));
  }
  snapshot.bytes.resize(static_cast<size_t>(snapshot.layout.bytes));
  for (const codegen::StateLayout::Entry& entry : snapshot.layout.entries) {
    state.CopyTo(entry.name,
                 std::span(snapshot.bytes)
                     .subspan(entry.offset,
                              static_cast<size_t>(entry.type.num_bytes())));
  }
}

void JoinSnapshot(StateStore& state) {
  for (const ir::TensorSource& tensor : SavedTensors(state)) {
    if (state.IsShard(tensor.name)) ir::ReadWhole(tensor);
  }
}

int64_t SnapshotBytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  const codegen::StateLayout layout = codegen::StateOf(plan);
  for (const codegen::PlanInput& input : plan.inputs) {
    const codegen::StateLayout::Entry* entry = layout.Find(input.name);
    if (entry == nullptr || input.role == ir::InputRole::kWeightCopy ||
        IsSum(input.name, input.role)) {
      continue;
    }
    int64_t elements = entry->type.num_elements();
    if (ir::IsShard(input.attrs)) {
      const std::string& parameter = input.attrs.String(ir::kShardOf);
      if (input.name == ir::ShardName(parameter)) continue;
      elements = layout.Find(parameter)->type.num_elements();
    }
    bytes += Aligned(elements * ir::DTypeSize(entry->type.dtype));
  }
  return bytes;
}

uint64_t StateHash(StateStore& state) { return HashOf(SavedTensors(state)); }

uint64_t StateHash(const StateSnapshot& snapshot) {
  std::vector<ir::TensorSource> tensors;
  for (size_t i = 0; i < snapshot.roles.size(); ++i) {
    tensors.push_back(SourceOf(snapshot, i));
  }
  return HashOf(tensors);
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
  WriteFileDurably(
      path + "/" + kManifest,
      [&](const AppendBytes& append) { append(manifest); },
      ErrorCode::kCheckpoint);
}

Checkpoint ReadCheckpoint(const std::string& path) {
  const Manifest manifest = ReadManifest(path);
  Checkpoint checkpoint{path, manifest.header, {}};
  for (const auto& [name, sum] : manifest.files) {
    for (ir::TensorSource& tensor :
         ReadSafetensors(path + "/" + name, sum).tensors) {
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
  const bool updated = std::all_of(
      checkpoint.tensors.begin(), checkpoint.tensors.end(),
      [](const ir::TensorSource& tensor) {
        return tensor.name != ir::kBatches || IsZero(ir::ReadWhole(tensor));
      });
  std::map<std::string_view, const ir::TensorSource*> tensors;
  for (const ir::TensorSource& tensor : checkpoint.tensors) {
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
  for (const auto& [name, tensor] : tensors) state.Write(*tensor);
}

}  // namespace fusor::runtime
