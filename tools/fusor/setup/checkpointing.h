#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

struct CheckpointFlags {
  std::string workspace;
  std::string resume;   // file, folder or "auto"; empty: none
  std::string weights;  // to start from
  bool allow_mismatch = false;
  int64_t every = 0;  // steps; 0: an epoch
  int keep = 3;       // 0: all
  bool off = false;
};
void AddCheckpointFlags(CLI::App& app, CheckpointFlags& flags);

// Saves a training run and goes on with one. Lines for people go to `text`,
// warnings to stderr.
class Checkpointing {
 public:
  // What identifies a run (RunIdentity) and what else it was given.
  using Options = std::map<std::string, std::string>;

  // Looks for the checkpoint to resume from and reads it. Throws kUsage for
  // flags that contradict each other and for a workspace with checkpoints of
  // another run; kCheckpoint when there is no sound one, or it is of another
  // model, data set or batch size. `description`: of the weights that are
  // saved.
  Checkpointing(const CheckpointFlags& flags, Options identity, Options options,
                runtime::Metadata description, uint64_t seed, FILE* text);

  // Where to start: after the last step of the checkpoint, or at the beginning.
  const runtime::TrainPosition& start() const { return start_; }
  // Sets the session's state: of the checkpoint, or from the seed and
  // --pretrained-weights.
  void Initialize(runtime::Session& session);

  const runtime::Metadata& description() const { return description_; }
  bool saves() const { return writer_ != nullptr; }
  void Save(const runtime::Session& session,
            const runtime::TrainPosition& position, int64_t steps_per_epoch);
  // Waits until everything is on disk.
  void Finish();

 private:
  std::string Folder() const;
  void CheckFlags() const;
  void FindResume();
  void ReadNewest(const std::string& folder);
  void CheckIdentity() const;
  void WarnOfChanges() const;
  void LoadPretrained(runtime::Session& session) const;
  void Tell();

  const CheckpointFlags& flags_;
  const Options identity_;
  Options options_;
  const runtime::Metadata description_;
  const uint64_t seed_;
  FILE* const text_;
  std::optional<runtime::Checkpoint> resumed_;
  runtime::TrainPosition start_;
  std::unique_ptr<runtime::CheckpointWriter> writer_;
};

}  // namespace fusor::tools
