#include "tools/fusor/output/terminal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ext/stdio_sync_filebuf.h>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

namespace fusor::tools {

namespace {

// Whether stdin, stdout and stderr were terminals at program start.
std::array<bool, 3> on_terminal;
std::atomic<bool> has_status_line{false};
void (*on_reader_gone)() = nullptr;

// Async-signal-safe.
void Discard(int fd) {
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0) return;
  dup2(nowhere, fd);
  close(nowhere);
}

// Write callback of a stdio stream. The cookie is the file descriptor.
ssize_t Write(void* cookie, const char* bytes, size_t size) {
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(cookie));
  if (on_terminal[fd]) ClearStatusLine();
  size_t done = 0;
  while (done < size) {
    const ssize_t written = write(fd, bytes + done, size - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EPIPE) {
      Discard(fd);
      on_reader_gone();
    } else if (errno != EINTR) {
      break;
    }
  }
  return static_cast<ssize_t>(done);
}

// Keeps `stream` if no other stream can be allocated.
void Replace(FILE*& stream, int fd, int buffering) {
  FILE* const other = fopencookie(
      reinterpret_cast<void*>(intptr_t{fd}), "w",
      {.read = nullptr, .write = Write, .seek = nullptr, .close = nullptr});
  if (other == nullptr) return;
  std::setvbuf(other, nullptr, buffering, BUFSIZ);
  stream = other;
}

}  // namespace

void ReplaceStandardStreams(void (*reader_gone)()) {
  on_reader_gone = reader_gone;
  for (int fd = 0; fd < 3; ++fd) on_terminal[fd] = isatty(fd) != 0;
  Replace(stdout, STDOUT_FILENO, on_terminal[STDOUT_FILENO] ? _IOLBF : _IOFBF);
  Replace(stderr, STDERR_FILENO, _IONBF);
  // Leaked on purpose: std::cout is flushed after static destruction.
  std::cout.rdbuf(new __gnu_cxx::stdio_sync_filebuf<char>(stdout));
}

void LeaveTerminals() {
  for (int fd = 0; fd < 3; ++fd) {
    if (on_terminal[fd]) Discard(fd);
  }
}

void ShowStatusLine(std::string_view text) {
  if (!on_terminal[STDERR_FILENO]) return;
  const std::string line = "\r" + std::string(text) + "\033[K";
  has_status_line = true;
  // Ignore errors: the terminal may be gone.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line.size());
}

void ClearStatusLine() {
  if (!has_status_line.exchange(false)) return;
  constexpr std::string_view kClear = "\r\033[K";
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, kClear.data(), kClear.size());
}

void ExpectEchoedKey() {
  if (on_terminal[STDERR_FILENO]) has_status_line = true;
}

int TerminalColumns() {
  if (!on_terminal[STDERR_FILENO]) return 0;
  winsize size = {};
  constexpr int kUsual = 80;
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  return known && size.ws_col > 0 ? size.ws_col : kUsual;
}

void Warn(const std::string& text) {
  fmt::print(stderr, "warning: {}\n", text);
}

namespace {

// Returns e.g. "0:41", "2:03:00".
std::string Duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  const int64_t minutes = whole / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string Bar(double share, int width) {
  const auto filled = static_cast<size_t>(share * width);
  return "[" + std::string(filled, '=') +
         std::string(static_cast<size_t>(width) - filled, ' ') + "]";
}

}  // namespace

std::string ProgressLine(const std::string& task, int64_t done, int64_t total,
                         double seconds, int columns) {
  const double share =
      total > 0
          ? std::clamp(static_cast<double>(done) / static_cast<double>(total),
                       0.0, 1.0)
          : 1;
  const std::string count = fmt::format("{}/{}", done, total);
  const std::string percent =
      fmt::format("{} %", static_cast<int>(100 * share));
  const std::string left =
      seconds < 0 ? "" : fmt::format("  {} left", Duration(seconds));
  const std::string head = fmt::format("{}  {}", task, count);
  const std::string tail = percent + left;
  // Some terminals wrap the line at the last column.
  const auto room = static_cast<size_t>(std::max(columns - 1, 0));
  constexpr size_t kLeast = 8, kMost = 40;
  const size_t taken = head.size() + tail.size() + 4;
  if (taken + kLeast <= room) {
    return fmt::format(
        "{} {} {}", head,
        Bar(share, static_cast<int>(std::min(kMost, room - taken))), tail);
  }
  for (const std::string& line :
       {head + "  " + tail, count + "  " + tail, count + left, count}) {
    if (line.size() <= room) return line;
  }
  return count.substr(0, room);
}

Progress::Progress(std::string task) : task_(std::move(task)) {}

Progress::~Progress() { ClearStatusLine(); }

void Progress::Show(int64_t done, int64_t total) {
  const int columns = TerminalColumns();
  if (columns == 0) return;
  const Clock::time_point now = Clock::now();
  constexpr std::chrono::milliseconds kRedraw{100};
  if (first_ >= 0 && done < total && now - shown_ < kRedraw) return;
  double seconds = -1;
  if (first_ < 0) {
    first_ = done;
    start_ = now;
  } else if (done > first_) {
    seconds = std::chrono::duration<double>(now - start_).count() *
              static_cast<double>(total - done) /
              static_cast<double>(done - first_);
  }
  shown_ = now;
  ShowStatusLine(ProgressLine(task_, done, total, seconds, columns));
}

}  // namespace fusor::tools
