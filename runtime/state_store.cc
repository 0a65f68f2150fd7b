#include "runtime/state_store.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "ir/weight_copy.h"
#include "runtime/initial_values.h"

namespace fusor::runtime {
namespace {

using codegen::StateLayout;

// Returns the parameter of a parameter's shard, or of a shard of its state.
const std::string& ShardedParameter(const ir::Attrs& attrs) {
  return attrs.String(ir::kShardOf);
}

bool IsShardOfParameter(const std::string& name, const ir::Attrs& attrs) {
  return ir::IsShard(attrs) && name == ir::ShardName(ShardedParameter(attrs));
}

}  // namespace

StateStore::Contents StateStore::ContentsOf(ParameterView view) {
  return view == ParameterView::kAverages ? Contents::kAverages
                                          : Contents::kCurrent;
}

std::string_view StateStore::ContentsName(Contents contents) {
  if (contents == Contents::kAverages) return "moving averages";
  return contents == Contents::kCurrent ? "current values"
                                        : "values before the last update";
}

ShardUpdates ShardUpdatesOf(const codegen::Plan& plan) {
  std::set<int> gathered;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kCollective) continue;
    gathered.insert(step.args.begin(), step.args.end());
  }
  ShardUpdates updates;
  for (const codegen::PlanOutput& output : plan.outputs) {
    if (output.alias < 0) continue;
    const codegen::PlanInput& state = plan.inputs[output.alias];
    if (!IsShardOfParameter(state.name, state.attrs)) continue;
    updates.any = true;
    updates.gathers_first |= !gathered.contains(output.buffer);
  }
  return updates;
}

StateStore::StateStore(const RankDevice& device, int threads)
    : device_(device), threads_(threads) {}

StateStore::~StateStore() = default;

void StateStore::Attach(const codegen::Plan& plan) {
  if (attached_) return CheckLayout(plan);
  for (const codegen::Arena& arena : plan.arenas) {
    if (arena.kind != codegen::ArenaKind::kState) continue;
    memory_ = device_.AllocateShared(
        std::max<size_t>(static_cast<size_t>(arena.bytes), 1));
  }
  layout_ = StateOf(plan);
  for (const StateLayout::Entry& entry : layout_.entries) {
    const auto input =
        std::find_if(plan.inputs.begin(), plan.inputs.end(),
                     [&](const auto& i) { return i.name == entry.name; });
    tensors_[entry.name] = {entry, input->role, input->attrs};
    has_shards_ |= IsShardOfParameter(entry.name, input->attrs);
  }
  attached_ = true;
}

void StateStore::CheckLayout(const codegen::Plan& plan) const {
  for (const StateLayout::Entry& entry : StateOf(plan).entries) {
    const StateLayout::Entry* here = layout_.Find(entry.name);
    FUSOR_CHECK(
        here != nullptr && here->type == entry.type &&
            here->offset == entry.offset,
        kGraph, "program {}: state {}: expected {}, got {} at byte {}",
        plan.name, entry.name,
        here == nullptr
            ? "none"
            : fmt::format("{} at byte {}", ToString(here->type), here->offset),
        ToString(entry.type), entry.offset);
  }
}

const StateStore::Tensor& StateStore::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  FUSOR_CHECK(it != tensors_.end(), kCheckpoint, "the model has no tensor {}",
              name);
  return it->second;
}

void* StateStore::Address(const Tensor& tensor) const {
  return static_cast<char*>(memory_->data()) + tensor.entry.offset;
}

ir::InputRole StateStore::Role(const std::string& name) const {
  return Find(name).role;
}

bool StateStore::IsShard(const std::string& name) const {
  return ir::IsShard(Find(name).attrs);
}

bool StateStore::IsParameterShard(const std::string& name) const {
  return IsShardOfParameter(name, Find(name).attrs);
}

bool StateStore::IsSharded(const std::string& parameter) const {
  return Has(ir::ShardName(parameter));
}

