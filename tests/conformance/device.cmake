if(TARGET noria AND TARGET noria_softverbs)
  noria_test(NAME device_streams_test LABELS conformance TIMEOUT 180
             SOURCES conformance/device_streams_test.cc
             LIBS noria noria_bucketing noria_cuda_standin
             ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
  add_dependencies(device_streams_test noria_softverbs)
  noria_test(NAME device_memory_test LABELS conformance TIMEOUT 120
             SOURCES conformance/device_memory_test.cc
             LIBS noria noria_bucketing noria_cuda_standin
             ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
  add_dependencies(device_memory_test noria_softverbs)
endif()
