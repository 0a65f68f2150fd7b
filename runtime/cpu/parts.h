#pragma once

#include <omp.h>

#include <cstdint>

namespace fusor::cpu {

struct IndexRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Returns the share of `part` when `parts` divide `total` indices.
inline IndexRange Share(int64_t total, int64_t part, int64_t parts) {
  return {total * part / parts, total * (part + 1) / parts};
}

// Runs all parts on the available threads, of which there may be fewer.
template <typename Body>
void ForParts(int64_t parts, const Body& body) {
#pragma omp parallel
  for (int64_t part = omp_get_thread_num(); part < parts;
       part += omp_get_num_threads()) {
    body(part);
  }
}

}  // namespace fusor::cpu
