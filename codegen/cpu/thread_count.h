#pragma once

namespace fusor::cpu {

// While it lives, OpenMP regions of the calling thread, including oneDNN's,
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

}  // namespace fusor::cpu
