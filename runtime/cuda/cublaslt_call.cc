// Runs matmuls by cuBLASLt, which is opened at run time.

#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

#include "codegen/cuda/dynamic_library.h"
#include "codegen/cuda/matmul_problem.h"
#include "ir/support/error.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;
using ir::DType;

#define FUSOR_CUBLASLT_FUNCTIONS(F)       \
  F(cublasLtGetVersion)                   \
  F(cublasLtGetStatusName)                \
  F(cublasLtGetStatusString)              \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatrixLayoutSetAttribute)     \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmul)

// Its functions are members of the same names.
struct Cublaslt {
#define FUSOR_CUBLASLT_MEMBER(name) decltype(&::name) name = nullptr;
  FUSOR_CUBLASLT_FUNCTIONS(FUSOR_CUBLASLT_MEMBER)
#undef FUSOR_CUBLASLT_MEMBER

  std::string Version() const;  // "cuBLASLt 13.1.0"
  // Throws kDevice with version, call and status unless `status` is success.
  void Check(cublasStatus_t status, const char* call) const;
};

std::string Cublaslt::Version() const {
  const size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000,
                     version % 10000 / 100, version % 100);
}

void Cublaslt::Check(cublasStatus_t status, const char* call) const {
  FUSOR_CHECK(status == CUBLAS_STATUS_SUCCESS, kDevice, "{}: {}: {} ({})",
              Version(), call, cublasLtGetStatusName(status),
              cublasLtGetStatusString(status));
}

