foreach(name reducer reducer_steps reducer_hooks)
  noria_test(NAME ${name}_test LABELS conformance LIBS noria_bucketing
             SOURCES conformance/${name}_test.cc support/thread_ranks.cc)
endforeach()
# It stands before libc's malloc, which the sanitizers do themselves.
noria_test(NAME reducer_cost_test LABELS conformance no-sanitizer LIBS noria_bucketing
           SOURCES conformance/reducer_cost_test.cc support/thread_ranks.cc support/crew.cc)
