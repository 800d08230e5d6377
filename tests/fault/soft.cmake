if(TARGET noria_softverbs)
  noria_soft_test(NAME verbs_errors_test LABELS fault TIMEOUT 60 WAYS ${NORIA_ALL_WAYS}
                  SOURCES fault/verbs_errors_test.cc)
  noria_soft_test(NAME soft_faults_test LABELS fault TIMEOUT 60 WAYS ${NORIA_ALL_WAYS}
                  SOURCES fault/soft_faults_test.cc)
  noria_soft_test(NAME soft_peers_test LABELS fault TIMEOUT 180 WAYS ${NORIA_ALL_WAYS}
                  SOURCES fault/soft_peers_test.cc)
  noria_soft_test(NAME soft_descriptors_test LABELS fault TIMEOUT 60 WAYS cma:early
                  SOURCES fault/soft_descriptors_test.cc support/refused_accepts.cc)
  noria_soft_test(NAME soft_holes_test LABELS fault TIMEOUT 60 SOURCES fault/soft_holes_test.cc
                  WAYS cma:early cma:late)
  noria_soft_test(NAME soft_tcp_test LABELS fault TIMEOUT 120 WAYS tcp:early tcp:late
                  SOURCES fault/soft_tcp_test.cc fault/soft_tcp_callers_test.cc support/refused_accepts.cc)
  noria_soft_test(NAME soft_fence_test LABELS fault TIMEOUT 120 WAYS ${NORIA_ALL_WAYS}
                  SOURCES fault/soft_fence_test.cc)
  # The seed says how bytes land. Sanitized, a seed takes four times as long.
  set(seeds 1000)
  if(NORIA_SANITIZE)
    set(seeds 250)
  endif()
  noria_ways_test(NAME soft_seeds_test LABELS fault soft TIMEOUT 300 WAYS cma:late
                  SOURCES fault/soft_seeds_test.cc support/seed_runner.cc support/seed_plan.cc
                          support/seeded_traffic.cc support/seeded_end.cc
                  ARGUMENTS --seeds ${seeds})
endif()