bool StateStore::HoldsShardedParameter(const Tensor& tensor) const {
  return IsSharded(tensor.role == ir::InputRole::kWeightCopy
                       ? ir::CopiedWeight(tensor.attrs)
                       : tensor.entry.name);
}

ir::TensorType StateStore::LogicalType(const std::string& name) const {
  const Tensor& tensor = Find(name);
  if (ir::IsShard(tensor.attrs)) {
    ir::TensorType type = GatheredType(name);
    type.layout = {};
    return type;
  }
  return {tensor.entry.type.dtype, tensor.entry.type.shape, {}};
}

// Shards are cut from elements in the order of the parameter's layout.
ir::TensorType StateStore::GatheredType(const std::string& shard) const {
  const Tensor& tensor = Find(shard);
  FUSOR_CHECK(ir::IsShard(tensor.attrs), kUsage, "state {}: is not sharded",
              shard);
  ir::TensorType type = Find(ShardedParameter(tensor.attrs)).entry.type;
  type.dtype = tensor.entry.type.dtype;
  return type;
}

void StateStore::Require(ParameterView view, const std::string& reader) {
  if (device_.world_size() == 1) return Show(view);
  const Contents required = ContentsOf(view);
  FUSOR_CHECK(!has_shards_ || contents_ == required, kUsage,
              "{}: expected {} of sharded parameters, got {}: call "
              "StateStore::Show on every rank first",
              reader, ContentsName(required), ContentsName(contents_));
}

void StateStore::BeforeRun(const codegen::Plan& plan,
                           const ShardUpdates& updates) {
  if (updates.any) wholes_.clear();
  if (updates.gathers_first) {
    contents_ = Contents::kPrevious;
    return;
  }
  const bool current = contents_ == Contents::kCurrent ||
                       (contents_ == Contents::kAverages && !updates.any);
  if (!current)
    Require(ParameterView::kCurrent, fmt::format("program {}", plan.name));
}

// --- Reading and writing -----------------------------------------------------

std::vector<uint8_t> StateStore::LoadBytes(const Tensor& tensor) const {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(tensor.entry.type.num_bytes()));
  device_.stream.CopyToHost(bytes.data(), Address(tensor), bytes.size());
  device_.Synchronize();
  return bytes;
}

void StateStore::StoreBytes(const Tensor& tensor,
                            std::span<const uint8_t> bytes) {
  device_.stream.CopyToDevice(Address(tensor), bytes.data(), bytes.size());
  device_.Synchronize();
}

void StateStore::Store(const Tensor& tensor, std::vector<double> elements) {
  std::vector<uint8_t> bytes(
      static_cast<size_t>(tensor.entry.type.num_bytes()));
  ir::StoreTensor({tensor.entry.type, std::move(elements)}, bytes.data());
  StoreBytes(tensor, bytes);
}

std::vector<float> StateStore::Read(const std::string& name) {
  const Tensor& tensor = Find(name);
  if (contents_ == Contents::kPrevious && HoldsShardedParameter(tensor)) {
    Require(ParameterView::kCurrent, fmt::format("reading {}", name));
  }
  const ir::Tensor values =
      ir::LoadTensor(tensor.entry.type, LoadBytes(tensor).data());
  return {values.data.begin(), values.data.end()};
}

namespace {

// Stores elements that come in row-major order into a tensor of the device's
// memory, rounded to `rounding`. Tensors that are not row-major are converted
// in host memory first.
class TensorWriter {
 public:
  TensorWriter(const RankDevice& device, void* address,
               const ir::TensorType& type, ir::DType rounding)
      : device_(device), address_(address), type_(type), rounding_(rounding) {
    if (!type.layout.is_row_major()) physical_.resize(type.num_bytes());
  }

