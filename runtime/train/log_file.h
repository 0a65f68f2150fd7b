#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace fusor::runtime {

// A file that grows line by line and is up to date after each. Failures throw
// kUsage with the system's reason.
class LogFile {
 public:
  // Empties the file, unless it is to be appended to.
  LogFile(const std::string& path, bool append);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  void Write(std::string_view bytes);

 private:
  const std::string path_;
  std::FILE* file_;
};

// Seconds since 1970.
double WallSeconds();
// "2020-09-15 14:29:13.473765", local time.
std::string Timestamp(double wall_seconds);

}  // namespace fusor::runtime
