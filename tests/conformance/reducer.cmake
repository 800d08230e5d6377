noria_test(NAME reducer_test LABELS conformance SOURCES conformance/reducer_test.cc
           support/thread_ranks.cc LIBS noria_bucketing)
