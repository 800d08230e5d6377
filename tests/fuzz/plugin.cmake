if(TARGET noria_tuner)
  noria_fuzz(NAME tuner_table LIBS noria_tuner PARSERS plugin/tuner/table_text.cc)
endif()
