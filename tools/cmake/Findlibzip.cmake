# Finds libzip by header and library. Debian's own CMake configuration requires
# programs of another package.
#
# Defines libzip_FOUND and the target libzip::zip.
find_path(libzip_INCLUDE_DIR NAMES zip.h)
find_library(libzip_LIBRARY NAMES zip)
mark_as_advanced(libzip_INCLUDE_DIR libzip_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(libzip
  REQUIRED_VARS libzip_LIBRARY libzip_INCLUDE_DIR)

if(libzip_FOUND AND NOT TARGET libzip::zip)
  add_library(libzip::zip UNKNOWN IMPORTED)
  set_target_properties(libzip::zip PROPERTIES
    IMPORTED_LOCATION ${libzip_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${libzip_INCLUDE_DIR})
endif()
