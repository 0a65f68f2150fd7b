#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/session.h"

namespace fusor::runtime {

// Whether it belongs to the network, not to how it is trained.
bool IsModelState(ir::InputRole role);

// Parameters and running statistics as f32 safetensors under torchvision's
// names, logical row-major (OIHW); a file that torchvision's load_state_dict
// takes (strict=False: num_batches_tracked is not kept). `description` is added
// to the file's metadata.
// kAverages: the moving averages of the parameters in their place, where there
// are any; throws kCheckpoint when the session keeps none at all. REQUIRES:
// where each rank has a part of them, the session shows them
// (Session::ShowAverages).
enum class WeightKind { kParameters, kAverages };
void SaveWeights(const Session& session, const std::string& path,
                 WeightKind kind = WeightKind::kParameters,
                 const Metadata& description = {});

// Reads a file of weights. Names lose the prefixes of wrapped PyTorch modules:
// "module." of DistributedDataParallel and "_orig_mod." of torch.compile.
// Throws kCheckpoint; for a pickle the message tells how to convert it.
Safetensors ReadWeights(const std::string& path);

// Tensors of a model and of a file that do not match.
struct WeightMatch {
  // Tensors of the new head, which the file does not have in this shape.
  std::vector<std::string> initialized;
  // Tensors of the file that the model does not have, without PyTorch's
  // num_batches_tracked.
  std::vector<std::string> unused;
};

// Sets every parameter and running statistic of the session; optimizer state is
// left alone. f16, bf16 and f64 tensors are converted. Throws kCheckpoint,
// naming the tensor, when one is missing or has another shape; nothing is
// changed then. kNewHead: the tensors of program 0's last layer may be missing
// or have another shape, and stay as they are. `path` names the file in errors.
enum class WeightUse { kWhole, kNewHead };
WeightMatch LoadWeights(Session& session, const Safetensors& file,
                        const std::string& path,
                        WeightUse use = WeightUse::kWhole);
void LoadWeights(Session& session, const std::string& path);

}  // namespace fusor::runtime
