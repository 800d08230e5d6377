noria_test(NAME cuda_standin_test LABELS unit LIBS noria_cuda_standin
           SOURCES unit/cuda_standin_test.cc unit/cuda_standin_order_test.cc
                   unit/kernel_standin_test.cc unit/nccl_standin_test.cc)
noria_test(NAME nccl_processes_test LABELS unit LIBS noria_cuda_standin
           SOURCES unit/nccl_processes_test.cc support/crew.cc)
noria_test(NAME device_pack_test LABELS unit LIBS noria_bucketing noria_cuda_standin
           SOURCES unit/device_pack_test.cc ENVIRONMENT ${NORIA_CUDA_STANDIN})
