noria_fuzz(NAME tensor_table LIBS noria_bucketing
           PARSERS bucketing/tensor_table.cc bucketing/agreement.cc)
