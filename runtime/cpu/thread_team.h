#pragma once

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

}  // namespace fusor::cpu
