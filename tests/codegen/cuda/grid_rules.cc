#include "tests/codegen/cuda/grid_rules.h"

#include "tools/inspect/report/traffic.h"

namespace fusor::test {
namespace {

constexpr int64_t kFewBlocksLoad = 200'000;  // bytes

// Returns why another grid would save next to nothing, or nullptr.
const char* ReasonFor(const inspect::GpuLaunch& launch) {
  const double loss = launch.us - launch.least_us;
  if (loss <= 0.01 * launch.least_us) {
    return "the blocks, or those of the last wave alone, keep memory busy";
  }
  return loss <= 1 ? "another grid would save at most 1 us" : nullptr;
}

}  // namespace

int64_t LoadedBytes(const codegen::Kernel& kernel,
                    const codegen::Phase& phase) {
  const std::vector<int64_t> bytes = inspect::TrafficByBuffer(kernel, phase);
  std::vector<bool> loaded(bytes.size());
  codegen::VisitStatements(phase.body, [&](const codegen::Stmt& stmt) {
    if (stmt.kind == codegen::StmtKind::kLoad ||
        stmt.kind == codegen::StmtKind::kGather) {
      loaded[stmt.buffer] = true;
    }
  });
  int64_t sum = 0;
  for (size_t b = 0; b < bytes.size(); ++b) sum += loaded[b] ? bytes[b] : 0;
  return sum;
}

std::vector<BrokenGridRule> BrokenGridRules(const inspect::GpuLaunch& launch,
                                            int64_t loaded_bytes,
                                            int64_t multiprocessors) {
  std::vector<BrokenGridRule> broken;
  if (launch.blocks < multiprocessors && loaded_bytes > kFewBlocksLoad) {
    broken.push_back({"few blocks", ReasonFor(launch)});
  }
  const double waves = launch.waves;
  if ((waves > 1.05 && waves < 1.6) || (waves > 2.05 && waves < 2.6)) {
    broken.push_back({"waves", ReasonFor(launch)});
  }
  return broken;
}

}  // namespace fusor::test
