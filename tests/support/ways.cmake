# noria_ways_test(NAME name SOURCES ... [LIBS ...] LABELS ... TIMEOUT s WAYS copy:place[:Nqp[:Nrails[:ib]]] ...
#                 [ARGUMENTS ...] [ENVIRONMENT "A=1" ...])
# One executable, and one ctest entry for each way in which the software HCA moves and places bytes, with
# so many queue pairs a connection over so many devices, which are of InfiniBand or else of Ethernet. All of it, and the library, comes from the
# environment, so that the same executable runs elsewhere: NORIA_IBVERBS=libibverbs.so.1 build/tests/name
set(NORIA_SOFT_WAYS cma:early cma:late shm:early shm:late)
set(NORIA_ALL_WAYS ${NORIA_SOFT_WAYS} tcp:early tcp:late)
# Of one kind and unlike in speed, so that messages are cut unevenly.
set(NORIA_RAILS "name=rail0,rate=400" "name=rail1,rate=100" "name=rail2,rate=200" "name=rail3,rate=40")

add_library(noria_verbs_fixture STATIC support/crew.cc support/verbs_fixture.cc support/verbs_link.cc)
target_link_libraries(noria_verbs_fixture PUBLIC noria_flags GTest::gtest)

function(noria_ways_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "SOURCES;LIBS;LABELS;WAYS;ARGUMENTS;ENVIRONMENT" ${ARGN})
  add_executable(${T_NAME} ${T_SOURCES})
  target_link_libraries(${T_NAME} PRIVATE noria_verbs_fixture ${T_LIBS} GTest::gtest_main)
  set_target_properties(${T_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(${T_NAME} noria_softverbs)
  foreach(way ${T_WAYS})
    string(REPLACE ":" "_" name ${T_NAME}_${way})
    string(REGEX MATCH "^([a-z]+):([a-z]+)(:([0-9]+)qp)?(:([0-9]+)rails)?(:ib)?$" _ ${way})
    set(environment "NORIA_IBVERBS=$<TARGET_FILE:noria_softverbs>" NORIA_SOFT_COPY=${CMAKE_MATCH_1}
                    NORIA_SOFT_PLACE=${CMAKE_MATCH_2} ${T_ENVIRONMENT})
    if(CMAKE_MATCH_4)
      list(APPEND environment NORIA_QPS_PER_CONNECTION=${CMAKE_MATCH_4})
    endif()
    if(CMAKE_MATCH_6)
      list(SUBLIST NORIA_RAILS 0 ${CMAKE_MATCH_6} devices)
      if(CMAKE_MATCH_7)
        list(TRANSFORM devices APPEND ",ll=ib")
      endif()
      list(JOIN devices "\\;" devices)
      list(APPEND environment "NORIA_SOFT_DEVICES=${devices}")
    endif()
    add_test(NAME ${name} COMMAND ${T_NAME} ${T_ARGUMENTS})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} LABELS "${T_LABELS}"
                         ENVIRONMENT "${environment}")
  endforeach()
endfunction()

# noria_over_tcp_too(early|late NAME ...)
# The same tests once more, in which all bytes between processes go over TCP, and land so.
function(noria_over_tcp_too place)
  foreach(name ${ARGN})
    get_test_property(${name} ENVIRONMENT environment)
    get_test_property(${name} LABELS labels)
    get_test_property(${name} TIMEOUT timeout)
    add_test(NAME ${name}_tcp_${place} COMMAND ${name})
    set_tests_properties(${name}_tcp_${place} PROPERTIES TIMEOUT ${timeout} LABELS "${labels}"
                         ENVIRONMENT "${environment};NORIA_SOFT_COPY=tcp;NORIA_SOFT_PLACE=${place}")
  endforeach()
endfunction()

# noria_soft_test(NAME name SOURCES ... TIMEOUT s LABELS conformance|fault [WAYS ...] [ENVIRONMENT ...])
# What asks verbs of the software HCA, in all of its ways.
function(noria_soft_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "SOURCES;LABELS;WAYS;ENVIRONMENT" ${ARGN})
  if(NOT T_WAYS)
    set(T_WAYS ${NORIA_SOFT_WAYS})
  endif()
  noria_ways_test(NAME ${T_NAME} SOURCES ${T_SOURCES} LABELS ${T_LABELS} soft TIMEOUT ${T_TIMEOUT}
                  WAYS ${T_WAYS} ENVIRONMENT ${T_ENVIRONMENT})
endfunction()
