if(NOT TARGET noria OR NOT TARGET noria_softverbs)
  return()
endif()
noria_test(NAME c_boundary_test LABELS fault LIBS noria SOURCES fault/c_boundary_test.cc
           ENVIRONMENT "NORIA_DEBUG=none")
noria_test(NAME reducer_fault_test LABELS fault TIMEOUT 300 LIBS noria noria_bucketing
           SOURCES fault/reducer_fault_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
add_dependencies(reducer_fault_test noria_softverbs)
noria_test(NAME device_reducer_fault_test LABELS fault TIMEOUT 300
           SOURCES fault/device_reducer_fault_test.cc
           LIBS noria noria_bucketing noria_cuda_standin
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
add_dependencies(device_reducer_fault_test noria_softverbs)
noria_test(NAME device_sweep_test LABELS fault TIMEOUT 300
           SOURCES fault/device_sweep_test.cc
           LIBS noria noria_bucketing noria_cuda_standin
           ENVIRONMENT "NORIA_SOFT=1;NORIA_DEBUG=none;${NORIA_CUDA_STANDIN}")
add_dependencies(device_sweep_test noria_softverbs)
