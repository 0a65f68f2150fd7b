// Sharded state: see ir/shard.h.

#include <algorithm>

#include "ir/interpreter/host_tensor.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/weight_copy.h"
#include "runtime/backend/communicator.h"
#include "runtime/part_updates.h"
#include "runtime/session.h"

namespace fusor::runtime {

using codegen::StateLayout;

const ir::Attrs& Session::StateAttrs(const std::string& name) const {
  const auto& inputs = plan(0).inputs;
  const auto it =
      std::find_if(inputs.begin(), inputs.end(),
                   [&](const auto& input) { return input.name == name; });
  FUSOR_ASSERT(it != inputs.end(), "state {}", name);
  return it->attrs;
}

bool Session::IsShard(const std::string& name) const {
  return ir::IsShard(StateAttrs(name));
}

bool Session::IsParameterShard(const std::string& name) const {
  return IsShard(name) &&
         name == ir::ShardName(StateAttrs(name).String(ir::kShardOf));
}

ir::TensorType Session::LogicalType(const std::string& name) const {
  const StateLayout::Entry& entry = FindState(name);
  const ir::Attrs& attrs = StateAttrs(name);
  if (!ir::IsShard(attrs)) return {entry.type.dtype, entry.type.shape, {}};
  const std::string& parameter = attrs.String(ir::kShardOf);
  return {entry.type.dtype, FindState(parameter).type.shape, {}};
}

void Session::WriteCopies(const std::string& weight,
                          std::span<const double> elements) {
  if (state_layout_.Find(ir::ShardName(weight)) != nullptr) {
    const ir::Tensor whole{LogicalType(weight),
                           {elements.begin(), elements.end()}};
    StoreShard(ir::ShardName(weight), ir::TensorBytes(whole));
  }
  RoundCopies(weight, elements);
}

void Session::RoundCopies(const std::string& weight,
                          std::span<const double> elements) {
  for (const codegen::PlanInput& input : plan(0).inputs) {
    if (input.role != ir::InputRole::kWeightCopy ||
        ir::CopiedWeight(input.attrs) != weight) {
      continue;
    }
    const ir::DType rounding = ir::CopyRounding(input.attrs);
    std::vector<double> rounded(elements.begin(), elements.end());
    for (double& x : rounded) x = ir::RoundTo(rounding, x);
    StoreState(FindState(input.name), std::move(rounded));
  }
}

// Pads the last shard with zeros.
void Session::StoreShard(const std::string& name,
                         std::span<const uint8_t> whole) {
  const StateLayout::Entry& entry = FindState(name);
  ir::TensorType type = LogicalType(name);
  type.layout = LayoutOfParts(plan(0), name);
  std::vector<uint8_t> physical(whole.size());
  ir::FromRowMajor(type, whole, physical);
  std::vector<uint8_t> part(static_cast<size_t>(entry.type.num_bytes()), 0);
  const size_t first =
      std::min(physical.size(), static_cast<size_t>(rank()) * part.size());
  const size_t there = std::min(part.size(), physical.size() - first);
  std::copy_n(physical.begin() + static_cast<ptrdiff_t>(first), there,
              part.begin());
  stream_->CopyToDevice(static_cast<char*>(state_->data()) + entry.offset,
                        part.data(), part.size());
  Synchronize();
}

void Session::ScatterShards() {
  for (const StateLayout::Entry& entry : state_layout_.entries) {
    if (!IsShard(entry.name) || IsParameterShard(entry.name)) continue;
    std::vector<uint8_t>& whole = wholes_[entry.name];
    whole.resize(static_cast<size_t>(LogicalType(entry.name).num_bytes()), 0);
    const auto memory = device_->Allocate(whole.size());
    stream_->CopyToDevice(memory->data(), whole.data(), whole.size());
    communicator_->Run({.kind = CollectiveKind::kBroadcast,
                        .data = memory->data(),
                        .elements = static_cast<int64_t>(whole.size()),
                        .dtype = ir::DType::kU8},
                       *stream_);
    stream_->CopyToHost(whole.data(), memory->data(), whole.size());
    Synchronize();
    StoreShard(entry.name, whole);
  }
  wholes_.clear();
  for (const StateLayout::Entry& entry : state_layout_.entries) {
    if (!IsParameterShard(entry.name)) continue;
    const std::string& parameter = StateAttrs(entry.name).String(ir::kShardOf);
    WriteState(parameter, ReadState(parameter));
  }
}

// Returns whether a parameter, or the parameter of a cached cast, is sharded.
bool Session::IsInParts(const std::string& name) const {
  const auto copy = ir::ParseWeightCopyName(name);
  return state_layout_.Find(
             ir::ShardName(copy.has_value() ? copy->weight : name)) != nullptr;
}

void Session::GatherParameters() {
  if (shown_ == Shown::kParts) return;
  ShowParts(ir::ShardName);
  shown_ = Shown::kParts;
}

void Session::ShowAverages() {
  ShowParts(ir::AverageName);
  shown_ = Shown::kAverages;
}

void Session::ShowParts(std::string (*part)(std::string_view)) {
  for (const StateLayout::Entry& entry : state_layout_.entries) {
    if (!IsParameterShard(entry.name)) continue;
    const std::string& parameter = StateAttrs(entry.name).String(ir::kShardOf);
    const std::string source = part(parameter);
    if (state_layout_.Find(source) == nullptr) continue;
    const std::vector<uint8_t> whole = GatherShard(source);
    ir::Tensor values = ir::LoadTensor(LogicalType(parameter), whole.data());
    RoundCopies(parameter, values.data);
    StoreState(FindState(parameter), std::move(values.data));
  }
}

std::vector<uint8_t> Session::GatherShard(const std::string& name) const {
  const StateLayout::Entry& entry = FindState(name);
  std::vector<uint8_t> own(static_cast<size_t>(entry.type.num_bytes()));
  stream_->CopyToHost(own.data(),
                      static_cast<char*>(state_->data()) + entry.offset,
                      own.size());
  Synchronize();
  std::vector<uint8_t> whole = GatherBytes(own);
  ir::TensorType type = LogicalType(name);
  type.layout = LayoutOfParts(plan(0), name);
  whole.resize(static_cast<size_t>(type.num_bytes()));
  std::vector<uint8_t> row_major(whole.size());
  ir::ToRowMajor(type, whole, row_major);
  return row_major;
}

std::vector<uint8_t> Session::GatherBytes(std::span<const uint8_t> own) const {
  std::vector<uint8_t> all(own.size() * static_cast<size_t>(world_size()));
  std::copy(own.begin(), own.end(),
            all.begin() + static_cast<ptrdiff_t>(own.size()) * rank());
  if (world_size() == 1 || own.empty()) return all;
  const auto memory = device_->Allocate(all.size());
  stream_->CopyToDevice(memory->data(), all.data(), all.size());
  communicator_->Run({.kind = CollectiveKind::kAllGather,
                      .data = memory->data(),
                      .elements = static_cast<int64_t>(all.size()),
                      .dtype = ir::DType::kU8},
                     *stream_);
  stream_->CopyToHost(all.data(), memory->data(), all.size());
  Synchronize();
  return all;
}

}  // namespace fusor::runtime
