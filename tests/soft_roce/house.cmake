add_test(NAME soft_roce_parts_test
         COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/soft_roce/parts_test.py)
set_tests_properties(soft_roce_parts_test PROPERTIES TIMEOUT 60 LABELS unit)

# All on one boot of two guests, which have both cores to themselves.
# The first time the kernel is fetched before (image.py): four minutes at most, and eight for the rest.
# no-sanitizer: emulated processors are slow enough without one. The guests run what is in build/.
if(CMAKE_BINARY_DIR STREQUAL "${CMAKE_SOURCE_DIR}/build" AND TARGET noria
   AND TARGET noria_nccl_net AND TARGET all_reduce_perf AND TARGET transport_conformance)
  add_test(NAME soft_roce_test
           COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/soft_roce/soft_roce_test.py)
  set_tests_properties(soft_roce_test PROPERTIES TIMEOUT 720 RUN_SERIAL TRUE
                       LABELS "soft_roce;no-sanitizer")
endif()
