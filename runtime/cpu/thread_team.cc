#include "runtime/cpu/thread_team.h"

#include <omp.h>
#include <xmmintrin.h>

#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"

namespace fusor::cpu {
namespace {

constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;

// The OpenMP runtime ends the process if it cannot start a thread, so starts
// and ends as many before it does.
void CheckThreads(int threads) {
  const runtime::SignalsBlocked blocked;
  std::latch all_started(1);
  std::vector<std::thread> started;
  std::string reason;
  try {
    for (int i = 0; i < threads; ++i) {
      started.emplace_back([&] { all_started.wait(); });
    }
  } catch (const std::system_error& error) {
    reason = error.code().message();
  }
  all_started.count_down();
  for (std::thread& thread : started) thread.join();
  FUSOR_CHECK(reason.empty(), kOutOfMemory,
              "CPU device: expected to start {} threads, the system started "
              "{}: {}",
              threads, started.size(), reason);
}

}  // namespace

FlushSubnormals::FlushSubnormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
}

FlushSubnormals::~FlushSubnormals() { _mm_setcsr(saved_); }

void StartTeam(int threads) {
  CheckThreads(threads - 1);
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() > 0) {
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
  }
}

}  // namespace fusor::cpu
