# What `cmake --install` gives, used as a stranger would.
if(TARGET noria)
  # no-sanitizer: a C program of a user's does not link an instrumented library.
  noria_test(NAME install_test LABELS e2e no-sanitizer TIMEOUT 120 SOURCES e2e/install_test.cc)
  target_compile_definitions(install_test PRIVATE
    NORIA_BUILD_DIR="${CMAKE_BINARY_DIR}" NORIA_C_COMPILER="${CMAKE_C_COMPILER}"
    NORIA_CXX_COMPILER="${CMAKE_CXX_COMPILER}" NORIA_DOCDIR="${CMAKE_INSTALL_DOCDIR}"
    NORIA_CMAKE="${CMAKE_COMMAND}" NORIA_LIBDIR="${CMAKE_INSTALL_LIBDIR}")
endif()

noria_test(NAME setup_test LABELS e2e SOURCES e2e/setup_test.cc)
target_compile_definitions(setup_test PRIVATE NORIA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
