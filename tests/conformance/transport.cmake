# The transport's suite over placements, copy paths, queue pairs and rails.
if(TARGET noria_softverbs)
  noria_ways_test(NAME transport_conformance LABELS conformance transport TIMEOUT 180 LIBS noria_transport
    SOURCES conformance/transport_test.cc conformance/transport_group_test.cc
            conformance/transport_processes_test.cc conformance/transport_memory_test.cc
            conformance/transport_adaptive_test.cc conformance/transport_staging_test.cc
    WAYS cma:early:1qp cma:late:1qp cma:early:2qp cma:late:4qp shm:late:1qp shm:early:2qp
         cma:late:2qp:2rails shm:late:5qp:3rails cma:late:3qp:2rails:ib
         tcp:early:1qp tcp:late:2qp tcp:late:3qp:2rails)

  noria_ways_test(NAME transport_ece_test LABELS conformance transport TIMEOUT 60 LIBS noria_transport
    SOURCES conformance/transport_ece_test.cc WAYS cma:late)

  noria_ways_test(NAME transport_long_test LABELS conformance transport TIMEOUT 120 LIBS noria_transport
    SOURCES conformance/transport_long_test.cc WAYS cma:early:1qp cma:late:3qp shm:late:2qp tcp:late:1qp)

  # The software HCA, asked what each queue pair was told.
  add_library(noria_spyverbs SHARED support/spy_verbs.cc)
  target_link_libraries(noria_spyverbs PRIVATE noria_flags -Wl,--no-as-needed noria_softverbs)
  target_compile_definitions(noria_spyverbs
                             PRIVATE NORIA_SPIED_LIBRARY="$<TARGET_FILE:noria_softverbs>")
  target_link_options(noria_spyverbs PRIVATE
    LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/support/spy_verbs.map)
  set_target_properties(noria_spyverbs PROPERTIES
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                        LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/spy_verbs.map)
  noria_test(NAME qp_attributes_test LABELS conformance transport
             SOURCES conformance/qp_attributes_test.cc LIBS noria_transport noria_spyverbs
             ENVIRONMENT "NORIA_IBVERBS=$<TARGET_FILE:noria_spyverbs>")

  # Random traffic; less of it where a sanitizer makes it ten times slower.
  set(less "")
  if(NORIA_SANITIZE)
    set(less --seeds 6 --messages 70000)
  endif()
  noria_ways_test(NAME transport_property LABELS conformance transport TIMEOUT 180 LIBS noria_transport
    SOURCES conformance/transport_property_test.cc ARGUMENTS ${less}
    WAYS cma:early:2qp:4rails cma:late:1qp cma:late:3qp:4rails shm:early:4qp shm:late:5qp:3rails
         cma:late:2qp:3rails:ib shm:late:1qp:1rails:ib tcp:late:2qp:3rails)
endif()