Cublaslt Open() {
  const Library library = Library::OfCuda("libcublasLt");
  FUSOR_CHECK(library.found(), kDevice, "cuBLASLt: {}", library.problem());
  const std::string too_old = DriverTooOld(library.cuda());
  FUSOR_CHECK(too_old.empty(), kDevice, "cuBLASLt: {}: {}", library.name(),
              too_old);
  Cublaslt cublaslt;
#define FUSOR_CUBLASLT_FIND(function)                                          \
  cublaslt.function = library.Find<decltype(cublaslt.function)>(#function);    \
  FUSOR_CHECK(cublaslt.function != nullptr, kDevice, "cuBLASLt: {} has no {}", \
              library.name(), #function);
  FUSOR_CUBLASLT_FUNCTIONS(FUSOR_CUBLASLT_FIND)
#undef FUSOR_CUBLASLT_FIND
  return cublaslt;
}

// Opens cuBLASLt at the first call. Throws kDevice if it is missing or lacks a
// function.
const Cublaslt& LoadCublaslt() {
  static const Cublaslt cublaslt = Open();
  return cublaslt;
}

// Algorithms requested from the heuristic.
constexpr int kAsked = 16;

cudaDataType_t DataType(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF32:
      return CUDA_R_32F;
    default:
      FUSOR_ASSERT(false, "cuBLASLt: {}", DTypeName(dtype));
  }
}

// A handle for the device of the context that is current at construction.
class Handle {
 public:
  Handle() : lt(LoadCublaslt()) {
    lt.Check(lt.cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~Handle() { lt.cublasLtDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t get() const { return handle_; }

  const Cublaslt& lt;

 private:
  cublasLtHandle_t handle_ = nullptr;
};

cublasLtEpilogue_t EpilogueOf(const MatmulProblem& p) {
  if (p.bias) {
    return p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  }
  return p.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

// The matmul descriptor: types, transpositions and epilogue.
class Operation {
 public:
  explicit Operation(const MatmulProblem& p) : lt_(LoadCublaslt()) {
    const auto compute = p.operands == DType::kF32
                             ? CUBLAS_COMPUTE_32F_FAST_TF32
                             : CUBLAS_COMPUTE_32F;
    lt_.Check(lt_.cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F),
              "cublasLtMatmulDescCreate");
    Set(CUBLASLT_MATMUL_DESC_TRANSA, Transposition(p.transpose_a));
    Set(CUBLASLT_MATMUL_DESC_TRANSB, Transposition(p.transpose_b));
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{EpilogueOf(p)});
    if (!p.bias) return;
    Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{DataType(p.result)});
    // The heuristic derives the bias's alignment from this address.
    SetBias(reinterpret_cast<const void*>(codegen::kBufferAlignment));
  }
  ~Operation() { lt_.cublasLtMatmulDescDestroy(operation_); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  cublasLtMatmulDesc_t get() const { return operation_; }
  // Sets the device address of the next matmul's bias.
  void SetBias(const void* bias) const {
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }

 private:
  static cublasOperation_t Transposition(bool transposed) {
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  }
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t name, const T& value) const {
    lt_.Check(lt_.cublasLtMatmulDescSetAttribute(operation_, name, &value,
                                                 sizeof(value)),
              "cublasLtMatmulDescSetAttribute");
  }

  const Cublaslt& lt_;
  cublasLtMatmulDesc_t operation_ = nullptr;
};

// The layout of a matrix, or of a batch of matrices.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t leading,
         int64_t batch, int64_t stride)
      : lt_(LoadCublaslt()) {
    lt_.Check(lt_.cublasLtMatrixLayoutCreate(
                  &layout_, DataType(dtype), static_cast<uint64_t>(rows),
                  static_cast<uint64_t>(columns), leading),
              "cublasLtMatrixLayoutCreate");
    if (batch == 1) return;
    Set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(batch));
    Set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  ~Matrix() { lt_.cublasLtMatrixLayoutDestroy(layout_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  template <typename T>
  void Set(cublasLtMatrixLayoutAttribute_t name, const T& value) {
    lt_.Check(lt_.cublasLtMatrixLayoutSetAttribute(layout_, name, &value,
                                                   sizeof(value)),
              "cublasLtMatrixLayoutSetAttribute");
  }

  const Cublaslt& lt_;
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// Constraints on the algorithm.
class Preference {
 public:
  explicit Preference(int64_t workspace) : lt_(LoadCublaslt()) {
    lt_.Check(lt_.cublasLtMatmulPreferenceCreate(&preference_),
              "cublasLtMatmulPreferenceCreate");
    Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(workspace));
    // Partial sums stay in the compute type, so that sums are rounded once.
    Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      Set(name, uint32_t{codegen::kBufferAlignment});
    }
  }
  ~Preference() { lt_.cublasLtMatmulPreferenceDestroy(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  template <typename T>
  void Set(cublasLtMatmulPreferenceAttributes_t name, const T& value) {
    lt_.Check(lt_.cublasLtMatmulPreferenceSetAttribute(preference_, name,
                                                       &value, sizeof(value)),
              "cublasLtMatmulPreferenceSetAttribute");
  }

  const Cublaslt& lt_;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

class MatmulCall : public DeviceCall {
 public:
  MatmulCall(const LibraryCall& call, const MatmulProblem& p,
             std::shared_ptr<const Handle> handle)
      : handle_(std::move(handle)),
        has_bias_(p.bias),
        operation_(p),
        a_(p.operands, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k,
           p.lda, p.batch, p.stride_a),
        b_(p.operands, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n,
           p.ldb, p.batch, p.stride_b),
        c_(p.result, p.m, p.n, p.ldc, p.batch, p.stride_c) {
    Choose(MatmulWorkspace(call));
  }

  void Enqueue(CUstream stream, void* const* args) const override {
    const float one = 1;
    const float zero = 0;
    void* const* results = args + (has_bias_ ? 3 : 2);
    if (has_bias_) operation_.SetBias(args[2]);
    const auto end =
        reinterpret_cast<uintptr_t>(results[1]) + kMatmulWorkspaceAlignment - 1;
    auto* workspace =
        reinterpret_cast<void*>(end - (end % kMatmulWorkspaceAlignment));
    const Cublaslt& lt = handle_->lt;
    lt.Check(lt.cublasLtMatmul(handle_->get(), operation_.get(), &one, args[1],
                               a_.get(), args[0], b_.get(), &zero, results[0],
                               c_.get(), results[0], c_.get(), &chosen_.algo,
                               workspace, chosen_.workspaceSize, stream),
             "cublasLtMatmul");
  }

 private:
  void Choose(int64_t workspace) {
    const Cublaslt& lt = handle_->lt;
    const Preference preference(workspace);
    std::array<cublasLtMatmulHeuristicResult_t, kAsked> results{};
    int count = 0;
    lt.Check(lt.cublasLtMatmulAlgoGetHeuristic(
                 handle_->get(), operation_.get(), a_.get(), b_.get(), c_.get(),
                 c_.get(), preference.get(), kAsked, results.data(), &count),
             "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < count; ++i) {
      chosen_ = results[i];
      if (chosen_.state == CUBLAS_STATUS_SUCCESS &&
          chosen_.workspaceSize <= static_cast<size_t>(workspace)) {
        return;
      }
    }
    ThrowError(ErrorCode::kDevice,
               fmt::format("{}: cublasLtMatmulAlgoGetHeuristic: {} algorithms, "
                           "none for {} bytes of workspace",
                           lt.Version(), count, workspace));
  }

  std::shared_ptr<const Handle> handle_;
  bool has_bias_;
  Operation operation_;
  Matrix a_, b_, c_;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

}  // namespace

MakeDeviceCall CublasltCalls() {
  return [handle = std::shared_ptr<const Handle>()](
             const LibraryCall& call) mutable -> std::unique_ptr<DeviceCall> {
    if (!IsPreparedMatmul(call)) return nullptr;
    const auto problem = DescribeMatmul(call);
    FUSOR_ASSERT(problem.has_value(), "{}", codegen::Print(call));
    try {
      if (handle == nullptr) handle = std::make_shared<const Handle>();
      return std::make_unique<MatmulCall>(call, *problem, handle);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} by {}: {}", call.op_name(),
                                        call.implementation, e.what()));
    }
  };
}

}  // namespace fusor::cuda
