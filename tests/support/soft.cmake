# noria_soft_test(NAME name SOURCES ... [TIMEOUT s] LABELS conformance|fault [ENVIRONMENT "A=1" ...]
#                 [WAYS copy:place ...])
# One executable over the software HCA, and one ctest entry for each way in which it can move and
# place bytes. The library is loaded by path, so that nothing here links to it.
set(NORIA_SOFT_WAYS cma:early cma:late shm:early shm:late)

add_library(noria_soft_fixture STATIC support/crew.cc support/soft_fixture.cc support/soft_link.cc)
target_link_libraries(noria_soft_fixture PUBLIC noria_flags GTest::gtest)

function(noria_soft_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT;LABELS" "SOURCES;ENVIRONMENT;WAYS" ${ARGN})
  if(NOT T_WAYS)
    set(T_WAYS ${NORIA_SOFT_WAYS})
  endif()
  add_executable(${T_NAME} ${T_SOURCES})
  target_link_libraries(${T_NAME} PRIVATE noria_soft_fixture GTest::gtest_main)
  set_target_properties(${T_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(${T_NAME} noria_softverbs)
  foreach(way ${T_WAYS})
    string(REGEX MATCH "(.*):(.*)" _ ${way})
    set(copy ${CMAKE_MATCH_1})
    set(place ${CMAKE_MATCH_2})
    add_test(NAME ${T_NAME}_${copy}_${place} COMMAND ${T_NAME})
    set_tests_properties(${T_NAME}_${copy}_${place} PROPERTIES
      TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS};soft"
      ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_softverbs>;NORIA_SOFT_COPY=${copy};NORIA_SOFT_PLACE=${place};${T_ENVIRONMENT}")
  endforeach()
endfunction()
