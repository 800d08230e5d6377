if(NOT TARGET noria OR NOT TARGET noria_softverbs)
  return()
endif()
noria_test(NAME reducer_fault_test LABELS fault TIMEOUT 300 LIBS noria noria_bucketing
           SOURCES fault/reducer_fault_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
add_dependencies(reducer_fault_test noria_softverbs)
