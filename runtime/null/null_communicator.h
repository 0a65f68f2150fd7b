#pragma once

#include <string>
#include <vector>

#include "runtime/backend/communicator.h"
#include "runtime/null/null_log.h"

namespace fusor::null {

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
