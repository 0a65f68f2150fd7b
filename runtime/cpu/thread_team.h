#pragma once

namespace fusor::cpu {

// While it lives, the calling thread's OpenMP regions - ours and oneDNN's -
// have `threads` threads. Enters no region itself.
class ThreadCount {
 public:
  explicit ThreadCount(int threads);
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int saved_;
};

// While it lives, the calling thread treats subnormals as zero, as results and
// as operands: they cost up to a hundred times a normal number's time.
class FlushSubnormals {
 public:
  FlushSubnormals();
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

// Starts the team's workers and has them flush subnormals for good. Exactly one
// thread of a process may own a team: the one that launches work.
void StartTeam(int threads);

}  // namespace fusor::cpu
