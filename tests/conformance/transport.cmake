# The transport's suite over placements, copy paths, queue pairs and rails.
if(TARGET noria_softverbs)
  noria_ways_test(NAME transport_conformance LABELS conformance transport TIMEOUT 180 LIBS noria_transport
    SOURCES conformance/transport_test.cc conformance/transport_processes_test.cc
    WAYS cma:early:1qp cma:late:1qp cma:early:2qp cma:late:4qp shm:late:1qp shm:early:2qp
         cma:late:2qp:2rails shm:late:5qp:3rails)
endif()
