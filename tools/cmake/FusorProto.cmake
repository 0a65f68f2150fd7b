# fusor_protos(TARGET file.proto...): generates C++ from the files, relative to
# the calling folder, and adds it to the target. Imports and includes use paths
# from the root: "ir/io/graph.pb.h". protobuf_generate() would register files
# without their folder, and equal names in two folders would collide at run
# time. A target that includes another target's headers must depend on
# TARGET_protos.
function(fusor_protos target)
  set(root ${PROJECT_BINARY_DIR}/proto)
  set(generated "")
  foreach(proto IN LISTS ARGN)
    set(file ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${file})
    string(REGEX REPLACE "\\.proto$" "" stem ${root}/${path})
    add_custom_command(
      OUTPUT ${stem}.pb.cc ${stem}.pb.h
      COMMAND ${CMAKE_COMMAND} -E make_directory ${root}
      COMMAND protobuf::protoc --cpp_out=${root} -I ${PROJECT_SOURCE_DIR} ${file}
      DEPENDS ${file} protobuf::protoc
      COMMENT "Generating C++ from ${path}"
      VERBATIM)
    set_source_files_properties(${stem}.pb.cc PROPERTIES
      COMPILE_OPTIONS -w SKIP_PRECOMPILE_HEADERS ON)
    target_sources(${target} PRIVATE ${stem}.pb.cc ${stem}.pb.h)
    list(APPEND generated ${stem}.pb.cc ${stem}.pb.h)
  endforeach()
  add_custom_target(${target}_protos DEPENDS ${generated})
  add_dependencies(${target} ${target}_protos)
  target_include_directories(${target} SYSTEM PRIVATE ${root})
endfunction()
