noria_test(NAME transport_unit_test LABELS unit LIBS noria_transport
           SOURCES unit/wire_test.cc unit/stripe_test.cc unit/credit_test.cc
                   unit/control_socket_test.cc unit/interfaces_test.cc unit/limits_test.cc
                   unit/mr_cache_test.cc unit/adaptive_test.cc
                   unit/wr_id_test.cc unit/staging_test.cc)
