# cmake --install build: libraries, public headers, tools, examples, the package for Python, noria.pc
# and the CMake package noria::noria. Everything refers to its neighbours by relative paths, so the
# tree may be moved, and `--prefix` may differ from the one that was configured.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/noria DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
        FILES_MATCHING PATTERN "*.c" PATTERN "*.cc" PATTERN "*.py" PATTERN "README.md"
        PATTERN "__pycache__" EXCLUDE)
foreach(library noria noria_softverbs noria_nccl_net)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

# A link to its neighbour, so that the tree may be moved; and the tables that its tuner looks for
# beside it.
if(TARGET noria_nccl_net)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/plugin/tuner/tables/
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/noria/tables FILES_MATCHING PATTERN "*.csv")
  install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libnccl-tuner-noria.so
          DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# The package for Python, and beside it a link to the library, by a path that moves with the tree.
set(NORIA_PYTHON_DIR ${CMAKE_INSTALL_DATADIR}/noria/python)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/bucketing/python/noria DESTINATION ${NORIA_PYTHON_DIR}
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
file(RELATIVE_PATH NORIA_LIBDIR_FROM_PYTHON
     ${CMAKE_INSTALL_FULL_DATADIR}/noria/python/noria ${CMAKE_INSTALL_FULL_LIBDIR})
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/python)
set(NORIA_PYTHON_LINK libnoria.so.${PROJECT_VERSION_MAJOR})
file(CREATE_LINK ${NORIA_LIBDIR_FROM_PYTHON}/${NORIA_PYTHON_LINK}
     ${CMAKE_BINARY_DIR}/python/${NORIA_PYTHON_LINK} SYMBOLIC)
install(FILES ${CMAKE_BINARY_DIR}/python/${NORIA_PYTHON_LINK}
        DESTINATION ${NORIA_PYTHON_DIR}/noria)

# Every program that the perf room builds into bin/ is a tool.
if(NORIA_PERF AND EXISTS ${CMAKE_SOURCE_DIR}/perf/CMakeLists.txt)
  get_property(perf_targets DIRECTORY ${CMAKE_SOURCE_DIR}/perf PROPERTY BUILDSYSTEM_TARGETS)
  foreach(tool ${perf_targets})
    get_target_property(kind ${tool} TYPE)
    if(kind STREQUAL "EXECUTABLE")
      install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    endif()
  endforeach()
endif()

file(RELATIVE_PATH NORIA_PREFIX_FROM_PC
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/noria.pc.in ${CMAKE_BINARY_DIR}/noria.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/noria.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/noriaConfig.cmake.in
  ${CMAKE_BINARY_DIR}/noriaConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/noria
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
# Until 1.0 a minor version may change the C API.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/noriaConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/noriaConfig.cmake ${CMAKE_BINARY_DIR}/noriaConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/noria)
