if(TARGET noria_softverbs)
  # What any verbs library must do.
  noria_soft_test(NAME verbs_rc_test LABELS conformance TIMEOUT 120 WAYS ${NORIA_ALL_WAYS}
                  SOURCES conformance/verbs_rc_test.cc conformance/verbs_queue_test.cc)
  noria_soft_test(NAME verbs_transitions_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/verbs_transitions_test.cc)
  noria_soft_test(NAME verbs_ece_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/verbs_ece_test.cc)
  foreach(part list limits atomic srq channel)
    noria_soft_test(NAME verbs_${part}_test LABELS conformance TIMEOUT 60 WAYS ${NORIA_ALL_WAYS}
                    SOURCES conformance/verbs_${part}_test.cc)
  endforeach()

  # What the software HCA has of its own.
  noria_soft_test(NAME soft_counters_test LABELS conformance TIMEOUT 60 WAYS ${NORIA_ALL_WAYS}
                  SOURCES conformance/soft_counters_test.cc)
  # Over TCP a sender wakes nobody: the receiver's own process takes in what comes.
  noria_soft_test(NAME soft_wake_test LABELS conformance TIMEOUT 60 WAYS ${NORIA_SOFT_WAYS}
                  SOURCES conformance/soft_wake_test.cc)
  noria_soft_test(NAME soft_late_test LABELS conformance TIMEOUT 60 WAYS cma:late tcp:late
                  SOURCES conformance/soft_late_test.cc)
  noria_soft_test(NAME soft_posted_test LABELS conformance TIMEOUT 60 WAYS cma:late shm:late tcp:late
                  SOURCES conformance/soft_posted_test.cc)
  noria_soft_test(NAME soft_unsupported_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/soft_unsupported_test.cc)
  noria_soft_test(NAME soft_devices_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/soft_devices_test.cc)
  noria_soft_test(NAME soft_time_test LABELS conformance TIMEOUT 60 WAYS cma:early cma:late
                  SOURCES conformance/soft_time_test.cc)
  noria_soft_test(NAME soft_shaper_test LABELS conformance TIMEOUT 60 WAYS ${NORIA_ALL_WAYS}
                  SOURCES conformance/soft_shaper_test.cc
                  ENVIRONMENT NORIA_SOFT_RATE_GBIT=8 NORIA_SOFT_LATENCY_US=200)

  # no-sanitizer, here and below: programs that are not instrumented cannot load an instrumented
  # library.
  if(TARGET noria_soft)
    add_library(noria_foreign_pair OBJECT support/foreign_pair.cc e2e/tool_runs.cc)
    target_link_libraries(noria_foreign_pair PUBLIC noria_flags GTest::gtest)
    target_compile_definitions(noria_foreign_pair PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
    foreach(part clients ucx)
      add_executable(foreign_${part}_test conformance/foreign_${part}_test.cc)
      target_link_libraries(foreign_${part}_test PRIVATE noria_foreign_pair GTest::gtest_main)
      set_target_properties(foreign_${part}_test PROPERTIES
                            RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      add_dependencies(foreign_${part}_test noria_soft)
    endforeach()

    # Loads the library by name and versions, as NCCL does.
    add_executable(dlvsym_client conformance/dlvsym_client.c)
    target_link_libraries(dlvsym_client PRIVATE noria_flags)
    set_target_properties(dlvsym_client PROPERTIES
                          RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

    foreach(way ${NORIA_SOFT_WAYS})
      string(REGEX MATCH "(.*):(.*)" _ ${way})
      set(world NORIA_SOFT_COPY=${CMAKE_MATCH_1} NORIA_SOFT_PLACE=${CMAKE_MATCH_2})
      set(suffix ${CMAKE_MATCH_1}_${CMAKE_MATCH_2})
      add_test(NAME foreign_clients_test_${suffix} COMMAND foreign_clients_test)
      add_test(NAME foreign_ucx_test_${suffix} COMMAND foreign_ucx_test)
      add_test(NAME foreign_dlvsym_test_${suffix} COMMAND noria_soft $<TARGET_FILE:dlvsym_client>)
      add_test(NAME foreign_pyverbs_test_${suffix} COMMAND noria_soft /usr/bin/python3
               ${CMAKE_CURRENT_SOURCE_DIR}/conformance/foreign_pyverbs_test.py)
      set_tests_properties(
        foreign_clients_test_${suffix} foreign_ucx_test_${suffix} foreign_dlvsym_test_${suffix}
        foreign_pyverbs_test_${suffix}
        PROPERTIES TIMEOUT 120 LABELS "conformance;soft;no-sanitizer" SKIP_RETURN_CODE 77
        ENVIRONMENT "${world}")
    endforeach()
  endif()
endif()
