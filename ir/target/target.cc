#include "ir/target/target.h"

#include <sched.h>

#include <algorithm>

#include "ir/support/error.h"
#include "ir/target/descriptions.h"

namespace fusor::ir {
namespace {

int AvailableThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more than 1,024 logical CPUs; then use one thread.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

TargetQueries::~TargetQueries() = default;

int64_t Target::channel_block() const {
  FUSOR_ASSERT(!simt, "{}: a GPU has no blocked layouts", name);
  return vector_bytes / static_cast<int64_t>(sizeof(float));
}

std::vector<std::string> TargetNames() { return NamesOf(TargetDescriptions()); }

Target FindTarget(std::string_view name) {
  return ParseTarget(FindDescription(TargetDescriptions(), "target", name).text,
                     name);
}

Target WithThreads(Target target, int threads) {
  FUSOR_ASSERT(threads >= 1, "{} threads", threads);
  const double scale = static_cast<double>(threads) / target.threads;
  target.threads = threads;
  target.peak_gflops_f32 *= scale;
  target.peak_gflops_16 *= scale;
  target.memory_gb_per_s =
      std::min(target.memory_gb_per_s * scale, target.memory_gb_per_s_limit);
  return target;
}

Target DefaultCpuTarget() {
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0;
  const bool amx = avx512 && __builtin_cpu_supports("avx512bf16") != 0 &&
                   __builtin_cpu_supports("amx-bf16") != 0;
  return WithThreads(FindTarget(amx      ? "cpu-amx"
                                : avx512 ? "cpu-avx512"
                                         : "cpu-avx2"),
                     AvailableThreads());
}

}  // namespace fusor::ir
