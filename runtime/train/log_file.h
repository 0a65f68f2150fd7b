#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace fusor::runtime {

// A file written line by line and flushed after each write. Failures throw
// kUsage with the system's error message.
class LogFile {
 public:
  // Truncates the file unless `append` is set.
  LogFile(const std::string& path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void Write(std::string_view bytes);

 private:
  const std::string path_;
  std::FILE* file_;
};

// Returns seconds since 1970.
double WallSeconds();
// Formats local time as "2020-09-15 14:29:13.473765".
std::string Timestamp(double wall_seconds);

}  // namespace fusor::runtime
