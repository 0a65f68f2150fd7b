# Backends are plug-ins: MODULE libraries in build/lib/fusor that libfusor
# opens at run time.
include(HeaderCheck)

# fusor_add_backends(NOT_BACKENDS folder...): adds every subdirectory of the
# current source directory with a CMakeLists.txt, except the listed ones.
# FUSOR_BACKENDS is `auto` (skip backends with missing packages, with a STATUS
# line) or a list of folders, each of which must build.
function(fusor_add_backends)
  cmake_parse_arguments(ARG "" "" "NOT_BACKENDS" ${ARGN})
  file(GLOB lists CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
    ${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt)
  set(folders "")
  foreach(list IN LISTS lists)
    get_filename_component(folder ${list} DIRECTORY)
    if(NOT folder IN_LIST ARG_NOT_BACKENDS)
      list(APPEND folders ${folder})
    endif()
  endforeach()
  list(TRANSFORM folders PREPEND codegen/ OUTPUT_VARIABLE compilers)
  list(TRANSFORM folders PREPEND runtime/ OUTPUT_VARIABLE devices)
  set_property(GLOBAL PROPERTY FUSOR_BACKEND_FOLDERS ${compilers} ${devices})
  if(NOT FUSOR_BACKENDS STREQUAL "auto")
    foreach(name IN LISTS FUSOR_BACKENDS)
      if(NOT name IN_LIST folders)
        list(JOIN folders ", " known)
        message(FATAL_ERROR
          "FUSOR_BACKENDS: no backend folder ${name}; there are: ${known}")
      endif()
    endforeach()
    set(folders ${FUSOR_BACKENDS})
  endif()
  foreach(folder IN LISTS folders)
    add_subdirectory(${folder})
  endforeach()
endfunction()

# fusor_backend(NAME COMPILER ... SOURCES ... LIBS ... REQUIRES ...): adds the
# plug-in fusor_NAME.so with the target's compiler (COMPILER, in codegen/NAME)
# and runtime (SOURCES, in runtime/NAME). REQUIRES: the packages that the folder
# searched with find_package(... QUIET); found if <package>_FOUND is true.
# The library exports only C functions named Fusor* (backend_exports.map). The
# global property FUSOR_BUILT_BACKENDS lists the backends that are built,
# FUSOR_BACKEND_FOLDERS the folders of all backends, built or not.
function(fusor_backend name)
  cmake_parse_arguments(ARG "" "" "COMPILER;SOURCES;LIBS;REQUIRES" ${ARGN})
  set(missing "")
  foreach(package IN LISTS ARG_REQUIRES)
    if(NOT ${package}_FOUND)
      list(APPEND missing ${package})
    endif()
  endforeach()
  if(missing)
    list(JOIN missing ", " missing)
    if(FUSOR_BACKENDS STREQUAL "auto")
      message(STATUS "Backend ${name}: left out, ${missing} not found")
      return()
    endif()
    message(FATAL_ERROR "Backend ${name}: ${missing} not found")
  endif()
  message(STATUS "Backend ${name}: built")

  set(exports ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/backend_exports.map)
  list(TRANSFORM ARG_COMPILER PREPEND ${PROJECT_SOURCE_DIR}/codegen/${name}/)
  add_library(fusor_${name} MODULE ${ARG_SOURCES} ${ARG_COMPILER})
  target_link_libraries(fusor_${name} PRIVATE fusor ${ARG_LIBS})
  target_link_options(fusor_${name} PRIVATE
    -Wl,--version-script=${exports})
  set_target_properties(fusor_${name} PROPERTIES
    PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/fusor
    LINK_DEPENDS ${exports})
  fusor_unity(fusor_${name})
  add_dependencies(fusor_${name} fusor_build_id)
  add_dependencies(fusor_programs fusor_${name})
  set_property(GLOBAL APPEND PROPERTY FUSOR_BUILT_BACKENDS ${name})

  if(FUSOR_TESTS)
    # The packages' imported targets are visible only here.
    fusor_header_check(header_check_${name}
      FOLDERS codegen/${name} runtime/${name} LIBS fusor ${ARG_LIBS})
  endif()
endfunction()
