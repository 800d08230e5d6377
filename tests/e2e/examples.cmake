# The examples, which check themselves: training on some ranks is training in one process.
if(TARGET example_mlp_c)
  foreach(language c cc)
    foreach(ranks 1 2 3 4)
      add_test(NAME example_mlp_${language}_${ranks} COMMAND example_mlp_${language} ${ranks})
      set_tests_properties(example_mlp_${language}_${ranks} PROPERTIES TIMEOUT 60 LABELS e2e
        ENVIRONMENT "NORIA_SOFT=1;NORIA_SOCKET_IFNAME=lo")
    endforeach()
    add_test(NAME example_mlp_${language}_usage COMMAND example_mlp_${language} 5)
    set_tests_properties(example_mlp_${language}_usage PROPERTIES LABELS e2e
      PASS_REGULAR_EXPRESSION "usage: mlp")
  endforeach()
endif()
