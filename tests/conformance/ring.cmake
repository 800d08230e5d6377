# Rings of forked ranks on the software HCA; a ctest entry for each copy path and placement.
if(NOT TARGET noria_softverbs OR NOT TARGET noria_soft_fixture)
  return()
endif()
add_executable(ring_conformance conformance/ring_conformance_test.cc)
target_link_libraries(ring_conformance PRIVATE noria_flags noria_bucketing noria_soft_fixture
                                               GTest::gtest_main)
set_target_properties(ring_conformance PROPERTIES
                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(ring_conformance noria_softverbs)
foreach(world cma:early cma:late shm:late)
  string(REPLACE ":" ";" world ${world})
  list(GET world 0 copy)
  list(GET world 1 place)
  add_test(NAME ring_conformance_${copy}_${place} COMMAND ring_conformance)
  set_tests_properties(ring_conformance_${copy}_${place} PROPERTIES TIMEOUT 300 LABELS "conformance"
    ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_softverbs>;NORIA_SOFT_COPY=${copy};NORIA_SOFT_PLACE=${place}")
endforeach()
