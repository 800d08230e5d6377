# Rings of forked ranks, for each copy path and placement.
if(TARGET noria_softverbs)
  noria_ways_test(NAME ring_conformance LABELS conformance TIMEOUT 300 LIBS noria_bucketing
                  SOURCES conformance/ring_conformance_test.cc WAYS cma:early cma:late shm:late cma:late:1qp:2rails)
endif()
