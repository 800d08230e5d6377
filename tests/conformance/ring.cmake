# Rings of forked ranks, for each copy path and placement.
if(TARGET noria_softverbs)
  # Over TCP bytes that land late take a minute and a half: too long where a sanitizer multiplies it.
  set(late_tcp tcp:late)
  if(NORIA_SANITIZE)
    set(late_tcp "")
  endif()
  noria_ways_test(NAME ring_conformance LABELS conformance TIMEOUT 300 LIBS noria_bucketing
                  SOURCES conformance/ring_conformance_test.cc
                  WAYS cma:early cma:late shm:late cma:late:1qp:2rails tcp:early ${late_tcp})
endif()
