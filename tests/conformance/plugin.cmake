# The built plugin, loaded and driven as NCCL does.
if(TARGET noria_nccl_net AND TARGET noria_softverbs)
  add_library(noria_nccl_driver STATIC support/nccl_driver.cc)
  target_link_libraries(noria_nccl_driver PUBLIC noria_verbs_fixture)
  target_compile_definitions(noria_nccl_driver
                             PRIVATE NORIA_NET_PLUGIN_FILE="$<TARGET_FILE:noria_nccl_net>")
  add_dependencies(noria_nccl_driver noria_nccl_net noria_softverbs)

  noria_test(NAME nccl_net_test LABELS conformance plugin TIMEOUT 240
             SOURCES conformance/nccl_net_test.cc conformance/nccl_net_group_test.cc LIBS noria_nccl_driver)
  noria_test(NAME nccl_net_ring_test LABELS conformance plugin TIMEOUT 240
             SOURCES conformance/nccl_net_ring_test.cc LIBS noria_nccl_driver)
  noria_test(NAME nccl_rails_test LABELS conformance plugin TIMEOUT 120
             SOURCES conformance/nccl_rails_test.cc LIBS noria_nccl_driver noria_verbs)
  noria_test(NAME nccl_memory_test LABELS conformance plugin TIMEOUT 240
             SOURCES conformance/nccl_memory_test.cc LIBS noria_nccl_driver)
  noria_test(NAME nccl_variables_test LABELS conformance plugin
             SOURCES conformance/nccl_variables_test.cc LIBS noria_nccl_driver noria_spyverbs
             ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_spyverbs>")

  # Over TCP a post moves nothing to its end. The ring takes a minute, too long where a sanitizer
  # multiplies it.
  noria_over_tcp_too(early nccl_net_test nccl_rails_test nccl_memory_test)
  noria_over_tcp_too(late nccl_net_test)
  if(NOT NORIA_SANITIZE)
    noria_over_tcp_too(early nccl_net_ring_test)
    # Eight ranks that poll, and the threads that serve them, share two cores: with another test beside
    # them a message once had no answer for the half minute that a queue pair waits.
    set_tests_properties(nccl_net_ring_test_tcp_early PROPERTIES PROCESSORS 2)
  endif()

  # The tuner, and what it looks for in its process: CUDA's driver, and the NCCL that the logger is of.
  add_library(noria_fake_cuda SHARED support/fake_cuda.c)
  set_target_properties(noria_fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1)
  add_library(noria_fake_nccl SHARED support/fake_nccl.cc)
  foreach(fake noria_fake_cuda noria_fake_nccl)
    target_link_libraries(${fake} PRIVATE noria_flags)
    set_target_properties(${fake} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  endforeach()
  noria_test(NAME nccl_tuner_test LABELS conformance plugin TIMEOUT 120
             SOURCES conformance/nccl_tuner_test.cc LIBS noria_nccl_driver ENVIRONMENT "NORIA_SOFT=1")
  target_compile_definitions(nccl_tuner_test PRIVATE
    NORIA_NET_PLUGIN_FILE="$<TARGET_FILE:noria_nccl_net>"
    NORIA_TUNER_PLUGIN_FILE="$<TARGET_FILE_DIR:noria_nccl_net>/libnccl-tuner-noria.so"
    NORIA_FAKE_CUDA_FILE="$<TARGET_FILE:noria_fake_cuda>"
    NORIA_FAKE_NCCL_FILE="$<TARGET_FILE:noria_fake_nccl>")
  add_dependencies(nccl_tuner_test noria_fake_cuda noria_fake_nccl)

  # no-sanitizer: it puts its own malloc and locks before libc's.
  noria_test(NAME nccl_cost_test LABELS conformance plugin no-sanitizer
             SOURCES conformance/nccl_cost_test.cc)
  target_compile_definitions(nccl_cost_test
                             PRIVATE NORIA_NET_PLUGIN_FILE="$<TARGET_FILE:noria_nccl_net>")
  set_target_properties(nccl_cost_test PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(nccl_cost_test noria_nccl_net noria_softverbs)
endif()
