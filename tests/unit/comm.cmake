noria_test(NAME control_wire_test LABELS unit LIBS noria_bucketing SOURCES unit/control_wire_test.cc)
noria_test(NAME bootstrap_test LABELS unit LIBS noria_bucketing SOURCES unit/bootstrap_test.cc)
foreach(name clock_offset timeline)
  noria_test(NAME ${name}_test LABELS unit LIBS noria_bucketing SOURCES unit/${name}_test.cc)
endforeach()
noria_test(NAME engine_test LABELS unit LIBS noria_bucketing
           SOURCES unit/engine_test.cc support/fake_ring.cc)
add_library(plain_nccl MODULE support/plain_nccl.cc support/bare_nccl.c)
target_include_directories(plain_nccl PRIVATE ${PROJECT_SOURCE_DIR})
noria_test(NAME nccl_collective_test LABELS unit LIBS noria_bucketing noria_cuda_standin
           SOURCES unit/nccl_collective_test.cc
           ENVIRONMENT "${NORIA_CUDA_STANDIN};TEST_PLAIN_NCCL=$<TARGET_FILE:plain_nccl>")
add_dependencies(nccl_collective_test plain_nccl)
