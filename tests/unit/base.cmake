noria_test(NAME params_test LABELS unit SOURCES unit/params_test.cc)
noria_test(NAME counters_test LABELS unit SOURCES unit/counters_test.cc)
noria_test(NAME device_words_test LABELS unit SOURCES unit/device_words_test.cc)
noria_test(NAME fault_words_test LABELS unit SOURCES unit/fault_words_test.cc)
