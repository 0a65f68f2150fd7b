#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "codegen/cuda/cudnn_descriptor.h"
#include "codegen/plan/plan.h"

namespace fusor::cuda {

// Padding of a workspace in bytes, so that an address in it has cudaMalloc's
// alignment, which plan buffers lack. cuDNN does not document what it expects.
inline constexpr int64_t kConvWorkspaceAlignment = 256;

// One of cuDNN's engines with its knob settings. Engine numbers are unique only
// within one pattern of operations.
struct EngineConfig {
  std::string name;  // "eng62_k2=1_k13=0", as cudnn-frontend names plans
  int64_t workspace_bytes = 0;  // padded
};

// Returns the padded size of an execution plan's workspace, bytes.
int64_t WorkspaceOf(const CudnnDescriptor& plan);

// A call's execution plan, ready to run on a device.
struct LoadedPlan {
  CudnnDescriptor plan;
  // Empty, or cuDNN's reason why the call's plan is for another device. Then
  // `plan` is a new one, of the same engine with the same knobs.
  std::string mismatch;
};

// Loads LibraryCall::plan for the handle's device or, without a handle, for the
// device that the JSON describes. Throws kGraph if cuDNN rejects it.
LoadedPlan LoadPlan(const codegen::LibraryCall& call, cudnnHandle_t handle,
                    const std::string& device_json = "");

// Lists cuDNN's engines for a convolution and makes their execution plans. The
// device need not be present. Thread-safe. REQUIRES: LoadedCudnn().usable.
class ConvPlanner {
 public:
  // `device`: the GPU to plan for (device_properties.h).
  explicit ConvPlanner(CudnnDescriptor device) : device_(std::move(device)) {}

  // Returns the engines whose plans can be built, best first: the results of
  // heuristics A, B and fallback, in this order and without duplicates, but
  // engines with workspaces above kUsualWorkspace last. Excludes engines that
  // are nondeterministic, compile at run time (which needs a driver), call
  // cuBLASLt, or use Winograd or FFT. Ignores the call's algorithm. If there is
  // no engine, sets `rejection`, if given, to cuDNN's reason.
  std::vector<EngineConfig> Configs(const codegen::LibraryCall& call,
                                    std::string* rejection = nullptr) const;

  // Fills in implementation, workspace_bytes and plan for the engine that the
  // attribute "algorithm" names, else for the best one. Throws kGraph if cuDNN
  // has no such plan.
  void Prepare(codegen::LibraryCall& call) const;

  static constexpr int64_t kUsualWorkspace = int64_t{256} << 20;

 private:
  struct Known {
    std::vector<EngineConfig> configs;
    std::string rejection;
  };
  const Known& Ask(const codegen::LibraryCall& call) const;
  Known Query(const codegen::LibraryCall& call) const;
  std::vector<CudnnDescriptor> Heuristic(const CudnnDescriptor& graph,
                                         cudnnBackendHeurMode_t mode) const;
  CudnnDescriptor MakePlan(const CudnnDescriptor& config) const;
  CudnnDescriptor MakeConfig(const CudnnDescriptor& graph,
                             const std::string& name) const;

  CudnnDescriptor device_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, Known> known_;  // by problem
};

}  // namespace fusor::cuda
