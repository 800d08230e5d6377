if(TARGET noria_perf_pure)
  noria_fuzz(NAME trace LIBS noria_perf_pure PARSERS perf/trace.cc)
  noria_fuzz(NAME sizes LIBS noria_perf_pure
             PARSERS perf/sizes.cc perf/bench_options.cc perf/command_line.cc)
  noria_fuzz(NAME nccl_tests_text LIBS noria_perf_pure PARSERS perf/nccl_tests_text.cc perf/log_fault.cc)
  noria_fuzz(NAME tuner_fit LIBS noria_tune_pure
             PARSERS perf/nccl_json_log.cc perf/piecewise_fit.cc perf/scaled_curves.cc
                     perf/tuner_rows.cc)
endif()
