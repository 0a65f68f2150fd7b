#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/checkpoint/checkpoint_folder.h"

namespace fusor::runtime {

// Saves checkpoints of a running session on a separate thread. The session
// waits only while its state is copied. One checkpoint is written at a time;
// another save waits for it.
class CheckpointWriter {
 public:
  // If the folder exists, throws what CheckpointFolder throws; otherwise the
  // first save creates it. `keep`: see CheckpointFolder::Prune.
  CheckpointWriter(std::string folder, int keep);
  // Waits for the last save.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Copies the state and returns. A failed save is a warning; the third
  // consecutive failure is thrown by the next Save or Finish.
  void Save(StateStore& state, const CheckpointHeader& header);
  // Waits for the last save and frees its copy of the state; throws if it
  // failed.
  void Finish();

  // Return the paths of checkpoints that were saved since the last call, and
  // the messages of failed saves. A failure is listed once another save has
  // started.
  std::vector<std::string> TakeSaved();
  std::vector<std::string> TakeWarnings();

 private:
  void Work();
  void SaveNow();
  void Wait(std::unique_lock<std::mutex>& lock);

  const std::string path_;
  const int keep_;
  std::unique_ptr<CheckpointFolder> folder_;  // the thread's, once it runs

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool busy_ = false;  // header_ and snapshot_ are being written
  CheckpointHeader header_;
  StateSnapshot snapshot_;
  int failures_ = 0;          // consecutive
  std::exception_ptr error_;  // of the last save
  std::string reason_;        // its message
  std::vector<std::string> saved_;
  std::vector<std::string> warnings_;

  std::thread thread_;
};

}  // namespace fusor::runtime
