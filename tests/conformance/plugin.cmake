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

  # no-sanitizer: it puts its own malloc and locks before libc's.
  noria_test(NAME nccl_cost_test LABELS conformance plugin no-sanitizer
             SOURCES conformance/nccl_cost_test.cc)
  target_compile_definitions(nccl_cost_test
                             PRIVATE NORIA_NET_PLUGIN_FILE="$<TARGET_FILE:noria_nccl_net>")
  set_target_properties(nccl_cost_test PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(nccl_cost_test noria_nccl_net noria_softverbs)
endif()
