foreach(name plan plan_timed plan_text arrival tensor_table agreement verdict readiness step_gate
             bucket_times bucket_slots step_times finite tensor_shape producer_streams)
  noria_test(NAME ${name}_test LABELS unit SOURCES unit/${name}_test.cc LIBS noria_bucketing)
endforeach()
