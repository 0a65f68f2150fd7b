# Finds cuBLASLt's header and the CUDA runtime headers that it includes. The
# library itself is opened at run time.
#   cublaslt_FOUND, cublaslt_INCLUDE_DIR
find_path(cublaslt_INCLUDE_DIR cublasLt.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include)
find_path(cudart_INCLUDE_DIR cuda_runtime_api.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cublaslt
  REQUIRED_VARS cublaslt_INCLUDE_DIR cudart_INCLUDE_DIR)
mark_as_advanced(cublaslt_INCLUDE_DIR cudart_INCLUDE_DIR)