  // `elements`: the next ones, of `dtype`.
  void Append(ir::DType dtype, std::span<const uint8_t> elements) {
    const std::vector<uint8_t> rounded =
        Convert(dtype, elements, rounding_, &elements);
    const std::vector<uint8_t> stored =
        Convert(rounding_, elements, type_.dtype, &elements);
    if (physical_.empty()) {
      Copy(elements);
    } else {
      ir::FromRowMajor(type_, elements, physical_, done_);
    }
    done_ += static_cast<int64_t>(elements.size()) / ir::DTypeSize(type_.dtype);
  }

  // Call after the last element.
  void Finish() {
    FUSOR_ASSERT(done_ == type_.num_elements(), "{} elements of {}", done_,
                 ToString(type_));
    done_ = 0;
    if (!physical_.empty()) Copy(physical_);
  }

 private:
  // Points `elements` to the result, which lives in the returned bytes unless
  // the dtypes are equal.
  static std::vector<uint8_t> Convert(ir::DType from,
                                      std::span<const uint8_t> bytes,
                                      ir::DType to,
                                      std::span<const uint8_t>* elements) {
    if (from == to) return {};
    std::vector<uint8_t> converted(bytes.size() / ir::DTypeSize(from) *
                                   ir::DTypeSize(to));
    ir::ConvertElements(from, bytes, to, converted);
    *elements = converted;
    return converted;
  }

  void Copy(std::span<const uint8_t> bytes) {
    device_.stream.CopyToDevice(
        static_cast<char*>(address_) + done_ * ir::DTypeSize(type_.dtype),
        bytes.data(), bytes.size());
    device_.Synchronize();
  }

