#pragma once

// A checkpoint is a folder:
//
//   model.safetensors      parameters and running statistics, f32, under
//                          torchvision's names, as `fusor eval --weights` and
//                          load_state_dict accept
//   optimizer.safetensors  the rest of the session's state under its own names,
//                          each in its dtype
//   manifest.json          the run's position and settings, size and CRC-32C of
//                          the files above; written last
//
// Tensors are logical and row-major, independent of layouts and arena order.
// The manifest's last field is the CRC-32C of all bytes before it, so any
// changed byte of a checkpoint is detected.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/state_store.h"

namespace fusor::runtime {

// Position of a run between two steps, and its settings.
struct CheckpointHeader {
  int64_t step = 0;   // steps done
  int64_t epoch = 0;  // position of the next batch in the data order
  int64_t batch = 0;
  // Key of all generators. They are counter-based: the key and the position
  // above are their whole state.
  uint64_t seed = 0;
  bool evaluation_due = false;  // an evaluation after this step is pending
  double best_top1 = 0;         // in [0, 1]
  uint64_t loss_hash = 0;       // hash of all losses so far
  // Settings that a resumed run must match, and settings whose change is
  // reported.
  std::map<std::string, std::string> identity;
  std::map<std::string, std::string> options;
  // Text of the run's autotune results; empty: none.
  std::string choices;
  // Metadata of model.safetensors; not in the manifest.
  Metadata description;
  std::string version;   // fusor version
  int64_t sequence = 0;  // number of this checkpoint within its folder
};

struct Checkpoint {
  std::string path;  // path of the folder
  CheckpointHeader header;
  std::vector<ir::TensorSource> tensors;  // of both files, which stay open
};

// A copy of a state, written while the session continues.
struct StateSnapshot {
  codegen::StateLayout layout;
  std::vector<ir::InputRole> roles;  // of the entries
  std::vector<uint8_t> bytes;        // at the offsets of `layout`
};

// Copies the state into `snapshot`, reusing its memory. Omits cached weight
// casts and parameter shards, which are redundant. Also omits gradient
// accumulators right after an update, because the next update resets them.
// If state is sharded, gathers it, so that every rank must call this;
// parameters are current afterwards.
void TakeSnapshot(StateStore& state, StateSnapshot& snapshot);

// Takes part in rank 0's TakeSnapshot, and copies nothing.
void JoinSnapshot(StateStore& state);

// Returns the bytes of a snapshot after an update of the plan.
int64_t SnapshotBytes(const codegen::Plan& plan);

// Hashes the tensors of a snapshot without taking it, logical, by name. Equal
// states have equal hashes in every layout. Every rank must call it.
uint64_t StateHash(StateStore& state);
uint64_t StateHash(const StateSnapshot& snapshot);

// Writes the files into the empty folder `path`, manifest last, and flushes
// them to disk. Throws kCheckpoint with the system's error message.
void WriteCheckpointFiles(const std::string& path,
                          const CheckpointHeader& header,
                          const StateSnapshot& snapshot);

// Opens and validates manifest and files. Throws kCheckpoint with one line that
// names the file and its defect.
Checkpoint ReadCheckpoint(const std::string& path);
// Reads the manifest only; checks that the files exist and have their sizes.
CheckpointHeader ReadCheckpointHeader(const std::string& path);

// Sets all state that the checkpoint has. Throws kCheckpoint, with
// nothing changed, if a tensor is missing, has another type, or does not exist
// in the store. Gradient accumulators are exempt between updates, when they
// are empty. A run may therefore resume with more ranks and fewer
// micro-batches, or the reverse.
void RestoreState(StateStore& state, const Checkpoint& checkpoint);

}  // namespace fusor::runtime
