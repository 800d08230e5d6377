# The ring on a transport without a device, which stands in for noria_transport.
noria_fuzz(NAME ring_header LIBS noria_bucketing
           PARSERS bucketing/ring.cc bucketing/ring_pull.cc bucketing/ring_push.cc)
target_sources(fuzz_ring_header PRIVATE support/fake_transport.cc)
