#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "codegen/cuda/cudnn_descriptor.h"
#include "codegen/plan/plan.h"

namespace fusor::cuda {

// What a workspace is padded by, so that a place in it has the alignment of
// memory as cudaMalloc gives it, which buffers of plans lack: what cuDNN
// expects is not documented.
inline constexpr int64_t kConvWorkspaceAlignment = 256;

// One of cuDNN's engines with its knobs turned. Numbers of engines count within
// one pattern of operations.
struct EngineConfig {
  std::string name;  // "eng62_k2=1_k13=0", as cudnn-frontend names plans
  int64_t workspace_bytes = 0;  // padded
};

// A call's plan, ready to run on a device.
struct LoadedPlan {
  CudnnDescriptor plan;
  // Where cuDNN finds that the call's plan is one for another device, why: then
  // this is a new one, of the same engine with the same knobs.
  std::string mismatch;
};

// Loads LibraryCall::plan for the handle's device or, without a handle, for the
// one that `properties` describe. Throws kGraph where cuDNN refuses it.
LoadedPlan LoadPlan(const codegen::LibraryCall& call, cudnnHandle_t handle,
                    const std::string& properties = "");

// Which engines cuDNN has for a convolution on a device that need not be there,
// and their execution plans. May be used by several threads at once. REQUIRES:
// LoadedCudnn().usable.
class ConvPlanner {
 public:
  // `device`: its properties as JSON (device_properties.h). Throws kGraph when
  // cuDNN does not accept them.
  explicit ConvPlanner(const std::string& device);

  // Engines whose plans can be built, best first: what heuristics A, B and the
  // fallback say, united in this order, without duplicates; those with
  // workspaces above kUsualWorkspace last. Left out: engines that add in no
  // fixed order, compile at run time (which takes a driver), call cuBLASLt, or
  // compute by Winograd or FFT. The algorithm of the call does not matter.
  // Empty where cuDNN has none; then `refusal`, if given, is its reason.
  std::vector<EngineConfig> Configs(const codegen::LibraryCall& call,
                                    std::string* refusal = nullptr) const;

  // Fills in implementation, workspace_bytes and plan for the engine that the
  // attribute "algorithm" names, or the best. Throws kGraph when cuDNN has no
  // such plan.
  void Prepare(codegen::LibraryCall& call) const;

  static constexpr int64_t kUsualWorkspace = int64_t{256} << 20;

 private:
  struct Known {
    std::vector<EngineConfig> configs;
    std::string refusal;
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
