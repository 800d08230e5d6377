noria_test(NAME plan_test LABELS unit SOURCES unit/plan_test.cc LIBS noria_bucketing)
