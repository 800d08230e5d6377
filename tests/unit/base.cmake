noria_test(NAME params_test LABELS unit SOURCES unit/params_test.cc)
