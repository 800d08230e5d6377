noria_test(NAME shaper_test LABELS unit SOURCES unit/shaper_test.cc ${CMAKE_SOURCE_DIR}/verbs/soft/shaper.cc)
noria_test(NAME placement_test LABELS unit SOURCES unit/placement_test.cc)
noria_test(NAME soft_parts_test LABELS unit SOURCES unit/soft_parts_test.cc LIBS noria_soft_parts)
