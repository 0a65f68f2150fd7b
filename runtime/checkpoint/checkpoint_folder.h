#pragma once

// The folder of a run's checkpoints:
//
//   step-00000120/              a complete checkpoint, created by renaming and
//                               never replaced; a second one of the same step
//                               gets a number appended
//   step-00000140.tmp-77-0/     one being written, or left by a killed run
//   .lock                       held by the run that saves here
//
// The newest is the one written last (the manifest's sequence number). After
// resuming from an older checkpoint it may not have the highest step.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace fusor::runtime {

class CheckpointFolder {
 public:
  // Creates the folder, locks it, and removes leftovers of killed runs. Throws
  // kCheckpoint if that fails, kUsage if another run holds the lock.
  explicit CheckpointFolder(const std::string& path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Writes a checkpoint under a temporary name, renames it and returns its
  // path. Earlier checkpoints survive a crash at any time, including of the
  // machine. Sets header.sequence. On failure throws kCheckpoint and leaves
  // nothing behind.
  std::string Save(CheckpointHeader header, const StateSnapshot& snapshot);

  // Removes all except the `keep` newest, after reading back the newest; 0
  // keeps all. Checkpoints with a corrupt manifest are kept.
  void Prune(int keep);

 private:
  void RemoveLeftovers() const;

  const std::string path_;
  int lock_ = -1;
  int64_t next_sequence_ = 0;
};

// Returns the names of the checkpoints in a folder, intact or not; empty if the
// folder does not exist.
std::vector<std::string> ListCheckpoints(const std::string& path);

struct NewestCheckpoint {
  std::optional<Checkpoint> checkpoint;
  // Defects of the skipped checkpoints, one line each.
  std::vector<std::string> skipped;
};

// Reads the newest checkpoint that is fully intact.
NewestCheckpoint ReadNewestCheckpoint(const std::string& path);

}  // namespace fusor::runtime
