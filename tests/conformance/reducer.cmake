foreach(name reducer reducer_steps)
  noria_test(NAME ${name}_test LABELS conformance LIBS noria_bucketing
             SOURCES conformance/${name}_test.cc support/thread_ranks.cc)
endforeach()
