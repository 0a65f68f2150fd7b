#include "runtime/cpu/thread_team.h"

#include <omp.h>
#include <xmmintrin.h>

namespace fusor::cpu {
namespace {

constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kDenormalsAreZero = 0x0040;

}  // namespace

FlushSubnormals::FlushSubnormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
}

FlushSubnormals::~FlushSubnormals() { _mm_setcsr(saved_); }

void StartTeam(int threads) {
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() > 0) {
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
  }
}

}  // namespace fusor::cpu
