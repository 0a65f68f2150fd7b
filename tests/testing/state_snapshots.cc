#include "tests/testing/state_snapshots.h"

#include <fmt/core.h>

#include <cstring>

#include "ir/support/philox.h"

namespace fusor::test {

using ir::DType;
using ir::InputRole;
using ir::TensorType;

runtime::StateSnapshot MakeState(uint64_t seed, int64_t elements) {
  runtime::StateSnapshot state;
  const auto add = [&](const char* name, InputRole role, TensorType type) {
    state.layout.entries.push_back({name, type, state.layout.bytes});
    state.roles.push_back(role);
    state.layout.bytes += (type.num_bytes() + 63) / 64 * 64;
  };
  const ir::Layout blocked = ir::ParseLayout("aBcd16b");
  add("conv.weight", InputRole::kWeight, {DType::kF32, {2, 32, 3, 1}, blocked});
  add("fc.weight", InputRole::kWeight, {DType::kF32, {elements}, {}});
  add("bn.running_mean", InputRole::kStatistic, {DType::kF32, {7}, {}});
  add("momentum/conv.weight", InputRole::kOptimizerState,
      {DType::kF32, {2, 32, 3, 1}, blocked});
  add("copy/fc.weight", InputRole::kOptimizerState,
      {DType::kBF16, {elements}, {}});
  add("good_steps", InputRole::kOptimizerState, {DType::kI32, {}, {}});
  state.bytes.resize(static_cast<size_t>(state.layout.bytes));
  for (size_t i = 0; i < state.bytes.size(); i += 16) {
    const auto block = Philox({static_cast<uint32_t>(i), 0, 0, 0}, seed);
    std::memcpy(&state.bytes[i], block.data(), sizeof(block));
  }
  return state;
}

runtime::CheckpointHeader MakeHeader(int64_t step) {
  const std::string text = fmt::format("{}", step);
  return {.step = step,
          .epoch = step + 1,
          .batch = step + 2,
          .seed = ~static_cast<uint64_t>(step),
          .evaluation_due = step % 2 == 1,
          .best_top1 = 1 / static_cast<double>(step),
          .loss_hash = ~uint64_t{0} - static_cast<uint64_t>(step),
          .identity = {{"--arch", "a" + text}},
          .options = {{"--lr", text}},
          .version = "v" + text};
}

}  // namespace fusor::test
