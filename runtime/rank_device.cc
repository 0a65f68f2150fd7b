#include "runtime/rank_device.h"

#include <algorithm>

#include "runtime/backend/communicator.h"

namespace fusor::runtime {

int RankDevice::rank() const {
  return communicator == nullptr ? 0 : communicator->rank();
}

int RankDevice::world_size() const {
  return communicator == nullptr ? 1 : communicator->world_size();
}

std::unique_ptr<Memory> RankDevice::AllocateShared(size_t bytes) const {
  return communicator == nullptr ? device.Allocate(bytes)
                                 : communicator->Allocate(device, bytes);
}

void RankDevice::Synchronize() const {
  stream.Synchronize();
  if (communicator != nullptr) communicator->Check();
}

void RankDevice::Broadcast(void* data, int64_t bytes) const {
  if (world_size() == 1 || bytes == 0) return;
  communicator->Run({.kind = CollectiveKind::kBroadcast,
                     .data = data,
                     .elements = bytes,
                     .dtype = ir::DType::kU8},
                    stream);
  Synchronize();
}

void RankDevice::BroadcastHost(std::span<uint8_t> bytes) const {
  if (world_size() == 1 || bytes.empty()) return;
  const auto memory = device.Allocate(bytes.size());
  stream.CopyToDevice(memory->data(), bytes.data(), bytes.size());
  Broadcast(memory->data(), static_cast<int64_t>(bytes.size()));
  stream.CopyToHost(bytes.data(), memory->data(), bytes.size());
  Synchronize();
}

std::vector<uint8_t> RankDevice::AllGather(std::span<const uint8_t> own) const {
  std::vector<uint8_t> all(own.size() * static_cast<size_t>(world_size()));
  std::copy(own.begin(), own.end(),
            all.begin() + static_cast<ptrdiff_t>(own.size()) * rank());
  if (world_size() == 1 || own.empty()) return all;
  const auto memory = device.Allocate(all.size());
  stream.CopyToDevice(memory->data(), all.data(), all.size());
  communicator->Run({.kind = CollectiveKind::kAllGather,
                     .data = memory->data(),
                     .elements = static_cast<int64_t>(all.size()),
                     .dtype = ir::DType::kU8},
                    stream);
  stream.CopyToHost(all.data(), memory->data(), all.size());
  Synchronize();
  return all;
}

}  // namespace fusor::runtime
