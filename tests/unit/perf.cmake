if(TARGET noria_perf_pure)
  noria_test(NAME perf_verify_test LABELS unit SOURCES unit/perf_verify_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_trace_test LABELS unit SOURCES unit/perf_trace_test.cc LIBS noria_perf_pure)
  noria_test(NAME perf_overlap_report_test LABELS unit SOURCES unit/perf_overlap_report_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_step_lines_test LABELS unit SOURCES unit/perf_step_lines_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_overlap_plan_test LABELS unit SOURCES unit/perf_overlap_plan_test.cc
             LIBS noria_perf_pure noria_bucketing)
  noria_test(NAME perf_budget_test LABELS unit SOURCES unit/perf_budget_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_net_report_test LABELS unit SOURCES unit/perf_net_report_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_net_warmup_test LABELS unit SOURCES unit/perf_net_warmup_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_machine_check_test LABELS unit SOURCES unit/perf_machine_check_test.cc
             LIBS noria_machine_check noria_tuner)
  noria_test(NAME perf_net_control_test LABELS unit
             SOURCES unit/perf_net_control_test.cc ${CMAKE_SOURCE_DIR}/perf/net_control.cc
             LIBS noria_perf_pure noria_bucketing)
  noria_test(NAME perf_exit_codes_test LABELS unit SOURCES unit/perf_exit_codes_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_table_test LABELS unit SOURCES unit/perf_table_test.cc LIBS noria_perf_pure)
  noria_test(NAME perf_nccl_tests_text_test LABELS unit SOURCES unit/perf_nccl_tests_text_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_nccl_json_log_test LABELS unit SOURCES unit/perf_nccl_json_log_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_piecewise_fit_test LABELS unit SOURCES unit/perf_piecewise_fit_test.cc
             LIBS noria_perf_pure)
  noria_test(NAME perf_tune_test LABELS unit
             SOURCES unit/perf_bandwidth_svg_test.cc unit/perf_cells_left_test.cc
                     unit/perf_regret_test.cc
                     unit/perf_scaled_curves_test.cc unit/perf_sweep_script_test.cc
                     unit/perf_tune_curves_test.cc unit/perf_tuner_rows_test.cc
             LIBS noria_tune_pure)
  if(EXISTS ${NORIA_NCCL_LOGS}/raw)
    noria_test(NAME perf_nccl_logs_test LABELS unit SOURCES unit/perf_nccl_logs_test.cc
               LIBS noria_tune_pure)
    target_compile_definitions(perf_nccl_logs_test PRIVATE NORIA_NCCL_LOGS="${NORIA_NCCL_LOGS}"
      NORIA_FIGURES="${PROJECT_SOURCE_DIR}/plugin/tuner/figures")
  else()
    message(STATUS "no test of public nccl-tests logs: ${NORIA_NCCL_LOGS} is not there")
  endif()
endif()
