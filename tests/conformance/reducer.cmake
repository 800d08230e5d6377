foreach(name reducer reducer_steps reducer_hooks reducer_slots)
  noria_test(NAME ${name}_test LABELS conformance LIBS noria_bucketing
             SOURCES conformance/${name}_test.cc support/thread_ranks.cc)
endforeach()
# It stands before libc's malloc, which the sanitizers do themselves.
noria_test(NAME reducer_cost_test LABELS conformance no-sanitizer LIBS noria_bucketing
           SOURCES conformance/reducer_cost_test.cc support/thread_ranks.cc support/crew.cc)
if(TARGET noria AND TARGET noria_softverbs)
  foreach(name device_reducer device_unused)
    noria_test(NAME ${name}_test LABELS conformance TIMEOUT 180
               SOURCES conformance/${name}_test.cc
               LIBS noria noria_bucketing noria_cuda_standin
               ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
    add_dependencies(${name}_test noria_softverbs)
  endforeach()
endif()
