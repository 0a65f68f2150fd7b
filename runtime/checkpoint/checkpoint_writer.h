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

// Saves checkpoints of a running session in a thread of its own: the session
// waits only while its state is copied. At most one is being written; a save
// that comes before the last has ended waits for it.
class CheckpointWriter {
 public:
  // Where the folder is there already, what CheckpointFolder throws; else it is
  // made with the first checkpoint. `keep`: see CheckpointFolder::Prune.
  CheckpointWriter(std::string folder, int keep);
  // Waits for the last save.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Copies the state and returns. A save that fails is a warning; the third in
  // a row is thrown from the next call here or of Finish.
  void Save(const Session& session, const CheckpointHeader& header);
  // Waits for the last save; throws when it failed.
  void Finish();

  // Since the last call: paths of what is safely on disk, and why saves failed
  // that another one has followed.
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
  int failures_ = 0;          // in a row
  std::exception_ptr error_;  // of the last save
  std::string reason_;        // its message
  std::vector<std::string> saved_;
  std::vector<std::string> warnings_;

  std::thread thread_;
};

}  // namespace fusor::runtime
