#pragma once

#include <mutex>
#include <string>
#include <vector>

// A log of the calls to the null backend, one line each, in order:
//
//   allocate m0 4096 bytes
//   load kernel fusion_0
//   load call matmul
//   stream 0 to device m0+64 256 bytes
//   stream 0 launch fusion_0 m0+0 m0+640
//   stream 0 call matmul m0+640 m1+0 m1+128
//   stream 0 record e0
//   stream 1 wait e0
//   stream 1 to host m1+0 4 bytes
//   stream 1 synchronize
//
// Memory, streams and events are numbered per device, in order of creation.

namespace fusor::null {

struct NullLog {
  std::mutex mutex;
  std::vector<std::string> lines;

  void Add(std::string line) {
    const std::lock_guard lock(mutex);
    lines.push_back(std::move(line));
  }
  // Returns the lines so far and clears the log.
  std::vector<std::string> Take() {
    const std::lock_guard lock(mutex);
    return std::move(lines);
  }
};

// The name under which the plug-in exports its log:
//   extern "C" fusor::null::NullLog* FusorNullLog() noexcept;
inline constexpr char kNullLogEntry[] = "FusorNullLog";

}  // namespace fusor::null
