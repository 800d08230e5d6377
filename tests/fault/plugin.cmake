if(TARGET noria_nccl_driver)
  noria_test(NAME nccl_net_fault_test LABELS fault plugin TIMEOUT 120
             SOURCES fault/nccl_net_fault_test.cc LIBS noria_nccl_driver)
  # no-sanitizer: it forks while the device's thread runs.
  noria_test(NAME nccl_net_fork_test LABELS fault plugin no-sanitizer
             SOURCES fault/nccl_net_fork_test.cc LIBS noria_nccl_driver)
endif()
