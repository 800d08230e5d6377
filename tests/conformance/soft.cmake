if(TARGET noria_softverbs)
  include(support/soft.cmake)
  noria_soft_test(NAME soft_rc_test LABELS conformance TIMEOUT 120
                  SOURCES conformance/soft_rc_test.cc conformance/soft_queue_test.cc)
  noria_soft_test(NAME soft_transitions_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/soft_transitions_test.cc)
  noria_soft_test(NAME soft_limits_test LABELS conformance TIMEOUT 60
                  SOURCES conformance/soft_limits_test.cc)
  noria_soft_test(NAME soft_atomic_test LABELS conformance TIMEOUT 60
                  SOURCES conformance/soft_atomic_test.cc)
  noria_soft_test(NAME soft_srq_test LABELS conformance TIMEOUT 60
                  SOURCES conformance/soft_srq_test.cc)
  noria_soft_test(NAME soft_channel_test LABELS conformance TIMEOUT 60
                  SOURCES conformance/soft_channel_test.cc)
  noria_soft_test(NAME soft_late_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/soft_late_test.cc)
  noria_soft_test(NAME soft_devices_test LABELS conformance TIMEOUT 60 WAYS cma:late
                  SOURCES conformance/soft_devices_test.cc)
  noria_soft_test(NAME soft_shaper_test LABELS conformance TIMEOUT 60
                  SOURCES conformance/soft_shaper_test.cc
                  ENVIRONMENT NORIA_SOFT_RATE_GBIT=8 NORIA_SOFT_LATENCY_US=200)
endif()
