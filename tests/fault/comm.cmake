noria_test(NAME control_test LABELS fault TIMEOUT 120 LIBS noria_bucketing
           SOURCES fault/control_test.cc support/crew.cc)
