noria_test(NAME shaper_test LABELS unit SOURCES unit/shaper_test.cc ${CMAKE_SOURCE_DIR}/verbs/soft/shaper.cc)
