# The transport against strangers, dying peers and failing calls.
if(TARGET noria_softverbs)
  noria_ways_test(NAME transport_fault LABELS fault transport TIMEOUT 120 LIBS noria_transport
    SOURCES fault/transport_handshake_test.cc fault/transport_peer_test.cc
            fault/transport_calls_test.cc fault/transport_faults_test.cc
    WAYS cma:early:1qp cma:late:2qp)
endif()
