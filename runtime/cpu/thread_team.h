#pragma once

#include <omp.h>

#include <cstdint>

namespace fusor::cpu {

// While it lives, the calling thread flushes subnormal results and operands to
// zero. They take up to a hundred times as long as normal numbers.
class FlushSubnormals {
 public:
  FlushSubnormals();
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

// Starts the team's workers and makes them flush subnormals permanently. Only
// one thread of a process may own a team: the one that launches work. Throws
// kOutOfMemory if the system cannot start that many threads.
void StartTeam(int threads);

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
