# Generates runtime/backend/build_id.h with a hash of what a plug-in and
# libfusor must share: headers, compiler and options. A plug-in of another build
# is rejected instead of crashing.
#
# When included, defines the target fusor_build_id. When run as a script
# (cmake -P), writes OUT from SALT and HEADERS_FILE, a list of headers.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_policy(VERSION 3.25)
  file(STRINGS ${HEADERS_FILE} headers)
  set(all "${SALT}")
  foreach(header IN LISTS headers)
    file(SHA256 ${header} hash)
    string(APPEND all ${hash})
  endforeach()
  string(SHA256 id "${all}")
  string(SUBSTRING ${id} 0 16 id)
  # Does not touch an unchanged file.
  file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "#pragma once

namespace fusor::runtime {

inline constexpr char kBuildId[] = \"@id@\";

}  // namespace fusor::runtime
")
  return()
endif()

file(GLOB_RECURSE headers CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/ir/*.h
  ${PROJECT_SOURCE_DIR}/codegen/*.h
  ${PROJECT_SOURCE_DIR}/runtime/*.h)
list(JOIN headers "\n" lines)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/headers.txt
  CONTENT "${lines}\n")
string(CONCAT salt "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} "
  "${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS} ${FUSOR_SANITIZE}")
set(build_id ${PROJECT_BINARY_DIR}/generated/runtime/backend/build_id.h)
add_custom_command(OUTPUT ${build_id}.stamp
  BYPRODUCTS ${build_id}
  COMMAND ${CMAKE_COMMAND} -D OUT=${build_id} -D "SALT=${salt}"
    -D HEADERS_FILE=${PROJECT_BINARY_DIR}/generated/headers.txt
    -P ${CMAKE_CURRENT_LIST_FILE}
  COMMAND ${CMAKE_COMMAND} -E touch ${build_id}.stamp
  DEPENDS ${headers} ${CMAKE_CURRENT_LIST_FILE}
    ${PROJECT_BINARY_DIR}/generated/headers.txt
  VERBATIM)
add_custom_target(fusor_build_id DEPENDS ${build_id}.stamp)
