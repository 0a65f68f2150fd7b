# Checks that every header compiles alone. Headers with a source are checked by
# that source, which includes its own header first (check_style.py, rule
# own-header). Headers without a source are compiled here, one generated file
# each.

# fusor_header_check(TARGET FOLDERS folder... [EXCLUDE folder...] LIBS lib...):
# adds the OBJECT library TARGET of all headers in the folders, relative to the
# root, that have no source of the same name.
function(fusor_header_check target)
  cmake_parse_arguments(ARG "" "" "FOLDERS;EXCLUDE;LIBS" ${ARGN})
  if(FUSOR_SANITIZE)  # the default build checks the same
    return()
  endif()
  set(generated "")
  foreach(folder IN LISTS ARG_FOLDERS)
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS
      RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/${folder}/*.h)
    foreach(header IN LISTS headers)
      string(REGEX REPLACE "\\.h$" ".cc" source ${header})
      set(excluded FALSE)
      foreach(prefix IN LISTS ARG_EXCLUDE)
        string(FIND ${header} ${prefix}/ position)
        if(position EQUAL 0)
          set(excluded TRUE)
        endif()
      endforeach()
      if(excluded OR EXISTS ${PROJECT_SOURCE_DIR}/${source})
        continue()
      endif()
      set(unit ${PROJECT_BINARY_DIR}/header_check/${source})
      file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"${header}\"\n")
      list(APPEND generated ${unit})
    endforeach()
  endforeach()
  if(generated)
    add_library(${target} OBJECT ${generated})
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
  endif()
endfunction()
