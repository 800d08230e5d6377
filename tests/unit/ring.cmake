noria_test(NAME kernels_test LABELS unit SOURCES unit/kernels_test.cc
           LIBS noria_bucketing PkgConfig::HWY)
noria_test(NAME segments_test LABELS unit SOURCES unit/segments_test.cc LIBS noria_bucketing)
