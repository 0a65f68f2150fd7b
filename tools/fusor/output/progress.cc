#include "tools/fusor/output/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/fusor/output/standard_streams.h"

namespace fusor::tools {
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
