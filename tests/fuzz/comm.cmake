noria_fuzz(NAME control_frames LIBS noria_bucketing)
noria_fuzz(NAME unique_id LIBS noria_bucketing PARSERS bucketing/bootstrap.cc)
