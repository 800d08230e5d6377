if(TARGET noria_nccl_driver)
  noria_test(NAME nccl_net_fault_test LABELS fault plugin TIMEOUT 120
             SOURCES fault/nccl_net_fault_test.cc LIBS noria_nccl_driver)
  noria_over_tcp_too(early nccl_net_fault_test)
  # no-sanitizer: it puts its own clock before libc's.
  noria_test(NAME nccl_net_patience_test LABELS fault plugin no-sanitizer
             SOURCES fault/nccl_net_patience_test.cc LIBS noria_nccl_driver)
  set_target_properties(nccl_net_patience_test PROPERTIES ENABLE_EXPORTS ON)
  # no-sanitizer: it forks while the device's thread runs.
  noria_test(NAME nccl_net_fork_test LABELS fault plugin no-sanitizer
             SOURCES fault/nccl_net_fork_test.cc LIBS noria_nccl_driver)
endif()
