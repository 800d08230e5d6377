if(TARGET noria_softverbs)
  noria_test(NAME provider_test LABELS conformance SOURCES conformance/provider_test.cc
             LIBS noria_verbs)
  add_dependencies(provider_test noria_softverbs)
endif()
