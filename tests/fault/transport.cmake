# The transport against strangers, dying peers and failing calls.
if(TARGET noria_softverbs)
  noria_ways_test(NAME transport_fault LABELS fault transport TIMEOUT 120 LIBS noria_transport
    SOURCES fault/transport_handshake_test.cc fault/transport_peer_test.cc
            fault/transport_calls_test.cc fault/transport_faults_test.cc
            fault/transport_memory_test.cc fault/transport_events_test.cc
    WAYS cma:early:1qp cma:late:2qp tcp:late:2qp)

  noria_ways_test(NAME transport_long_fault_test LABELS fault transport TIMEOUT 120 LIBS noria_transport
    SOURCES fault/transport_long_fault_test.cc WAYS cma:early cma:late)

  # The seed says how bytes land, and over how many queue pairs. Sanitized, it takes four times as long.
  set(seeds 1000)
  if(NORIA_SANITIZE)
    set(seeds 150)
  endif()
  noria_ways_test(NAME transport_seeds_test LABELS fault transport TIMEOUT 300 LIBS noria_transport
    SOURCES fault/transport_seeds_test.cc support/seed_runner.cc support/seed_plan.cc
    WAYS cma:late ARGUMENTS --seeds ${seeds})
endif()
