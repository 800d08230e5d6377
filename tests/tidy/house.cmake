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