  const RankDevice& device_;
  void* const address_;
  const ir::TensorType& type_;
  const ir::DType rounding_;
  std::vector<uint8_t> physical_;  // empty if row-major
  int64_t done_ = 0;               // elements
};

std::span<const uint8_t> BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

int64_t WriteBufferBytes(const codegen::Plan& plan) {
  const StateLayout layout = StateOf(plan);
  std::map<std::string, int64_t> bytes;  // by weight, with its copies
  for (const codegen::PlanInput& input : plan.inputs) {
    const StateLayout::Entry* entry = layout.Find(input.name);
    if (entry == nullptr || entry->type.layout.is_row_major()) continue;
    const bool copy = input.role == ir::InputRole::kWeightCopy;
    bytes[copy ? ir::CopiedWeight(input.attrs) : input.name] +=
        entry->type.num_bytes();
  }
  int64_t most = 0;
  for (const auto& [name, needed] : bytes) most = std::max(most, needed);
  return most;
}

void StateStore::Write(const std::string& name, std::span<const float> values) {
  const Tensor& tensor = Find(name);
  const ir::TensorType& type = tensor.entry.type;
  FUSOR_CHECK(static_cast<int64_t>(values.size()) == type.num_elements(),
              kCheckpoint, "tensor {}: expected {} elements, got {}", name,
              type.num_elements(), values.size());
  if (ir::IsShard(tensor.attrs)) {  // this rank's alone
    return Store(tensor, {values.begin(), values.end()});
  }
  Write(ir::SourceOf(name, {ir::DType::kF32, type.shape, {}}, BytesOf(values)));
}

void StateStore::WriteBytes(const std::string& name,
                            std::span<const uint8_t> row_major) {
  Write(ir::SourceOf(name, LogicalType(name), row_major));
}

void StateStore::Write(const ir::TensorSource& source) {
  const std::string& name = source.name;
  const Tensor& tensor = Find(name);
  const ir::DType dtype = tensor.entry.type.dtype;
  FUSOR_ASSERT(source.type.shape == LogicalType(name).shape, "{}: {}", name,
               ToString(source.type));
  if (ir::IsShard(tensor.attrs)) {
    std::vector<uint8_t> whole = ir::ReadWhole(ir::Converted(source, dtype));
    StoreShard(tensor, whole);
    if (device_.world_size() > 1 && device_.rank() == 0) {
      wholes_[name] = std::move(whole);
    }
    return;
  }
  if (HoldsShardedParameter(tensor)) {
    Require(ParameterView::kCurrent, fmt::format("writing {}", name));
  }
  if (IsSharded(name)) {
    StoreShard(Find(ir::ShardName(name)),
               ir::ReadWhole(ir::Converted(source, dtype)));
  }
  std::vector<TensorWriter> writers;
  writers.emplace_back(device_, Address(tensor), tensor.entry.type, dtype);
  for (const Tensor* copy : CopiesOf(name)) {
    writers.emplace_back(device_, Address(*copy), copy->entry.type,
                         ir::CopyRounding(copy->attrs));
  }
  ir::ForEachPiece(source, [&](int64_t, std::span<const uint8_t> piece) {
    for (TensorWriter& writer : writers) {
      writer.Append(source.type.dtype, piece);
    }
  });
  for (TensorWriter& writer : writers) writer.Finish();
}

void StateStore::RoundCopies(const std::string& weight,
                             std::span<const double> elements) {
  for (const Tensor* copy : CopiesOf(weight)) {
    const ir::DType rounding = ir::CopyRounding(copy->attrs);
    std::vector<double> rounded(elements.begin(), elements.end());
    for (double& x : rounded) x = ir::RoundTo(rounding, x);
    Store(*copy, std::move(rounded));
  }
}

std::vector<const StateStore::Tensor*> StateStore::CopiesOf(
    const std::string& weight) const {
  std::vector<const Tensor*> copies;
  for (const StateLayout::Entry& entry : layout_.entries) {
    const Tensor& tensor = Find(entry.name);
    if (tensor.role == ir::InputRole::kWeightCopy &&
        ir::CopiedWeight(tensor.attrs) == weight) {
      copies.push_back(&tensor);
    }
  }
  return copies;
}

// Pads the last shard with zeros.
void StateStore::StoreShard(const Tensor& shard,
                            std::span<const uint8_t> whole) {
  std::vector<uint8_t> physical(whole.size());
  ir::FromRowMajor(GatheredType(shard.entry.name), whole, physical);
  std::vector<uint8_t> own(static_cast<size_t>(shard.entry.type.num_bytes()),
                           0);
  const size_t first = std::min(
      physical.size(), static_cast<size_t>(device_.rank()) * own.size());
  const size_t count = std::min(own.size(), physical.size() - first);
  std::copy_n(physical.begin() + static_cast<ptrdiff_t>(first), count,
              own.begin());
  StoreBytes(shard, own);
}

ir::DType StateStore::EnqueueScalar(const std::string& name, void* to) {
  const Tensor& tensor = Find(name);
  FUSOR_ASSERT(tensor.entry.type.num_elements() == 1, "{} is not a scalar",
               name);
  if (contents_ == Contents::kPrevious && HoldsShardedParameter(tensor)) {
    Require(ParameterView::kCurrent, fmt::format("reading {}", name));
  }
  device_.stream.CopyToHost(to, Address(tensor),
                            static_cast<size_t>(tensor.entry.type.num_bytes()));
  return tensor.entry.type.dtype;
}

// --- Initial values ----------------------------------------------------------

// Writes chunks, several at a time. A host copy of a whole tensor, especially
// in f64, would double the memory that a large model needs.
void StateStore::WriteInitialValues(const Tensor& tensor,
                                    const InitialTensor& values,
                                    ir::DType rounding) {
  constexpr int64_t kChunk = int64_t{1} << 17;  // elements
  constexpr int64_t kChunksAtATime = 8;
  const ir::TensorType& type = tensor.entry.type;
  const int64_t elements = type.num_elements();
  const int64_t size = ir::DTypeSize(type.dtype);
  const auto draw = [&](int64_t first, std::span<uint8_t> bytes) {
    std::vector<float> drawn(bytes.size() / size);
    values.Fill(type, first, drawn);
    if (type.dtype == ir::DType::kF32 && rounding == ir::DType::kF32) {
      std::memcpy(bytes.data(), drawn.data(), bytes.size());
      return;
    }
    ir::Tensor chunk{{type.dtype, {static_cast<int64_t>(drawn.size())}, {}},
                     {drawn.begin(), drawn.end()}};
    for (double& x : chunk.data) x = ir::RoundTo(rounding, x);
    ir::StoreTensor(chunk, bytes);
  };
  std::vector<uint8_t> bytes;
  for (int64_t first = 0; first < elements; first += kChunksAtATime * kChunk) {
    const int64_t count = std::min(kChunksAtATime * kChunk, elements - first);
    bytes.resize(count * size);
    ParallelFor((count + kChunk - 1) / kChunk, threads_, [&](size_t chunk) {
      const int64_t begin = static_cast<int64_t>(chunk) * kChunk;
      const int64_t end = std::min(begin + kChunk, count);
      draw(first + begin,
           std::span(bytes).subspan(begin * size, (end - begin) * size));
    });
    device_.stream.CopyToDevice(
        static_cast<char*>(Address(tensor)) + first * size, bytes.data(),
        bytes.size());
    device_.Synchronize();
  }
}

void StateStore::Initialize(uint64_t seed) {
  FUSOR_CHECK(attached_, kUsage,
              "session: initial state: expected a program, there is none");
  contents_ = Contents::kCurrent;
  wholes_.clear();
  for (const StateLayout::Entry& entry : layout_.entries) {
    const Tensor& tensor = Find(entry.name);
    if (tensor.role == ir::InputRole::kWeightCopy ||
        IsShardOfParameter(entry.name, tensor.attrs)) {
      continue;
    }
    if (HoldsShardedParameter(tensor)) {
      Write(entry.name, InitialValues(tensor.attrs, entry.type.num_elements(),
                                      entry.name, seed));
      continue;
    }
    const InitialTensor values(tensor.attrs, entry.name, seed);
    WriteInitialValues(tensor, values, entry.type.dtype);
    for (const Tensor* copy : CopiesOf(entry.name)) {
      WriteInitialValues(*copy, values, ir::CopyRounding(copy->attrs));
    }
  }
}

// --- Collectives -------------------------------------------------------------

void StateStore::Broadcast(StateSubset subset) {
  if (subset == StateSubset::kStatistics) return BroadcastStatistics();
  Show(ParameterView::kCurrent);
  if (device_.world_size() == 1) return;
  // Ranks keep the shards for which rank 0 was given no whole tensor.
  std::vector<const Tensor*> shards;
  std::vector<uint8_t> has_whole;
  std::vector<std::vector<uint8_t>> own;
  for (const StateLayout::Entry& entry : layout_.entries) {
    const Tensor& tensor = Find(entry.name);
    if (!ir::IsShard(tensor.attrs) ||
        IsShardOfParameter(entry.name, tensor.attrs)) {
      continue;
    }
    shards.push_back(&tensor);
    has_whole.push_back(wholes_.contains(entry.name) ? 1 : 0);
  }
  device_.BroadcastHost(has_whole);
  for (size_t i = 0; i < shards.size(); ++i) {
    own.push_back(has_whole[i] != 0 ? std::vector<uint8_t>{}
                                    : LoadBytes(*shards[i]));
  }
  device_.Broadcast(data(), layout_.bytes);
  for (size_t i = 0; i < shards.size(); ++i) {
    if (has_whole[i] == 0) {
      StoreBytes(*shards[i], own[i]);
      continue;
    }
    const std::string& name = shards[i]->entry.name;
    std::vector<uint8_t>& whole = wholes_[name];
    whole.resize(static_cast<size_t>(LogicalType(name).num_bytes()));
    device_.BroadcastHost(whole);
    StoreShard(*shards[i], whole);
  }
  wholes_.clear();
  for (const StateLayout::Entry& entry : layout_.entries) {
    if (IsSharded(entry.name)) Write(entry.name, Read(entry.name));
  }
}

// Statistics are stored contiguously.
void StateStore::BroadcastStatistics() {
  int64_t begin = layout_.bytes;
  int64_t end = 0;
  for (const StateLayout::Entry& entry : layout_.entries) {
    if (Role(entry.name) != ir::InputRole::kStatistic) continue;
    begin = std::min(begin, entry.offset);
    end = std::max(end, entry.offset + entry.type.num_bytes());
  }
  if (begin >= end) return;
  device_.Broadcast(static_cast<char*>(data()) + begin, end - begin);
}

void StateStore::Show(ParameterView view) {
  if (!has_shards_ || contents_ == ContentsOf(view)) return;
  const bool averages = view == ParameterView::kAverages;
  for (const StateLayout::Entry& entry : layout_.entries) {
    if (!IsParameterShard(entry.name)) continue;
    const std::string& parameter = ShardedParameter(Find(entry.name).attrs);
    const std::string average = ir::AverageName(parameter);
    const std::vector<uint8_t> whole =
        GatherShard(averages && Has(average) ? average : entry.name);
    ir::Tensor values = ir::LoadTensor(LogicalType(parameter), whole.data());
    RoundCopies(parameter, values.data);
    Store(Find(parameter), std::move(values.data));
  }
  contents_ = ContentsOf(view);
}

std::vector<uint8_t> StateStore::GatherShard(const std::string& name) const {
  const ir::TensorType type = GatheredType(name);
  std::vector<uint8_t> whole = device_.AllGather(LoadBytes(Find(name)));
  whole.resize(static_cast<size_t>(type.num_bytes()));
  if (type.layout.is_row_major()) return whole;
  std::vector<uint8_t> row_major(whole.size());
  ir::ToRowMajor(type, whole, row_major);
  return row_major;
}

ir::TensorSource StateStore::Source(const std::string& name) {
  const Tensor& tensor = Find(name);
  const ir::TensorType logical = LogicalType(name);
  const bool shard = ir::IsShard(tensor.attrs);
  if (contents_ == Contents::kPrevious && HoldsShardedParameter(tensor)) {
    Require(ParameterView::kCurrent, fmt::format("reading {}", name));
  }
  const ir::TensorType& type = tensor.entry.type;
  if (!shard && type.layout.is_row_major()) {
    return {name, logical,
            [this, &tensor](int64_t offset, std::span<uint8_t> bytes) {
              device_.stream.CopyToHost(
                  bytes.data(),
                  static_cast<const char*>(Address(tensor)) + offset,
                  bytes.size());
              device_.Synchronize();
            }};
  }
  // Holds the tensor between reads from its start to its end.
  const auto held = std::make_shared<std::vector<uint8_t>>();
  return {name, logical,
          [this, &tensor, shard, logical, held](int64_t offset,
                                                std::span<uint8_t> bytes) {
            if (offset == 0 || held->empty()) {
              *held =
                  shard ? GatherShard(tensor.entry.name) : LoadBytes(tensor);
            }
            ir::ToRowMajor(shard ? logical : tensor.entry.type, *held, bytes,
                           offset / ir::DTypeSize(logical.dtype));
            const auto end = static_cast<size_t>(offset) + bytes.size();
            if (end == held->size()) *held = std::vector<uint8_t>();
          }};
}

void StateStore::CopyTo(const std::string& name, std::span<uint8_t> bytes) {
  const Tensor& tensor = Find(name);
  if (ir::IsShard(tensor.attrs)) {
    const std::vector<uint8_t> whole = GatherShard(name);
    FUSOR_ASSERT(bytes.size() == whole.size(), "{}: {} bytes for {}", name,
                 bytes.size(), whole.size());
    std::memcpy(bytes.data(), whole.data(), whole.size());
    return;
  }
  Require(ParameterView::kCurrent, "copying the state");
  FUSOR_ASSERT(
      static_cast<int64_t>(bytes.size()) == tensor.entry.type.num_bytes(),
      "{}: {} bytes for {}", name, bytes.size(), ToString(tensor.entry.type));
  device_.stream.CopyToHost(bytes.data(), Address(tensor), bytes.size());
  device_.Synchronize();
}

}  // namespace fusor::runtime
