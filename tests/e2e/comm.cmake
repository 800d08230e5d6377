if(TARGET noria AND TARGET noria_softverbs)
  noria_test(NAME comm_test LABELS e2e TIMEOUT 180 LIBS noria
             SOURCES e2e/comm_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1")
  add_dependencies(comm_test noria_softverbs)

  # The headers and the library from C alone.
  add_executable(c_api_test e2e/c_api_test.c)
  target_link_libraries(c_api_test PRIVATE noria_flags noria)
  set_target_properties(c_api_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NORIA_SANITIZE)  # an instrumented libnoria needs the C++ half of the sanitizer's runtime
    set_target_properties(c_api_test PROPERTIES LINKER_LANGUAGE CXX)
  endif()
  add_dependencies(c_api_test noria_softverbs)
  add_test(NAME c_api_test COMMAND c_api_test)
  set_tests_properties(c_api_test PROPERTIES TIMEOUT 60 LABELS e2e
    ENVIRONMENT "NORIA_SOFT=1;NORIA_SOCKET_IFNAME=lo")
endif()
