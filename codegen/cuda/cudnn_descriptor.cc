#include "codegen/cuda/cudnn_descriptor.h"

#include <fmt/format.h>

#include <algorithm>

namespace fusor::cuda {
namespace {

void CheckPlan(cudnnStatus_t status, const char* call) {
  CheckCudnn(status, call, ErrorCode::kGraph);
}

// `attribute`: its number in cudnn_graph.h, for the error.
void CheckAttribute(cudnnStatus_t status, const char* call, int attribute) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  CheckPlan(status, fmt::format("{} {}", call, attribute).c_str());
}

}  // namespace

Cudnn::Cudnn() : library({"libcudnn.so.9"}) {
  if (!library.found()) {
    problem = library.problem();
    return;
  }
  bool all = true;
  const auto find = [&](auto& function, const char* symbol) {
    function = library.Find<std::decay_t<decltype(function)>>(symbol);
    all &= function != nullptr;
  };
  find(version, "cudnnGetVersion");
  find(error_string, "cudnnGetErrorString");
  find(last_error, "cudnnGetLastErrorString");
  find(create, "cudnnBackendCreateDescriptor");
  find(destroy, "cudnnBackendDestroyDescriptor");
  find(set, "cudnnBackendSetAttribute");
  find(get, "cudnnBackendGetAttribute");
  find(finalize, "cudnnBackendFinalize");
  find(create_handle, "cudnnCreate");
  find(destroy_handle, "cudnnDestroy");
  find(set_stream, "cudnnSetStream");
  find(execute, "cudnnBackendExecute");
  // cuDNN 9.8 introduced descriptions of devices that are not present.
  usable = all && version() >= 90800;
  if (!usable) problem = library.name() + " is older than cuDNN 9.8";
  // cuDNN opens this by name, and aborts the process if it cannot.
  const std::string needed = fmt::format("libcublasLt.so.{}", library.cuda());
  if (usable && library.cuda() > 0 && !Library({needed}).found()) {
    usable = false;
    problem = fmt::format("{} needs {}, which cannot be opened", library.name(),
                          needed);
  }
}

const Cudnn& LoadedCudnn() {
  static const Cudnn cudnn;
  return cudnn;
}

std::string CudnnReason(cudnnStatus_t status) {
  constexpr size_t kMost = 512;
  std::string words(kMost, '\0');
  LoadedCudnn().last_error(words.data(), words.size());
  words.resize(std::min(words.find('\0'), kMost));
  // Errors are one line.
  std::replace(words.begin(), words.end(), '\n', ' ');
  return fmt::format("{} ({}){}{}", LoadedCudnn().error_string(status),
                     static_cast<int>(status), words.empty() ? "" : ": ",
                     words);
}

void CheckCudnn(cudnnStatus_t status, const char* call, ErrorCode code) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw Error(code, fmt::format("cuDNN: {}: {}", call, CudnnReason(status)));
}

std::string CudnnVersion() {
  const Cudnn& cudnn = LoadedCudnn();
  if (!cudnn.usable) return "none";
  const size_t version = cudnn.version();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version % 10000 / 100,
                     version % 100);
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  CheckAttribute(LoadedCudnn().create(type, &descriptor_),
                 "cudnnBackendCreateDescriptor", type);
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) LoadedCudnn().destroy(descriptor_);
}

void CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                          const std::string& text) {
  SetRaw(name, CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
}

void CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                          const CudnnDescriptor& value) {
  SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
}

void CudnnDescriptor::Set(cudnnBackendAttributeName_t name,
                          std::span<const CudnnDescriptor> values) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& value : values) raw.push_back(value.descriptor_);
  SetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(raw.size()),
         raw.data());
}

void CudnnDescriptor::Finalize() {
  CheckPlan(LoadedCudnn().finalize(descriptor_), "cudnnBackendFinalize");
}

bool CudnnDescriptor::FinalizeUnless(cudnnStatus_t status) {
  const cudnnStatus_t result = LoadedCudnn().finalize(descriptor_);
  if (result == status) return false;
  CheckPlan(result, "cudnnBackendFinalize");
  return true;
}

std::string CudnnDescriptor::GetText(cudnnBackendAttributeName_t name) const {
  int64_t bytes = 0;
  CheckAttribute(
      LoadedCudnn().get(descriptor_, name, CUDNN_TYPE_CHAR, 0, &bytes, nullptr),
      "cudnnBackendGetAttribute", name);
  std::string text(static_cast<size_t>(bytes), '\0');
  text.resize(GetRaw(name, CUDNN_TYPE_CHAR, bytes, text.data()));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

size_t CudnnDescriptor::Count(cudnnBackendAttributeName_t name) const {
  return GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr);
}

std::vector<CudnnDescriptor> CudnnDescriptor::GetDescriptors(
    cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
    size_t limit) const {
  std::vector<CudnnDescriptor> values;
  std::vector<cudnnBackendDescriptor_t> raw;
  values.reserve(limit);
  for (size_t i = 0; i < limit; ++i) {
    values.emplace_back(type);
    raw.push_back(values.back().descriptor_);
  }
  const size_t count = GetRaw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                              static_cast<int64_t>(limit), raw.data());
  while (values.size() > count) values.pop_back();
  return values;
}

void CudnnDescriptor::SetRaw(cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count,
                             const void* values) {
  CheckAttribute(LoadedCudnn().set(descriptor_, name, type, count, values),
                 "cudnnBackendSetAttribute", name);
}

size_t CudnnDescriptor::GetRaw(cudnnBackendAttributeName_t name,
                               cudnnBackendAttributeType_t type, int64_t limit,
                               void* values) const {
  int64_t count = 0;
  CheckAttribute(
      LoadedCudnn().get(descriptor_, name, type, limit, &count, values),
      "cudnnBackendGetAttribute", name);
  return static_cast<size_t>(count);
}

}  // namespace fusor::cuda
