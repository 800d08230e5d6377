if(TARGET all_reduce_perf)
  foreach(tool all_reduce_perf overlap_perf noria_info)
    noria_test(NAME ${tool}_test LABELS e2e TIMEOUT 180 SOURCES e2e/${tool}_test.cc e2e/tool_runs.cc
               LIBS noria_perf_pure)
    target_compile_definitions(${tool}_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
    add_dependencies(${tool}_test ${tool})
  endforeach()
  add_dependencies(noria_info_test all_reduce_perf)
  noria_test(NAME block_tools_test LABELS e2e TIMEOUT 180
             SOURCES e2e/block_tools_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(block_tools_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(block_tools_test reduce_scatter_perf all_gather_perf)
  noria_test(NAME gpu_tools_test LABELS e2e TIMEOUT 180
             SOURCES e2e/gpu_tools_test.cc e2e/tool_runs.cc LIBS noria_perf_pure
             ENVIRONMENT "${NORIA_CUDA_STANDIN}")
  target_compile_definitions(gpu_tools_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/"
                             NORIA_GPU_CHECK="${CMAKE_SOURCE_DIR}/perf/gpu_check")
  add_dependencies(gpu_tools_test pack_check all_reduce_perf reduce_scatter_perf all_gather_perf overlap_perf
                   noria_cuda_standin noria_nccl_net noria_softverbs)
  noria_test(NAME noria_trace_test LABELS e2e SOURCES e2e/noria_trace_test.cc e2e/tool_runs.cc
             LIBS noria_perf_pure)
  target_compile_definitions(noria_trace_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(noria_trace_test noria_trace overlap_perf noria_softverbs)
  noria_test(NAME noria_tune_test LABELS e2e SOURCES e2e/noria_tune_test.cc e2e/tool_runs.cc
             LIBS noria_perf_pure)
  target_compile_definitions(noria_tune_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(noria_tune_test noria_tune)
  noria_test(NAME noria_tune_fit_test LABELS e2e SOURCES e2e/noria_tune_fit_test.cc e2e/tool_runs.cc
             LIBS noria_perf_pure)
  target_compile_definitions(noria_tune_fit_test PRIVATE
    NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/"
    NORIA_TABLES="${CMAKE_SOURCE_DIR}/plugin/tuner/tables")
  add_dependencies(noria_tune_fit_test noria_tune)
  noria_test(NAME noria_tune_explain_test LABELS e2e
             SOURCES e2e/noria_tune_explain_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(noria_tune_explain_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(noria_tune_explain_test noria_tune choice_time)
  # The tables that come with noria are what the logs give.
  if(EXISTS ${NORIA_NCCL_LOGS}/raw)
    set(tuner ${PROJECT_SOURCE_DIR}/plugin/tuner)
    add_test(NAME shipped_tables_test
             COMMAND bash -euc [[made=$(mktemp -d); trap 'rm -rf "$made"' EXIT
                                 "$0" "$1" "$2" "$made"; diff -r "$3" "$made"]]
                     ${tuner}/make_tables $<TARGET_FILE:noria_tune> ${NORIA_NCCL_LOGS}/raw
                     ${tuner}/tables)
    set_tests_properties(shipped_tables_test PROPERTIES LABELS e2e TIMEOUT 60)
  endif()
  # no-sanitizer: programs that are not instrumented cannot load an instrumented library.
  noria_test(NAME noria_soft_test LABELS e2e no-sanitizer SOURCES e2e/noria_soft_test.cc e2e/tool_runs.cc
             LIBS noria_perf_pure)
  target_compile_definitions(noria_soft_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(noria_soft_test noria_soft)
  noria_test(NAME local_ranks_test LABELS e2e TIMEOUT 120
             SOURCES e2e/local_ranks_test.cc e2e/tool_runs.cc LIBS noria_perf ENVIRONMENT "NORIA_SOFT=1")
  target_compile_definitions(local_ranks_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(local_ranks_test noria_softverbs)
  if(TARGET mpi_all_reduce_bench)
    noria_test(NAME compare_mpi_test LABELS e2e TIMEOUT 180
               SOURCES e2e/compare_mpi_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
    target_compile_definitions(compare_mpi_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
    add_dependencies(compare_mpi_test compare_mpi mpi_all_reduce_bench all_reduce_perf)
  endif()
  # no-sanitizer: perftest is not instrumented.
  noria_test(NAME compare_perftest_test LABELS e2e no-sanitizer TIMEOUT 120
             SOURCES e2e/compare_perftest_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(compare_perftest_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(compare_perftest_test compare_perftest)
  noria_test(NAME net_perf_test LABELS e2e plugin TIMEOUT 180
             SOURCES e2e/net_perf_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(net_perf_test PRIVATE
    NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/"
    NORIA_NET_PLUGIN_FILE="$<TARGET_FILE:noria_nccl_net>"
    NORIA_NO_PLUGIN_FILE="$<TARGET_FILE:noria_softverbs>")
  add_dependencies(net_perf_test net_perf)
  # no-sanitizer: perftest is not instrumented.
  noria_test(NAME compare_net_test LABELS e2e no-sanitizer TIMEOUT 120
             SOURCES e2e/compare_net_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(compare_net_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(compare_net_test compare_net)
  # no-sanitizer: perftest is not instrumented.
  noria_test(NAME two_hosts_test LABELS e2e no-sanitizer TIMEOUT 240
             SOURCES e2e/two_hosts_test.cc e2e/tool_runs.cc support/two_hosts.cc LIBS noria_perf_pure)
  target_compile_definitions(two_hosts_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(two_hosts_test all_reduce_perf noria_soft noria_softverbs)
  noria_test(NAME slot_baseline_test LABELS e2e SOURCES e2e/slot_baseline_test.cc e2e/tool_runs.cc
             LIBS noria_perf_pure)
  target_compile_definitions(slot_baseline_test PRIVATE NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/")
  add_dependencies(slot_baseline_test slot_baseline)
  # no-sanitizer: it counts instructions.
  noria_test(NAME instr_budget_test LABELS e2e no-sanitizer TIMEOUT 180
             SOURCES e2e/instr_budget_test.cc e2e/tool_runs.cc LIBS noria_perf_pure)
  target_compile_definitions(instr_budget_test PRIVATE
    NORIA_BIN_DIR="${CMAKE_BINARY_DIR}/bin/"
    NORIA_BUDGET_FILE="${CMAKE_SOURCE_DIR}/perf/instr_budget.txt")
  add_dependencies(instr_budget_test instr_budget noria_softverbs noria_cuda_standin)
endif()
