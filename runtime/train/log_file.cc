#include <fmt/core.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>

#include "ir/support/error.h"
#include "runtime/train/train_log.h"

namespace fusor::runtime {

LogFile::LogFile(const std::string& path, bool append)
    : path_(path), file_(std::fopen(path.c_str(), append ? "ae" : "we")) {
  FUSOR_CHECK(file_ != nullptr, kUsage, "cannot write {}: {}", path,
              std::strerror(errno));
}

LogFile::~LogFile() { std::fclose(file_); }

void LogFile::Write(std::string_view bytes) {
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file_);
  FUSOR_CHECK(written == bytes.size() && std::fflush(file_) == 0, kUsage,
              "cannot write {}: {}", path_, std::strerror(errno));
}

double WallSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string Timestamp(double wall_seconds) {
  const auto micros = std::llround(wall_seconds * 1e6);
  const auto seconds = static_cast<std::time_t>(micros / 1'000'000);
  std::tm local = {};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("{}.{:06}", text, micros % 1'000'000);
}

}  // namespace fusor::runtime
