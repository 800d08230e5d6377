noria_fuzz(NAME tensor_table LIBS noria_bucketing
           PARSERS bucketing/tensor_table.cc bucketing/agreement.cc)
noria_fuzz(NAME plan_text LIBS noria_bucketing PARSERS bucketing/plan_text.cc)
