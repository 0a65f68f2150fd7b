# Finds libwebp by header and library. Debian has no CMake configuration of it.
#
# Defines libwebp_FOUND and the target libwebp::webp.
find_path(libwebp_INCLUDE_DIR NAMES webp/decode.h)
find_library(libwebp_LIBRARY NAMES webp)
mark_as_advanced(libwebp_INCLUDE_DIR libwebp_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(libwebp
  REQUIRED_VARS libwebp_LIBRARY libwebp_INCLUDE_DIR)

if(libwebp_FOUND AND NOT TARGET libwebp::webp)
  add_library(libwebp::webp UNKNOWN IMPORTED)
  set_target_properties(libwebp::webp PROPERTIES
    IMPORTED_LOCATION ${libwebp_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${libwebp_INCLUDE_DIR})
endif()
