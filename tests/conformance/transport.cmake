# The transport's suite on the software HCA, over placements, copy paths and queue pairs: one
# executable, and a ctest entry for each world it is run in.
if(NOT TARGET noria_softverbs OR NOT TARGET noria_soft_fixture)
  return()
endif()

function(noria_transport_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT;LABELS" "SOURCES;WORLDS" ${ARGN})
  add_executable(${T_NAME} ${T_SOURCES})
  target_link_libraries(${T_NAME} PRIVATE noria_flags noria_transport noria_soft_fixture
                                          GTest::gtest_main)
  set_target_properties(${T_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(${T_NAME} noria_softverbs)
  foreach(world ${T_WORLDS})
    string(REGEX MATCH "(.*):(.*):(.*)" _ ${world})
    set(name ${T_NAME}_${CMAKE_MATCH_1}_${CMAKE_MATCH_2}_${CMAKE_MATCH_3}qp)
    add_test(NAME ${name} COMMAND ${T_NAME})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS};transport"
      ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_softverbs>;NORIA_SOFT_COPY=${CMAKE_MATCH_1};NORIA_SOFT_PLACE=${CMAKE_MATCH_2};NORIA_QPS_PER_CONNECTION=${CMAKE_MATCH_3}")
  endforeach()
endfunction()

noria_transport_test(NAME transport_conformance LABELS conformance TIMEOUT 180
  SOURCES conformance/transport_test.cc conformance/transport_processes_test.cc
  WORLDS cma:early:1 cma:late:1 cma:early:2 cma:late:4 shm:late:1 shm:early:2)
