# `make install PREFIX=...`: the program, its manual page, the shared library with its headers and its CMake package, the codecs,
# the models and machine files that ship, the documents, and the licence. libtorch stays where it was found; the rpath points
# there, so the installed program runs from any folder.
include(CMakePackageConfigHelpers)
set_target_properties(tessera tessera_shared PROPERTIES INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib" INSTALL_RPATH_USE_LINK_PATH OFF)
install(TARGETS tessera RUNTIME DESTINATION bin)
install(CODE [[
  file(MAKE_DIRECTORY "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/man/man1")
  execute_process(COMMAND "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin/tessera" man
    OUTPUT_FILE "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/man/man1/tessera.1" COMMAND_ERROR_IS_FATAL ANY)
]])
install(TARGETS tessera_shared LIBRARY DESTINATION lib)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tessera DESTINATION include)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_SOURCE_DIR}/cmake/TesseraConfig.cmake ${CMAKE_BINARY_DIR}/generated/TesseraConfigVersion.cmake
        DESTINATION lib/cmake/Tessera)
if(TARGET tessera_codecs)
  set_target_properties(tessera_codecs PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS tessera_codecs LIBRARY DESTINATION lib/tessera)
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/models ${CMAKE_SOURCE_DIR}/machines DESTINATION share/tessera OPTIONAL)
# The pages that the program's help names, with their pictures, and those to which they link.
foreach(page LICENSE README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md)
  install(FILES ${CMAKE_SOURCE_DIR}/${page} DESTINATION share/doc/tessera OPTIONAL)
endforeach()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION share/doc/tessera OPTIONAL)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION share/doc/tessera)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy DESTINATION share/doc/tessera)
