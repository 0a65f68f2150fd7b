#include "codegen/cpu/thread_count.h"

#include <omp.h>

namespace fusor::cpu {

ThreadCount::ThreadCount(int threads) : saved_(omp_get_max_threads()) {
  omp_set_num_threads(threads);
}

ThreadCount::~ThreadCount() { omp_set_num_threads(saved_); }

}  // namespace fusor::cpu
