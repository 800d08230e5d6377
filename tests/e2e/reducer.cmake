# The same jobs over copy paths, placements and ways to fetch; a ctest entry for each.
if(NOT TARGET noria OR NOT TARGET noria_softverbs)
  return()
endif()
# no-sanitizer: their shadow memory would be counted.
noria_test(NAME reducer_memory_test LABELS e2e no-sanitizer LIBS noria noria_bucketing
           SOURCES e2e/reducer_memory_test.cc support/crew.cc ENVIRONMENT "NORIA_SOFT=1")
add_dependencies(reducer_memory_test noria_softverbs)
noria_test(NAME reducer_e2e_test LABELS e2e TIMEOUT 300 LIBS noria noria_bucketing
           SOURCES e2e/reducer_e2e_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
add_dependencies(reducer_e2e_test noria_softverbs)
foreach(name shard shard_steps hooks)
  noria_test(NAME ${name}_test LABELS e2e TIMEOUT 120 LIBS noria noria_bucketing
             SOURCES e2e/${name}_test.cc support/crew.cc
             ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
  add_dependencies(${name}_test noria_softverbs)
endforeach()
# no-sanitizer: it forks while threads run, in which state a sanitizer's own locks may be held.
noria_test(NAME fork_test LABELS e2e no-sanitizer TIMEOUT 120 LIBS noria noria_bucketing
           SOURCES e2e/fork_test.cc support/crew.cc ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late")
add_dependencies(fork_test noria_softverbs)
noria_test(NAME gpu_fork_test LABELS e2e no-sanitizer TIMEOUT 120
           LIBS noria noria_bucketing noria_cuda_standin
           SOURCES e2e/gpu_fork_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
add_dependencies(gpu_fork_test noria_softverbs)
noria_test(NAME gpu_processes_test LABELS e2e TIMEOUT 120 LIBS noria noria_bucketing noria_cuda_standin
           SOURCES e2e/gpu_processes_test.cc support/crew.cc
           ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_PLACE=late;${NORIA_CUDA_STANDIN}")
add_dependencies(gpu_processes_test noria_softverbs)
add_test(NAME reducer_e2e_test_shm_message COMMAND reducer_e2e_test)
set_tests_properties(reducer_e2e_test_shm_message PROPERTIES TIMEOUT 300 LABELS e2e
  ENVIRONMENT "NORIA_SOFT=1;NORIA_SOFT_COPY=shm;NORIA_RING_FETCH=message;NORIA_SOCKET_IFNAME=lo")
