#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/backend/communicator.h"

namespace fusor::null {

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

// Opens a device that computes nothing. Its memory is host memory and copies
// are performed, so that written data can be read back. Launches only check
// that their arguments are its memory and log to `log`, which must outlive it.
std::unique_ptr<runtime::Device> OpenNullDevice(NullLog& log);

// A rank without peers. It logs each call to `log`, which must outlive it, and
// leaves all data unchanged:
//
//   collective 0 starts all_reduce f32 4096
//   collective 0 is waited for
class NullCommunicator : public runtime::Communicator {
 public:
  NullCommunicator(NullLog& log, int rank, int world_size)
      : log_(log), rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  std::string description() const override { return "null"; }
  int64_t Start(const runtime::Collective& collective,
                runtime::Stream& stream) override;
  void Wait(int64_t number, runtime::Stream& stream) override;
  void Abort(const std::string& why) noexcept override;
  std::vector<runtime::CollectiveTime> TakeTimes() override { return {}; }

 private:
  NullLog& log_;
  const int rank_;
  const int world_size_;
  int64_t started_ = 0;
};

}  // namespace fusor::null
