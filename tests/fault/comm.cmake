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

  # Communicators of GPUs, on the stand-in for CUDA's driver and NCCL.
  add_library(bare_nccl MODULE support/bare_nccl.c)
  noria_test(NAME device_fault_test LABELS fault TIMEOUT 120 LIBS noria noria_cuda_standin
             SOURCES fault/device_fault_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1;NORIA_DEBUG=none;${NORIA_CUDA_STANDIN};TEST_BARE_NCCL=$<TARGET_FILE:bare_nccl>")
  add_dependencies(device_fault_test noria_softverbs bare_nccl)
endif()
