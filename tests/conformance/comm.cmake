# Communicators of GPUs, on the stand-in for CUDA's driver and NCCL.
if(TARGET noria AND TARGET noria_softverbs)
  noria_test(NAME device_collectives_test LABELS conformance TIMEOUT 120
             LIBS noria noria_cuda_standin
             SOURCES conformance/device_collectives_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1;${NORIA_CUDA_STANDIN}")
  add_dependencies(device_collectives_test noria_softverbs)
endif()
