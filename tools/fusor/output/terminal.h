#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace fusor::tools {

// Replaces stdout, stderr and std::cout by streams that cooperate with a status
// line on the terminal. When the reader of a stream is gone, the stream
// discards its text and calls `reader_gone` once. Call first in main.
void ReplaceStandardStreams(void (*reader_gone)());

// Discards what is printed to terminals from now on. Async-signal-safe.
void LeaveTerminals();

// Shows the text as the last line of the terminal at stderr, replacing the
// previous status line. Does nothing if stderr is not a terminal. The next
// output of the streams removes the status line first.
void ShowStatusLine(std::string_view text);
// Removes the status line. Async-signal-safe.
void ClearStatusLine();

// Makes the next output clear the line, where the terminal has shown a key such
// as ^C. Async-signal-safe.
void ExpectEchoedKey();

// Returns the columns of the terminal at stderr; 0 if it is not a terminal.
int TerminalColumns();

// Prints "warning: ..." to stderr.
void Warn(const std::string& text);

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
