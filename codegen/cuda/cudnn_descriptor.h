#pragma once

// cuDNN's backend API: descriptors with attributes. The library is opened at
// run time. Descriptors need neither a device nor a driver.

#include <cudnn_graph.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cuda/dynamic_library.h"
#include "ir/support/error.h"

namespace fusor::cuda {

// The functions of libcudnn.so.9 that create, access and run descriptors.
struct Cudnn {
  Cudnn();

  Library library;
  bool usable = false;
  std::string problem;  // why it is not usable
  decltype(&cudnnGetVersion) version = nullptr;
  decltype(&cudnnGetErrorString) error_string = nullptr;
  decltype(&cudnnGetLastErrorString) last_error = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy = nullptr;
  decltype(&cudnnBackendSetAttribute) set = nullptr;
  decltype(&cudnnBackendGetAttribute) get = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  // These need a device.
  decltype(&cudnnCreate) create_handle = nullptr;
  decltype(&cudnnDestroy) destroy_handle = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

// Opens cuDNN at the first call.
const Cudnn& LoadedCudnn();
// Returns the status and cuDNN's reason for the last error of this thread, like
// "CUDNN_STATUS_BAD_PARAM (2000): null pointer".
std::string CudnnReason(cudnnStatus_t status);
// Throws `code` unless the call succeeded.
void CheckCudnn(cudnnStatus_t status, const char* call, ErrorCode code);
// Returns "cuDNN 9.19.0", or "none".
std::string CudnnVersion();

// Maps a C++ type to its attribute type, if there is exactly one.
template <typename T>
struct CudnnType;
template <>
struct CudnnType<int32_t> {
  static constexpr auto kType = CUDNN_TYPE_INT32;
};
template <>
struct CudnnType<int64_t> {
  static constexpr auto kType = CUDNN_TYPE_INT64;
};
template <>
struct CudnnType<double> {
  static constexpr auto kType = CUDNN_TYPE_DOUBLE;
};
template <>
struct CudnnType<bool> {
  static constexpr auto kType = CUDNN_TYPE_BOOLEAN;
};
template <>
struct CudnnType<char> {
  static constexpr auto kType = CUDNN_TYPE_CHAR;
};
template <>
struct CudnnType<void*> {
  static constexpr auto kType = CUDNN_TYPE_VOID_PTR;
};
template <>
struct CudnnType<cudnnHandle_t> {
  static constexpr auto kType = CUDNN_TYPE_HANDLE;
};
template <>
struct CudnnType<cudnnDataType_t> {
  static constexpr auto kType = CUDNN_TYPE_DATA_TYPE;
};
template <>
struct CudnnType<cudnnConvolutionMode_t> {
  static constexpr auto kType = CUDNN_TYPE_CONVOLUTION_MODE;
};
template <>
struct CudnnType<cudnnPointwiseMode_t> {
  static constexpr auto kType = CUDNN_TYPE_POINTWISE_MODE;
};
template <>
struct CudnnType<cudnnNanPropagation_t> {
  static constexpr auto kType = CUDNN_TYPE_NAN_PROPOGATION;
};
template <>
struct CudnnType<cudnnGenStatsMode_t> {
  static constexpr auto kType = CUDNN_TYPE_GENSTATS_MODE;
};
template <>
struct CudnnType<cudnnBackendHeurMode_t> {
  static constexpr auto kType = CUDNN_TYPE_HEUR_MODE;
};
template <>
struct CudnnType<cudnnBackendKnobType_t> {
  static constexpr auto kType = CUDNN_TYPE_KNOB_TYPE;
};
template <>
struct CudnnType<cudnnBackendNumericalNote_t> {
  static constexpr auto kType = CUDNN_TYPE_NUMERICAL_NOTE;
};
template <>
struct CudnnType<cudnnBackendBehaviorNote_t> {
  static constexpr auto kType = CUDNN_TYPE_BEHAVIOR_NOTE;
};

// Owns one descriptor. REQUIRES: LoadedCudnn().usable. Methods throw kGraph
// with cuDNN's reason if a call fails.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  CudnnDescriptor& operator=(CudnnDescriptor&&) = delete;
  ~CudnnDescriptor();

  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const std::vector<T>& values) {
    SetRaw(name, CudnnType<T>::kType, static_cast<int64_t>(values.size()),
           values.data());
  }
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, const T& value) {
    SetRaw(name, CudnnType<T>::kType, 1, &value);
  }
  void Set(cudnnBackendAttributeName_t name, const std::string& text);
  void Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void Set(cudnnBackendAttributeName_t name,
           std::span<const CudnnDescriptor> values);

  void Finalize();
  // Returns false if cuDNN rejects it with this status. The descriptor must
  // not be used then.
  [[nodiscard]] bool FinalizeUnless(cudnnStatus_t status);
  cudnnBackendDescriptor_t get() const { return descriptor_; }

  // Returns at most `limit` values.
  template <typename T>
  std::vector<T> Get(cudnnBackendAttributeName_t name, size_t limit) const {
    std::vector<T> values(limit);
    values.resize(GetRaw(name, CudnnType<T>::kType, static_cast<int64_t>(limit),
                         values.data()));
    return values;
  }
  template <typename T>
  T Get(cudnnBackendAttributeName_t name) const {
    return Get<T>(name, 1).at(0);
  }
  std::string GetText(cudnnBackendAttributeName_t name) const;
  // Returns at most `limit` descriptors of this type.
  std::vector<CudnnDescriptor> GetDescriptors(cudnnBackendAttributeName_t name,
                                              cudnnBackendDescriptorType_t type,
                                              size_t limit) const;
  // Returns the number of descriptors that the attribute holds.
  size_t Count(cudnnBackendAttributeName_t name) const;

 private:
  void SetRaw(cudnnBackendAttributeName_t name,
              cudnnBackendAttributeType_t type, int64_t count,
              const void* values);
  size_t GetRaw(cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t limit,
                void* values) const;

  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace fusor::cuda
