# The rules of the house, on the tree. tests/tidy/rules.hpp says what each is.
add_library(noria_tidy STATIC tidy/source_file.cc tidy/functions.cc tidy/includes.cc tidy/words.cc
                              tidy/shape.cc tidy/pages.cc tidy/readme_tables.cc)
target_link_libraries(noria_tidy PUBLIC noria_flags)

noria_test(NAME tidy_rules_test LABELS tidy SOURCES tidy/rules_test.cc LIBS noria_tidy)
noria_test(NAME tidy_test LABELS tidy SOURCES tidy/tidy_test.cc LIBS noria_tidy)
target_compile_definitions(tidy_test PRIVATE NORIA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")

# `cmake --build build --target readme` writes README's generated tables anew.
add_executable(write_readme tidy/write_readme.cc)
target_link_libraries(write_readme PRIVATE noria_tidy)
set_target_properties(write_readme PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_custom_target(readme COMMAND write_readme ${CMAKE_SOURCE_DIR}/README.md
                  COMMENT "README.md: writing the generated tables")

# What the shared libraries show. Sanitizers add names of their own.
if(NOT NORIA_SANITIZE)
  noria_test(NAME exports_test LABELS tidy SOURCES tidy/exports_test.cc tidy/exports.cc)
  target_compile_definitions(exports_test PRIVATE NORIA_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  foreach(pair noria_softverbs:NORIA_SOFTVERBS_FILE noria:NORIA_LIBRARY_FILE
               noria_nccl_net:NORIA_NET_PLUGIN_FILE)
    string(REPLACE ":" ";" pair ${pair})
    list(GET pair 0 library)
    list(GET pair 1 definition)
    set(file "")
    if(TARGET ${library})
      set(file $<TARGET_FILE:${library}>)
      add_dependencies(exports_test ${library})
    endif()
    target_compile_definitions(exports_test PRIVATE ${definition}="${file}")
  endforeach()

  # Each header compiles alone, and twice in one file: a missing include or guard fails the build.
  function(noria_headers_alone target extension)
    set(sources)
    foreach(header ${ARGN})
      string(MAKE_C_IDENTIFIER ${header} stem)
      set(source ${CMAKE_CURRENT_BINARY_DIR}/headers_alone/${target}/${stem}.${extension})
      string(REGEX REPLACE "^include/" "" name ${header})
      file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${name}\"\n#include \"${name}\"\n")
      list(APPEND sources ${source})
    endforeach()
    add_library(${target} OBJECT ${sources})
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    target_compile_options(${target} PRIVATE -O0 -Wno-unused-function)
  endfunction()

  file(GLOB_RECURSE internal CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
       ${CMAKE_SOURCE_DIR}/include/*.hpp ${CMAKE_SOURCE_DIR}/verbs/*.hpp
       ${CMAKE_SOURCE_DIR}/plugin/*.hpp ${CMAKE_SOURCE_DIR}/bucketing/*.hpp)
  noria_headers_alone(internal_headers_alone cc ${internal})
  target_link_libraries(internal_headers_alone PRIVATE noria_product)

  # The public ones as a stranger compiles them: plain C11, then C++11, none of our definitions.
  file(GLOB installed CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}
       ${CMAKE_SOURCE_DIR}/include/noria/*.h)
  foreach(language c cc)
    noria_headers_alone(installed_headers_alone_${language} ${language} ${installed})
    target_include_directories(installed_headers_alone_${language}
                               PRIVATE ${CMAKE_SOURCE_DIR}/include)
    target_compile_options(installed_headers_alone_${language} PRIVATE
      -Wall -Wextra -Wpedantic -Wconversion -Werror
      $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>)
    set_target_properties(installed_headers_alone_${language} PROPERTIES
      C_STANDARD 11 C_EXTENSIONS OFF CXX_STANDARD 11 CXX_EXTENSIONS OFF)
  endforeach()
endif()
