# noria_fuzz(NAME name LIBS ... [PARSERS source ...] [ENVIRONMENT "A=1" ...])
#
# tests/fuzz/NAME.cc as a target, and a ctest entry. Under clang with the address sanitizer it is a
# libFuzzer program that looks for a few seconds on from tests/fuzz/corpus/NAME; elsewhere it replays
# the corpus. PARSERS are the product's sources whose branches guide the search: they are compiled
# anew for the target, in place of the library's.
set(NORIA_FUZZ_SECONDS 4)
set(noria_has_libfuzzer FALSE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NORIA_SANITIZE MATCHES "address")
  set(noria_has_libfuzzer TRUE)
endif()

function(noria_fuzz)
  cmake_parse_arguments(T "" "NAME" "LIBS;PARSERS;ENVIRONMENT" ${ARGN})
  set(target fuzz_${T_NAME})
  set(corpus ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${T_NAME})
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/fuzz/${T_NAME}.cc)
  target_link_libraries(${target} PRIVATE noria_flags ${T_LIBS})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(noria_has_libfuzzer)
    list(TRANSFORM T_PARSERS PREPEND ${CMAKE_SOURCE_DIR}/)
    target_sources(${target} PRIVATE ${T_PARSERS})
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    # What is found lands beside what was learnt, and both are tried first by the next run.
    set(learnt ${CMAKE_BINARY_DIR}/fuzz/${T_NAME})
    file(MAKE_DIRECTORY ${learnt})
    add_test(NAME ${target} COMMAND ${target} -max_total_time=${NORIA_FUZZ_SECONDS} -timeout=20
             -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix=${learnt}/ ${learnt} ${corpus})
  else()
    target_sources(${target} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.cc)
    add_test(NAME ${target} COMMAND ${target} ${corpus})
  endif()
  set_tests_properties(${target} PROPERTIES TIMEOUT 120 LABELS fuzz ENVIRONMENT "${T_ENVIRONMENT}")
endfunction()

noria_fuzz(NAME params)
noria_fuzz(NAME hca_filter)
noria_fuzz(NAME soft_faults)
