# The package of bucketing/python, by a Python that has PyTorch: the distribution's first, for it is
# the one that packages.txt installs. NORIA_TORCH_PYTHON may name another, as one of a virtual
# environment.
if(NOT NORIA_TORCH_PYTHON)
  foreach(python /usr/bin/python3 python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; exit(not u.find_spec('torch'))"
      RESULT_VARIABLE has_no_torch OUTPUT_QUIET ERROR_QUIET)
    if(has_no_torch EQUAL 0)
      set(NORIA_TORCH_PYTHON ${python} CACHE STRING "The Python that runs the tests of noria.torch")
      break()
    endif()
  endforeach()
endif()

# noria_python_test(NAME what ctest calls it, SCRIPT path from the root [ARGUMENTS ...],
#                   [TORCHRUN: on two ranks])
function(noria_python_test)
  cmake_parse_arguments(T "TORCHRUN" "NAME;SCRIPT" "ARGUMENTS" ${ARGN})
  set(command ${NORIA_TORCH_PYTHON})
  if(T_TORCHRUN)
    # --redirects and --tee name a rank that there is none of: PyTorch 1.13's defaults for them stop
    # torchrun under Python 3.11. Port 0: the system's choice.
    list(APPEND command -m torch.distributed.run --nproc_per_node=2 --redirects=9:3 --tee=9:3
         --rdzv_backend=c10d --rdzv_endpoint=localhost:0)
  endif()
  # no-sanitizer: a Python that is not instrumented cannot load an instrumented library.
  add_test(NAME python_${T_NAME} COMMAND ${command} ${CMAKE_SOURCE_DIR}/${T_SCRIPT} ${T_ARGUMENTS})
  set_tests_properties(python_${T_NAME} PROPERTIES TIMEOUT 120 LABELS "e2e;no-sanitizer"
    ENVIRONMENT "PYTHONPATH=${CMAKE_SOURCE_DIR}/bucketing/python;PYTHONDONTWRITEBYTECODE=1;\
NORIA_LIBRARY=$<TARGET_FILE:noria>;NORIA_SOFT=1;NORIA_SOCKET_IFNAME=lo;GLOO_SOCKET_IFNAME=lo;\
NORIA_TIMEOUT_MS=20000;OMP_NUM_THREADS=1;CC=${CMAKE_C_COMPILER}")
endfunction()

if(TARGET noria AND TARGET noria_softverbs AND NORIA_TORCH_PYTHON)
  foreach(name binding_test faults_test shards_test)
    noria_python_test(NAME ${name} SCRIPT tests/python/${name}.py)
  endforeach()
  noria_python_test(NAME device_test SCRIPT tests/python/device_test.py)
  set_property(TEST python_device_test APPEND PROPERTY ENVIRONMENT
    NORIA_CUDA=$<TARGET_FILE:noria_cuda_standin> NORIA_NCCL=$<TARGET_FILE:noria_cuda_standin>)
  # The planner beside PyTorch's own.
  add_executable(plan_lists support/plan_lists.cc)
  target_link_libraries(plan_lists PRIVATE noria_bucketing)
  noria_python_test(NAME planner_test SCRIPT tests/python/planner_test.py
                    ARGUMENTS $<TARGET_FILE:plan_lists>)
  noria_python_test(NAME data_parallel_test SCRIPT tests/python/data_parallel_test.py TORCHRUN)
  noria_python_test(NAME example SCRIPT examples/pytorch/train.py TORCHRUN)
  noria_python_test(NAME compare_gloo SCRIPT perf/compare_gloo.py
                    ARGUMENTS --sizes 8,64K --rounds 1 --seconds 0.01)
endif()
