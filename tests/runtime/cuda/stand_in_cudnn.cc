#include "tests/runtime/cuda/stand_in_cudnn.h"

#include <cudnn_graph.h>

#include <cstring>

namespace {

using fusor::test::StandInCudnn;

StandInCudnn& State() {
  static StandInCudnn state;
  return state;
}

}  // namespace

struct cudnnContext {
  const void* stream = nullptr;
};

namespace {

struct Descriptor {
  std::map<int, std::string> attributes;  // bytes
  bool finalized = false;
};

Descriptor& Of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Descriptor*>(descriptor);
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  return type == CUDNN_TYPE_CHAR ? 1 : 8;
}

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

extern "C" {

StandInCudnn* FusorStandInCudnn() { return &State(); }

size_t cudnnGetVersion() { return 91900; }

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::strncpy(message, "the stand-in was told to", max_size);
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  ++State().handles;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  --State().handles;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor;
  ++State().descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(
    cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  --State().descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t count, const void* values) {
  if (Of(descriptor).finalized) return CUDNN_STATUS_BAD_PARAM;
  Of(descriptor)
      .attributes[name]
      .assign(static_cast<const char*>(values),
              static_cast<size_t>(count) * SizeOf(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t,
                                       int64_t* count, void* values) {
  if (!Of(descriptor).finalized ||
      name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    return CUDNN_STATUS_BAD_PARAM;
  }
  *count = 1;
  std::memcpy(values, &State().workspace_bytes, sizeof(int64_t));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const bool plan =
      Of(descriptor)
          .attributes.contains(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  if (plan && State().refuses_plans) return CUDNN_STATUS_NOT_SUPPORTED;
  Of(descriptor).finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (State().fails_to_execute || !Of(plan).finalized || !Of(pack).finalized) {
    return CUDNN_STATUS_EXECUTION_FAILED;
  }
  const auto& attributes = Of(pack).attributes;
  const auto ids =
      Values<int64_t>(attributes.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
  const auto pointers =
      Values<void*>(attributes.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
  StandInCudnn::Execution& e = State().executions.emplace_back();
  e.plan =
      Of(plan).attributes.at(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  e.stream = handle->stream;
  for (size_t i = 0; i < ids.size(); ++i) e.pointers[ids[i]] = pointers.at(i);
  e.workspace =
      Values<void*>(attributes.at(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)).at(0);
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
