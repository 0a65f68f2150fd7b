#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "models/model.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

struct CheckpointFlags {
  std::string workspace;
  std::string resume;   // file, folder or "auto"; empty: none
  std::string weights;  // initial weights; empty: see `init`
  std::string init;     // "model" or "random"; empty: model
  bool allow_mismatch = false;
  int64_t every = 0;  // steps; 0: one epoch
  int keep = 3;       // 0: all
  bool off = false;
};
void AddCheckpointFlags(CLI::App& app, CheckpointFlags& flags);

// Saves and resumes a training run. Prints text to `text`, warnings to stderr.
class Checkpointing {
 public:
  // What identifies a run (RunIdentity), and the other options given.
  using Options = std::map<std::string, std::string>;

  // Opens the checkpoint to resume from, or the pretrained weights. Throws
  // kUsage for conflicting flags and for a workspace with checkpoints of
  // another run. Throws kCheckpoint if there is no intact checkpoint, or it is
  // of another model, data set or batch size, or if the weights are damaged,
  // not in a safetensors file, or of another model. `description`: of the saved
  // weights.
  Checkpointing(const CheckpointFlags& flags, Options identity, Options options,
                runtime::Metadata description, uint64_t seed, FILE* text);

  // Returns the position after the checkpoint's last step, or the start.
  const runtime::TrainPosition& start() const { return start_; }
  // Initialises the session's state from the checkpoint, or from the seed and
  // then --pretrained-weights or the values that the model brings.
  void Initialize(runtime::Session& session);

  const runtime::Metadata& description() const { return description_; }
  bool saves() const { return writer_ != nullptr; }
  // Whether Initialize loads a checkpoint or weights.
  bool loads() const;
  void Save(runtime::StateStore& state, const runtime::TrainPosition& position,
            int64_t steps_per_epoch);
  // Waits until all checkpoints are on disk.
  void Finish();
  // Stores a file of autotune results in the checkpoints, for RestoreChoices.
  void KeepChoices(const std::string& file);

 private:
  void CheckFlags() const;
  void CheckIdentity() const;
  void WarnOfChanges() const;
  void OpenPretrained();
  void LoadPretrained(runtime::Session& session) const;
  // Returns the model if it brings values, else null.
  const models::CustomModel* OwnWeights() const;
  // Loads the values that the model brings, if any.
  void LoadOwnWeights(runtime::Session& session) const;
  void TellWeights(const std::string& source,
                   const runtime::WeightMatch& match) const;
  void Tell();

  const CheckpointFlags& flags_;
  const Options identity_;
  Options options_;
  const runtime::Metadata description_;
  const uint64_t seed_;
  FILE* const text_;
  std::optional<runtime::Checkpoint> resumed_;
  runtime::Safetensors pretrained_;  // of --pretrained-weights
  runtime::TrainPosition start_;
  std::string choices_;  // text
  std::unique_ptr<runtime::CheckpointWriter> writer_;
};

// Writes the autotune results of the checkpoint to resume from to `file`, if
// the file does not exist and the checkpoint has such results. Throws as
// Checkpointing does.
void RestoreChoices(const CheckpointFlags& flags, const std::string& file);

}  // namespace fusor::tools
