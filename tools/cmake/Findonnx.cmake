# Finds ONNX's protobuf messages. Debian's own CMake configuration also requires
# the whole of ONNX.
#
# Defines onnx_FOUND and the target onnx::proto.
find_path(onnx_INCLUDE_DIR NAMES onnx/onnx_pb.h)
find_library(onnx_LIBRARY NAMES onnx_proto)
mark_as_advanced(onnx_INCLUDE_DIR onnx_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(onnx
  REQUIRED_VARS onnx_LIBRARY onnx_INCLUDE_DIR)

if(onnx_FOUND AND NOT TARGET onnx::proto)
  add_library(onnx::proto UNKNOWN IMPORTED)
  set_target_properties(onnx::proto PROPERTIES
    IMPORTED_LOCATION ${onnx_LIBRARY}
    INTERFACE_COMPILE_DEFINITIONS "ONNX_NAMESPACE=onnx;ONNX_ML=1"
    INTERFACE_INCLUDE_DIRECTORIES ${onnx_INCLUDE_DIR})
endif()
