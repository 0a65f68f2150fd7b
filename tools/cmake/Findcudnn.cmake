# Finds cuDNN's headers, the CUDA runtime headers that they include, and the
# library folder that plug-ins search. The library itself is opened at run time.
#   cudnn_FOUND, cudnn_LIBRARY_DIR, target cudnn::cudnn (headers only)
find_path(cudnn_INCLUDE_DIR cudnn_graph.h
  HINTS ENV CUDNN_HOME ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include)
find_path(cudart_INCLUDE_DIR cuda_runtime_api.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include)
find_library(cudnn_LIBRARY NAMES cudnn libcudnn.so.9
  HINTS ENV CUDNN_HOME ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES lib64 lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cudnn
  REQUIRED_VARS cudnn_LIBRARY cudnn_INCLUDE_DIR cudart_INCLUDE_DIR)
mark_as_advanced(cudnn_INCLUDE_DIR cudart_INCLUDE_DIR cudnn_LIBRARY)
if(cudnn_FOUND)
  get_filename_component(cudnn_LIBRARY_DIR ${cudnn_LIBRARY} DIRECTORY)
  if(NOT TARGET cudnn::cudnn)
    add_library(cudnn::cudnn INTERFACE IMPORTED)
    target_include_directories(cudnn::cudnn SYSTEM INTERFACE
      ${cudnn_INCLUDE_DIR} ${cudart_INCLUDE_DIR})
  endif()
endif()
