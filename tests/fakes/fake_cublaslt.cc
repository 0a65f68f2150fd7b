#include "tests/fakes/fake_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "tests/fakes/fake_driver.h"

extern "C" fusor::test::FakeDriver* FusorFakeDriver();

namespace {

using fusor::test::FakeCublaslt;

FakeCublaslt& State() {
  static FakeCublaslt state;
  return state;
}

// The contents of the opaque descriptors: attributes by name, as integers.
struct Descriptor {
  cublasComputeType_t compute{};
  cudaDataType_t type{};
  int64_t rows = 0, columns = 0, leading = 0;
  std::map<int, int64_t> attributes{};

  int64_t Get(int name, int64_t otherwise) const {
    const auto it = attributes.find(name);
    return it == attributes.end() ? otherwise : it->second;
  }
};

template <typename Handle>
Descriptor& Of(Handle handle) {
  return *reinterpret_cast<Descriptor*>(handle);
}

template <typename Handle>
cublasStatus_t Create(Handle* handle, Descriptor descriptor) {
  *handle = reinterpret_cast<Handle>(new Descriptor(std::move(descriptor)));
  ++State().descriptors;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t Destroy(Handle handle) {
  delete &Of(handle);
  --State().descriptors;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t Set(Handle handle, int name, const void* value, size_t bytes) {
  if (bytes != 4 && bytes != 8) return CUBLAS_STATUS_INVALID_VALUE;
  int64_t number = 0;
  std::memcpy(&number, value, bytes);
  Of(handle).attributes[name] = number;
  return CUBLAS_STATUS_SUCCESS;
}

bool Fails(const char* function) { return State().fails == function; }

// --- Products ----------------------------------------------------------------

struct Matrix {
  cudaDataType_t type;
  fusor::ir::DType dtype;
  int64_t rows, columns, leading, batch, stride;

  explicit Matrix(const Descriptor& d)
      : type(d.type),
        dtype(d.type == CUDA_R_16F    ? fusor::ir::DType::kF16
              : d.type == CUDA_R_16BF ? fusor::ir::DType::kBF16
                                      : fusor::ir::DType::kF32),
        rows(d.rows),
        columns(d.columns),
        leading(d.leading),
        batch(d.Get(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)),
        stride(d.Get(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0)) {}

  bool IsSound() const {
    return leading >= rows && (batch == 1 || stride >= leading * columns);
  }
  fusor::ir::TensorType Memory() const {
    return {dtype, {(batch - 1) * stride + leading * columns}, {}};
  }
  int64_t At(int64_t i, int64_t row, int64_t column) const {
    return i * stride + row + column * leading;
  }
};

struct Job {
  Matrix a, b, c;
  FakeCublaslt::Product product;
  size_t workspace_bytes;

  Job(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a_layout,
      cublasLtMatrixLayout_t b_layout, cublasLtMatrixLayout_t c_layout)
      : a(Of(a_layout)), b(Of(b_layout)), c(Of(c_layout)) {
    const Descriptor& d = Of(operation);
    product.transpose_a =
        d.Get(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
    product.transpose_b =
        d.Get(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
    product.m = c.rows;
    product.n = c.columns;
    product.k = product.transpose_a ? a.rows : a.columns;
    product.batch = c.batch;
    wide_ = a.dtype == fusor::ir::DType::kF32;
    compute_ = d.compute;
    epilogue_ = d.Get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
    product.relu = (epilogue_ & CUBLASLT_EPILOGUE_RELU) != 0;
    if ((epilogue_ & CUBLASLT_EPILOGUE_BIAS) == 0) return;
    product.bias = reinterpret_cast<const void*>(
        d.Get(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0));
    bias_type_ = d.Get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
  }

  // Checks that the bias has the result's type, the only supported one.
  bool HasSoundEpilogue() const {
    const bool biased = (epilogue_ & CUBLASLT_EPILOGUE_BIAS) != 0;
    const bool known = epilogue_ == CUBLASLT_EPILOGUE_DEFAULT ||
                       epilogue_ == CUBLASLT_EPILOGUE_BIAS ||
                       epilogue_ == CUBLASLT_EPILOGUE_RELU ||
                       epilogue_ == CUBLASLT_EPILOGUE_RELU_BIAS;
    return known && (!biased || (product.bias != nullptr &&
                                 (bias_type_ == -1 || bias_type_ == c.type)));
  }

  bool IsSound() const {
    const auto& p = product;
    return a.IsSound() && b.IsSound() && c.IsSound() && a.dtype == b.dtype &&
           a.batch == c.batch && b.batch == c.batch &&
           (p.transpose_a ? a.columns : a.rows) == p.m &&
           (p.transpose_b ? b.rows : b.columns) == p.n &&
           (p.transpose_b ? b.columns : b.rows) == p.k && HasSoundEpilogue() &&
           compute_ ==
               (wide_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  }

  void Run() const {
    const auto& p = product;
    const auto x = fusor::ir::LoadTensor(a.Memory(), p.a).data;
    const auto y = fusor::ir::LoadTensor(b.Memory(), p.b).data;
    fusor::ir::Tensor z = fusor::ir::LoadTensor(c.Memory(), p.c);
    std::vector<double> bias(p.m, 0);
    if (p.bias != nullptr) {
      bias = fusor::ir::LoadTensor({c.dtype, {p.m}, {}}, p.bias).data;
    }
    for (int64_t i = 0; i < p.batch; ++i) {
      for (int64_t m = 0; m < p.m; ++m) {
        for (int64_t n = 0; n < p.n; ++n) {
          double sum = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            sum += x[p.transpose_a ? a.At(i, k, m) : a.At(i, m, k)] *
                   y[p.transpose_b ? b.At(i, n, k) : b.At(i, k, n)];
          }
          // The sum that a bias is added to is f32.
          if (p.bias != nullptr) {
            sum = static_cast<float>(sum) + static_cast<float>(bias[m]);
          }
          z.data[c.At(i, m, n)] = p.relu && sum < 0 ? 0 : sum;
        }
      }
    }
    fusor::ir::StoreTensor(z, const_cast<void*>(p.c));
    if (workspace_bytes > 0) {
      std::memset(const_cast<void*>(p.workspace), 0xee, workspace_bytes);
    }
  }

 private:
  bool wide_ = false;
  cublasComputeType_t compute_{};
  int64_t epilogue_ = 0;
  int64_t bias_type_ = -1;
};

// Graphs run their jobs repeatedly, so jobs live as long as the process.
std::deque<Job>& Jobs() {
  static std::deque<Job> jobs;
  return jobs;
}

}  // namespace

struct cublasLtContext {};

extern "C" {

FakeCublaslt* FusorFakeCublaslt() { return &State(); }

size_t cublasLtGetVersion() { return 130100; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                               : "CUBLAS_STATUS_INVALID_VALUE";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "the fake was told to"
                                               : "the fake does not";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (Fails("cublasLtCreate")) return CUBLAS_STATUS_NOT_SUPPORTED;
  *handle = new cublasLtContext;
  ++State().handles;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  --State().handles;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
  return Create(operation, {.compute = compute});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return Destroy(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name,
    const void* value, size_t bytes) {
  return Set(operation, name, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  return Create(layout, {.type = type,
                         .rows = static_cast<int64_t>(rows),
                         .columns = static_cast<int64_t>(columns),
                         .leading = leading});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(
    cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name,
    const void* value, size_t bytes) {
  return Set(layout, name, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  return Create(preference, {});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  return Destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t name, const void* value,
    size_t bytes) {
  return Set(preference, name, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int asked,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  if (Fails("cublasLtMatmulAlgoGetHeuristic") || c != d ||
      !Job(operation, a, b, c).IsSound()) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto bias =
      reinterpret_cast<uintptr_t>(Job(operation, a, b, c).product.bias);
  const Descriptor& wanted = Of(preference);
  FakeCublaslt& state = State();
  state.workspace_limit =
      wanted.Get(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  state.alignment = wanted.Get(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 256);
  // The largest power of two that divides the address.
  state.bias_alignment = static_cast<int64_t>(bias & (~bias + 1));
  *count = std::min(asked, static_cast<int>(state.algorithms.size()));
  for (int i = 0; i < *count; ++i) {
    const int64_t workspace = state.algorithms[i];
    results[i] = {};
    results[i].algo.data[0] = static_cast<uint64_t>(i);
    results[i].workspaceSize =
        static_cast<size_t>(std::max<int64_t>(workspace, 0));
    results[i].state =
        workspace < 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout,
                              void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (Fails("cublasLtMatmul")) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto scale = [](const void* p) {
    return *static_cast<const float*>(p);
  };
  Job job(operation, a_layout, b_layout, d_layout);
  if (scale(alpha) != 1 || scale(beta) != 0 || c != d || c_layout != d_layout ||
      !job.IsSound() || reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  job.product.a = a;
  job.product.b = b;
  job.product.c = d;
  job.product.workspace = workspace;
  job.product.algorithm = static_cast<int>(algorithm->data[0]);
  job.workspace_bytes = workspace_bytes;
  State().products.push_back(job.product);
  Jobs().push_back(job);
  const CUresult given = FusorFakeDriver()->LaunchHost(
      reinterpret_cast<CUstream>(stream),
      [](void* data) { static_cast<const Job*>(data)->Run(); }, &Jobs().back());
  return given == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
                               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
