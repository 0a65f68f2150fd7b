# `cmake --install build`: the library with its public headers, the plug-ins, the
# programs with their manual pages and shell completions, and the files by which
# CMake and pkg-config find the library.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(include_dir ${CMAKE_INSTALL_INCLUDEDIR}/fusor)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fusor)
file(RELATIVE_PATH bin_to_lib
  /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})

set_target_properties(fusor_program PROPERTIES
  INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
install(TARGETS fusor_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES $<TARGET_FILE_DIR:fusor_program>/rn50
  DESTINATION ${CMAKE_INSTALL_BINDIR})  # a link
install(TARGETS fusor fusor_interface EXPORT fusorTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${include_dir})

get_property(backends GLOBAL PROPERTY FUSOR_BUILT_BACKENDS)
foreach(name IN LISTS backends)
  set_target_properties(fusor_${name} PROPERTIES INSTALL_RPATH "$ORIGIN/..")
  install(TARGETS fusor_${name}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/fusor)
endforeach()

set(manual ${PROJECT_BINARY_DIR}/manual)
install(DIRECTORY ${manual}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(DIRECTORY ${manual}/bash/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(DIRECTORY ${manual}/zsh/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(DIRECTORY ${manual}/fish/
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

install(CODE "
  set(ROOTS runtime/fusor.h models/model.h)
  set(SOURCE \"${PROJECT_SOURCE_DIR}\")
  set(DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${include_dir}\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/InstallHeaders.cmake\")")

install(EXPORT fusorTargets NAMESPACE fusor:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fusorConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/fusorConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/package/fusorConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/package/fusorConfig.cmake
  ${PROJECT_BINARY_DIR}/package/fusorConfigVersion.cmake
  DESTINATION ${package_dir})
file(RELATIVE_PATH pkgconfig_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/fusor.pc.in
  ${PROJECT_BINARY_DIR}/package/fusor.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/fusor.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
