#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fusor::tools {

// Returns "train  12/90 [=====      ] 13 %  0:41 left" in at most `columns`
// columns. Omits what does not fit, the bar first. `seconds` left; negative:
// unknown.
std::string ProgressLine(const std::string& task, int64_t done, int64_t total,
                         double seconds, int columns);

// Shows progress and remaining time on stderr if it is a terminal.
class Progress {
 public:
  explicit Progress(std::string task);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(int64_t done, int64_t total);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string task_;
  int64_t first_ = -1;  // done at the first call
  Clock::time_point start_;
  Clock::time_point shown_;
};

}  // namespace fusor::tools
