if(TARGET noria_nccl_net)
  noria_test(NAME plugin_unit_test LABELS unit plugin LIBS noria_transport
             SOURCES unit/gpu_memory_test.cc unit/plugin_devices_test.cc
                     ${PROJECT_SOURCE_DIR}/plugin/gpu_memory.cc ${PROJECT_SOURCE_DIR}/plugin/devices.cc)
  noria_test(NAME tuner_unit_test LABELS unit plugin LIBS noria_tuner
             SOURCES unit/tuner_decision_test.cc unit/tuner_nccl_model_test.cc
                     unit/tuner_review_test.cc unit/tuner_table_test.cc)
  target_compile_definitions(tuner_unit_test PRIVATE
    NORIA_TABLES="${PROJECT_SOURCE_DIR}/plugin/tuner/tables")
endif()
