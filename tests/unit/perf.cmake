if(TARGET noria_perf_pure)
  noria_test(NAME perf_verify_test LABELS unit SOURCES unit/perf_verify_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_trace_test LABELS unit SOURCES unit/perf_trace_test.cc LIBS noria_perf_pure)
  noria_test(NAME perf_overlap_report_test LABELS unit SOURCES unit/perf_overlap_report_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_budget_test LABELS unit SOURCES unit/perf_budget_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_net_report_test LABELS unit SOURCES unit/perf_net_report_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_machine_check_test LABELS unit SOURCES unit/perf_machine_check_test.cc
             LIBS noria_machine_check)
  noria_test(NAME perf_table_test LABELS unit SOURCES unit/perf_table_test.cc LIBS noria_perf_pure)
endif()
