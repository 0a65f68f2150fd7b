# Finds NVRTC's header and the library folder that plug-ins search. The library
# itself is opened at run time.
#   nvrtc_FOUND, nvrtc_LIBRARY_DIR, target nvrtc::nvrtc (headers only)
find_path(nvrtc_INCLUDE_DIR nvrtc.h
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include)
find_library(nvrtc_LIBRARY NAMES nvrtc libnvrtc.so.13 libnvrtc.so.12
  HINTS ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES lib64 lib)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(nvrtc
  REQUIRED_VARS nvrtc_LIBRARY nvrtc_INCLUDE_DIR)
mark_as_advanced(nvrtc_INCLUDE_DIR nvrtc_LIBRARY)
if(nvrtc_FOUND)
  get_filename_component(nvrtc_LIBRARY_DIR ${nvrtc_LIBRARY} DIRECTORY)
  if(NOT TARGET nvrtc::nvrtc)
    add_library(nvrtc::nvrtc INTERFACE IMPORTED)
    target_include_directories(nvrtc::nvrtc SYSTEM INTERFACE
      ${nvrtc_INCLUDE_DIR})
  endif()
endif()
