# Finds oneDNN by header and library. Debian's dnnl-config.cmake requires OpenCL
# development files, which fusor does not need.
#
# Defines oneDNN_FOUND, oneDNN_VERSION and the target oneDNN::oneDNN.
find_path(oneDNN_INCLUDE_DIR NAMES dnnl.hpp)
find_library(oneDNN_LIBRARY NAMES dnnl)
mark_as_advanced(oneDNN_INCLUDE_DIR oneDNN_LIBRARY)

set(oneDNN_VERSION "")
if(oneDNN_INCLUDE_DIR)
  set(header ${oneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h)
  if(EXISTS ${header})
    file(STRINGS ${header} lines REGEX
      "#define DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    list(TRANSFORM lines REPLACE "[^0-9]+" "")
    list(JOIN lines "." oneDNN_VERSION)
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN
  REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR
  VERSION_VAR oneDNN_VERSION)

if(oneDNN_FOUND AND NOT TARGET oneDNN::oneDNN)
  add_library(oneDNN::oneDNN UNKNOWN IMPORTED)
  set_target_properties(oneDNN::oneDNN PROPERTIES
    IMPORTED_LOCATION ${oneDNN_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${oneDNN_INCLUDE_DIR})
endif()
