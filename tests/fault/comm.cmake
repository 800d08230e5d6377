noria_test(NAME control_test LABELS fault TIMEOUT 120 LIBS noria_bucketing
           SOURCES fault/control_test.cc support/crew.cc)
noria_test(NAME resolver_test LABELS fault LIBS noria_bucketing SOURCES fault/resolver_test.cc)
if(TARGET noria AND TARGET noria_softverbs)
  noria_test(NAME comm_fault_test LABELS fault TIMEOUT 240 LIBS noria
             SOURCES fault/comm_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1")
  noria_test(NAME split_fault_test LABELS fault LIBS noria
             SOURCES fault/split_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1")
  add_dependencies(comm_fault_test noria_softverbs)
  add_dependencies(split_fault_test noria_softverbs)
endif()
