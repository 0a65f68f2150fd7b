#include "tests/fakes/fake_cudnn.h"

#include <cudnn_graph.h>

#include <cstring>

namespace {

using fusor::test::FakeCudnn;

FakeCudnn& State() {
  static FakeCudnn state;
  return state;
}

}  // namespace

struct cudnnContext {
  const void* stream = nullptr;
};

namespace {

struct Descriptor {
  std::map<int, std::string> attributes;  // as bytes
  bool finalized = false;
  // JSON of a device, an engine with its knobs, or a plan.
  std::string text{};
};

Descriptor& Of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Descriptor*>(descriptor);
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:  // enumerations
      return 4;
  }
}

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

const std::string& Bytes(const Descriptor& d, int name) {
  static const std::string none;
  const auto it = d.attributes.find(name);
  return it == d.attributes.end() ? none : it->second;
}

// Concatenates the texts of the descriptors in the attribute.
std::string Texts(const Descriptor& d, int name) {
  std::string all;
  for (void* value : Values<void*>(Bytes(d, name))) {
    all += static_cast<Descriptor*>(value)->text;
  }
  return all;
}

std::string Number(const Descriptor& d, int name) {
  const std::string& bytes = Bytes(d, name);
  return bytes.empty() ? "" : std::to_string(Values<int64_t>(bytes)[0]);
}

// Returns the part of a plan's JSON that the descriptor contributes.
std::string TextOf(const Descriptor& d) {
  const auto has = [&](int name) { return d.attributes.contains(name); };
  if (has(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)) {
    return Bytes(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  }
  if (has(CUDNN_ATTR_DEVICEPROP_HANDLE) ||
      has(CUDNN_ATTR_DEVICEPROP_DEVICE_ID)) {
    return State().device;
  }
  if (has(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)) {
    return "eng" + Number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  }
  if (has(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)) {
    return "_k" +
           std::to_string(
               Values<int32_t>(Bytes(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE))[0]) +
           "=" + Number(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  }
  if (has(CUDNN_ATTR_ENGINECFG_ENGINE)) {
    return Texts(d, CUDNN_ATTR_ENGINECFG_ENGINE) +
           Texts(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  }
  if (has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)) {
    return "{\"cudnnVersion\":91900,\"engine\":\"" +
           Texts(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) +
           "\",\"device\":\"" + Texts(d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) +
           "\"}";
  }
  return Bytes(d, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
}

}  // namespace

extern "C" {

FakeCudnn* FusorFakeCudnn() { return &State(); }

size_t cudnnGetVersion() { return 91900; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH:
      return "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_NOT_SUPPORTED";
  }
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  std::strncpy(message, "the fake\nwas told to", max_size);
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
  if (!Of(descriptor).finalized) return CUDNN_STATUS_BAD_PARAM;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION ||
      name == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) {
    const std::string& text = Of(descriptor).text;
    *count = static_cast<int64_t>(text.size());
    if (values != nullptr) std::memcpy(values, text.data(), text.size());
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
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
  if (plan && State().rejects_plans) return CUDNN_STATUS_NOT_SUPPORTED;
  Of(descriptor).text = TextOf(Of(descriptor));
  if (plan && !State().planned_for.empty() &&
      Of(descriptor).text.find(State().planned_for) == std::string::npos) {
    return CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH;
  }
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
  FakeCudnn::Execution& e = State().executions.emplace_back();
  e.plan = Of(plan).text;
  e.stream = handle->stream;
  for (size_t i = 0; i < ids.size(); ++i) e.pointers[ids[i]] = pointers.at(i);
  e.workspace =
      Values<void*>(attributes.at(CUDNN_ATTR_VARIANT_PACK_WORKSPACE)).at(0);
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
