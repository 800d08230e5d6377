noria_test(NAME kernels_test LABELS unit SOURCES unit/kernels_test.cc
           LIBS noria_bucketing PkgConfig::HWY)
noria_test(NAME pack_tile_test LABELS unit SOURCES unit/pack_tile_test.cc LIBS noria_bucketing)
noria_test(NAME segments_test LABELS unit SOURCES unit/segments_test.cc LIBS noria_bucketing)
noria_test(NAME slot_lines_test LABELS unit SOURCES unit/slot_lines_test.cc LIBS noria_bucketing)
noria_test(NAME ring_schedule_test LABELS unit SOURCES unit/ring_schedule_test.cc
           LIBS noria_bucketing)
noria_test(NAME ring_line_test LABELS unit SOURCES unit/ring_line_test.cc LIBS noria_bucketing)
# The ring on a transport without a device, which stands in for noria_transport.
noria_test(NAME ring_test LABELS unit TIMEOUT 240
           SOURCES unit/ring_test.cc support/fake_transport.cc LIBS noria_bucketing)
