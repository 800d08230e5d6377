# The transport against strangers, dying peers and failing calls; worlds as in the conformance suite.
if(NOT COMMAND noria_transport_test)
  return()
endif()

noria_transport_test(NAME transport_fault LABELS fault TIMEOUT 120
  SOURCES fault/transport_handshake_test.cc fault/transport_peer_test.cc
          fault/transport_calls_test.cc
  WORLDS cma:early:1 cma:late:2)
