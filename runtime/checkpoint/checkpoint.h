#pragma once

// One checkpoint is a folder:
//
//   model.safetensors      parameters and running statistics, f32, under
//                          torchvision's names: what `fusor eval --weights`
//                          and load_state_dict take
//   optimizer.safetensors  the rest of the session's state under its own names,
//                          each in its dtype
//   manifest.json          where the run stands, what it was given, size and
//                          CRC-32C of the files above; written last
//
// All tensors are logical, row-major: they depend neither on layout nor on the
// order of arenas. The manifest's last field is the CRC-32C of all bytes before
// it, so that no byte of a checkpoint can change unnoticed.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/session.h"

namespace fusor::runtime {

// Where a run stands between two steps, and what it was given.
struct CheckpointHeader {
  int64_t step = 0;   // steps done
  int64_t epoch = 0;  // the next batch of the data order
  int64_t batch = 0;
  // Key of all generators; they are counter-based, so that it and the position
  // above are their state.
  uint64_t seed = 0;
  bool evaluation_due = false;  // after this step, and not done yet
  double best_top1 = 0;         // in [0, 1]
  uint64_t loss_hash = 0;       // of all losses so far
  // What a run that resumes must have alike, and what it should.
  std::map<std::string, std::string> identity;
  std::map<std::string, std::string> options;
  // Metadata of model.safetensors; not in the manifest.
  Metadata description;
  std::string version;   // of fusor
  int64_t sequence = 0;  // counts the checkpoints of a folder
};

struct Checkpoint {
  std::string path;  // of the folder
  CheckpointHeader header;
  std::vector<NamedTensor> tensors;  // of both files
};

// A copy of a session's state, to be written while the session goes on.
struct StateSnapshot {
  codegen::StateLayout layout;
  std::vector<ir::InputRole> roles;  // of the entries
  std::vector<uint8_t> bytes;        // as the layout says
};

// Copies into `snapshot`, whose memory is reused. Not among its entries: weight
// copies, which say nothing of their own, and sums over micro-batches right
// after an update, when the next one starts them anew. State of which each rank
// has a part is gathered: then all ranks have to call it.
void TakeSnapshot(const Session& session, StateSnapshot& snapshot);

// Of all tensors of the state, logical, by name: whatever their layout, equal
// states have equal hashes.
uint64_t StateHash(const StateSnapshot& snapshot);

// Writes the files into the empty folder `path`, manifest last, and waits until
// they are safely on disk. Throws kCheckpoint with the system's reason.
void WriteCheckpointFiles(const std::string& path,
                          const CheckpointHeader& header,
                          const StateSnapshot& snapshot);

// Reads and checks manifest and files. Throws kCheckpoint with a line that
// names the file and what is wrong with it.
Checkpoint ReadCheckpoint(const std::string& path);
// The manifest alone; of the files their presence and sizes are checked.
CheckpointHeader ReadCheckpointHeader(const std::string& path);

// Sets all of the session's state that a snapshot has. Throws kCheckpoint, with
// nothing changed, when a tensor is missing, has another type, or is none of
// the session's; but for sums of micro-batches, which are empty between
// updates: a run may go on with more ranks and fewer micro-batches, or the
// other way round.
void RestoreState(Session& session, const Checkpoint& checkpoint);

}  // namespace fusor::runtime
