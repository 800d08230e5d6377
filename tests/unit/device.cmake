noria_test(NAME cuda_standin_test LABELS unit LIBS noria_cuda_standin
           SOURCES unit/cuda_standin_test.cc unit/cuda_standin_order_test.cc
                   unit/nccl_standin_test.cc)
