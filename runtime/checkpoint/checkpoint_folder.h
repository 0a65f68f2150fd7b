#pragma once

// The folder of a run's checkpoints:
//
//   step-00000120/              a checkpoint; appears whole, by renaming, and
//                               is never replaced: a second one of that step
//                               gets a number behind its name
//   step-00000140.tmp-77-0/     one being written, or left by a run that was
//                               killed
//   .lock                       held by the run that saves here
//
// The newest is the one that was written last (its manifest's sequence number),
// which after going back to an older one need not be that of the last step.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace fusor::runtime {

class CheckpointFolder {
 public:
  // Makes the folder, takes its lock, and removes what killed runs left. Throws
  // kCheckpoint where that is impossible, kUsage while another run has it.
  explicit CheckpointFolder(const std::string& path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Writes a checkpoint under a temporary name and renames it; returns its
  // path. After a crash at any moment, of the machine too, what was saved
  // before is still there. Sets header.sequence. Throws kCheckpoint and leaves
  // nothing behind.
  std::string Save(CheckpointHeader header, const StateSnapshot& snapshot);

  // Removes all but the `keep` newest, once the newest has been read back; 0
  // keeps all. Those with a damaged manifest stay.
  void Prune(int keep);

 private:
  void RemoveLeftovers() const;

  const std::string path_;
  int lock_ = -1;
  int64_t next_sequence_ = 0;
};

// Names of the checkpoints in a folder, sound or not; empty where there is no
// such folder.
std::vector<std::string> ListCheckpoints(const std::string& path);

struct NewestCheckpoint {
  std::optional<Checkpoint> checkpoint;
  std::vector<std::string> skipped;  // what was wrong with newer ones, a line
                                     // each
};

// The newest that is sound in every byte.
NewestCheckpoint ReadNewestCheckpoint(const std::string& path);

}  // namespace fusor::runtime
