if(TARGET noria AND TARGET noria_softverbs)
  noria_test(NAME comm_test LABELS e2e TIMEOUT 180 LIBS noria
             SOURCES e2e/comm_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1")
  add_dependencies(comm_test noria_softverbs)
endif()
