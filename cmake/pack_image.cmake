# The image of the pack kernels: nvcc makes one file for several kinds of GPU, and libnoria carries
# it. noria_pack_image(TARGET) adds it to a target's sources.
#
# Nothing of CUDA is needed to build: where there is no nvcc that works, the image is empty, and a
# line of the configuration says what is left out. -DNORIA_NVCC=<path> names another nvcc, OFF none.
find_program(NORIA_NVCC nvcc PATHS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin
             DOC "The nvcc that compiles the pack kernels for GPUs, or OFF")

set(NORIA_NVCC_FLAGS -std=c++17 -O3 -ccbin ${CMAKE_CXX_COMPILER} --Werror all-warnings
    -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/include)
# Those of data centres, as far as nvcc knows them; the newest also as PTX, for what comes after it.
set(NORIA_GPU_KINDS 80 90 100)

# Sets `out` to what nvcc is told to compile for, or to nothing, where it cannot be used.
function(noria_gpu_code out)
  set(${out} "" PARENT_SCOPE)
  if(NOT NORIA_NVCC)
    set(why "no nvcc was found (-DNORIA_NVCC=<path>)")
    if(DEFINED NORIA_NVCC AND NOT NORIA_NVCC MATCHES NOTFOUND)
      set(why "-DNORIA_NVCC=OFF")
    endif()
  else()
    execute_process(COMMAND ${NORIA_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
    set(code "")
    foreach(kind ${NORIA_GPU_KINDS})
      if(known MATCHES "sm_${kind}\n")
        list(APPEND code -gencode arch=compute_${kind},code=sm_${kind})
        set(newest ${kind})
      endif()
    endforeach()
    if(code)
      list(APPEND code -gencode arch=compute_${newest},code=compute_${newest})
    endif()
    # An nvcc may refuse the host's compiler, or lack its own headers.
    set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/noria_nvcc_probe)
    file(WRITE ${probe}.cu "#include <cstdint>\n__global__ void probe(uint32_t* to) { *to = 1; }\n")
    execute_process(COMMAND ${NORIA_NVCC} ${NORIA_NVCC_FLAGS} ${code} --fatbin -o ${probe}.fatbin
                            ${probe}.cu
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(code AND failed EQUAL 0)
      set(${out} ${code} PARENT_SCOPE)
      return()
    endif()
    string(REGEX MATCH "[^\n]+" said "${said}")
    set(why "${NORIA_NVCC} cannot compile them: ${said}")
  endif()
  message(STATUS "Left out: kernels that pack gradients on a GPU, which are then copied one by one "
                 "and neither cast nor scaled; ${why}")
endfunction()

function(noria_pack_image target)
  target_sources(${target} PRIVATE pack_image.cc)
  noria_gpu_code(code)
  if(NOT code)
    return()
  endif()
  set(image ${CMAKE_CURRENT_BINARY_DIR}/pack_kernels.fatbin)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/pack_kernels.cu)
  add_custom_command(OUTPUT ${image}
    COMMAND ${NORIA_NVCC} ${NORIA_NVCC_FLAGS} ${code} -Xfatbin=-compress-all --fatbin -o ${image}
            -MD -MF ${image}.d ${source}
    DEPENDS ${source} DEPFILE ${image}.d
    COMMENT "nvcc: pack kernels for GPUs" VERBATIM)
  set_source_files_properties(pack_image.cc PROPERTIES
    OBJECT_DEPENDS ${image} COMPILE_DEFINITIONS NORIA_PACK_IMAGE_FILE="${image}")
endfunction()
