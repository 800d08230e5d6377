if(NOT TARGET noria_softverbs)
  return()
endif()
noria_test(NAME reducer_e2e_test LABELS e2e TIMEOUT 300 LIBS noria noria_bucketing
           SOURCES e2e/reducer_e2e_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
add_dependencies(reducer_e2e_test noria_softverbs)
