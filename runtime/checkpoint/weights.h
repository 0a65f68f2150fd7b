#pragma once

#include <string>

#include "runtime/session.h"

namespace fusor::runtime {

// Whether it belongs to the network, not to how it is trained.
bool IsModelState(ir::InputRole role);

// Parameters and running statistics as f32 safetensors under torchvision's
// names, logical row-major (OIHW); a file that torchvision's load_state_dict
// takes (strict=False: num_batches_tracked is not kept).
// kAverages: the moving averages of the parameters in their place; throws
// kCheckpoint when the session keeps none. REQUIRES: where each rank has a part
// of them, the session shows them (Session::ShowAverages).
enum class WeightKind { kParameters, kAverages };
void SaveWeights(const Session& session, const std::string& path,
                 WeightKind kind = WeightKind::kParameters);

// Sets every parameter and running statistic of the session; optimizer state is
// left alone. f16, bf16 and f64 tensors are converted; other tensors of the
// file are ignored. Throws kCheckpoint, naming the tensor, when one is missing
// or has another shape; nothing is changed then.
void LoadWeights(Session& session, const std::string& path);

}  // namespace fusor::runtime
