#pragma once

#include <string>
#include <vector>

#include "runtime/data/files/safetensors.h"
#include "runtime/state_store.h"

namespace fusor::runtime {

// Returns whether the role belongs to the network, not to the training state.
bool IsModelState(ir::InputRole role);

// Saves parameters and running statistics as f32 safetensors under
// torchvision's names, logical row-major (OIHW). torchvision's load_state_dict
// accepts the file (strict=False: num_batches_tracked is not stored).
// `description` is added to the file's metadata. kAverages saves moving
// averages instead of the parameters that have them; throws kCheckpoint if the
// state has none. The storage of sharded parameters must hold current values
// (kParameters) or averages (kAverages): see StateStore::Require.
enum class WeightKind { kParameters, kAverages };
void SaveWeights(StateStore& state, const std::string& path,
                 WeightKind kind = WeightKind::kParameters,
                 const Metadata& description = {});

// Opens a weights file (ReadSafetensors). Strips name prefixes of wrapped
// PyTorch modules: "module." of DistributedDataParallel and "_orig_mod." of
// torch.compile. Throws kCheckpoint; for a pickle the message tells how to
// convert it.
Safetensors ReadWeights(const std::string& path);

// Mismatches between the tensors of a model and of a file.
struct WeightMatch {
  // Tensors absent from the file in this shape, which kept their values.
  std::vector<std::string> initialized;
  // Tensors of the file that the model lacks, except PyTorch's
  // num_batches_tracked.
  std::vector<std::string> unused;
};

// Sets every parameter and running statistic of the state; does not change
// optimizer state. Converts f16, bf16 and f64 tensors. Throws kCheckpoint,
// naming the tensor and changing nothing, if one is missing or has another
// shape. kNewHead: tensors of the last layer may be missing or have
// another shape; they keep their values. kAvailable: any tensor may. `path`
// names the file in errors.
enum class WeightUse { kWhole, kNewHead, kAvailable };
WeightMatch LoadWeights(StateStore& state, const Safetensors& file,
                        const std::string& path,
                        WeightUse use = WeightUse::kWhole);
void LoadWeights(StateStore& state, const std::string& path);

}  // namespace fusor::runtime
