// The rules themselves: each must find what it is for in a bad snippet and leave a good one alone.
// A checker that cannot fail is worth nothing.
#include "tests/tidy/rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace noria::tidy {
namespace {

std::string lines_of(size_t count, const std::string& line) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += line + "\n";
  return text;
}

size_t found(const Violations& violations, const std::string& rule) {
  return static_cast<size_t>(std::count_if(violations.begin(), violations.end(),
                                           [&](const Violation& v) { return v.rule == rule; }));
}

size_t arrows(const std::string& path, const std::string& text) {
  return found(check_includes(make_source(path, text)), "arrows");
}

size_t words(const std::string& path, const std::string& text, const std::string& rule) {
  return found(check_words(make_source(path, text)), rule);
}

size_t shape(const std::string& path, const std::string& text, const std::string& rule) {
  return found(check_shape(make_source(path, text)), rule);
}

// ---- the scanner
// ---------------------------------------------------------------------------------

TEST(Scanner, Comments_and_literals_are_blank_in_code_and_columns_stay) {
  const SourceFile file = make_source("verbs/a.cc",
                                      "int a = 1'000; // getenv\n"
                                      "auto s = \"ge\\\"tenv\"; /* x\n"
                                      "y */ char c = '\\''; int b;\n");
  ASSERT_EQ(file.code.size(), 3U);
  EXPECT_EQ(file.code[0], "int a = 1'000;          ");
  EXPECT_EQ(file.code[1], "auto s = \"        \";     ");
  EXPECT_EQ(file.code[2], "     char c = '  '; int b;");
  EXPECT_NE(file.comments[0].find("getenv"), std::string::npos);
  EXPECT_EQ(file.comments[1].find("tenv"), std::string::npos);
}

TEST(Scanner, Raw_literals_end_at_their_own_delimiter) {
  const SourceFile file =
      make_source("verbs/a.cc", "auto s = R\"x(getenv )\" more)x\"; int after;\n");
  EXPECT_EQ(file.code[0].find("getenv"), std::string::npos);
  EXPECT_EQ(file.code[0].find("more"), std::string::npos);
  EXPECT_NE(file.code[0].find("int after;"), std::string::npos);
}

TEST(Functions, Are_found_with_their_heads_and_ends) {
  const SourceFile file = make_source("verbs/a.cc",
                                      "namespace noria {\n"
                                      "struct A : B {\n"
                                      "  A(int x) : x_{x}, y_(x) {\n"
                                      "    use();\n"
                                      "  }\n"
                                      " private:\n"
                                      "  int x_{0};\n"
                                      "};\n"
                                      "enum class E : int { a, b };\n"
                                      "constexpr int kTable[] = {1, 2};\n"
                                      "#define MACRO(x) { \\\n"
                                      "  x }\n"
                                      "template <class T = int>\n"
                                      "NORIA_HOT T f(T a = {}) {\n"
                                      "  if (a) { g([] { return 1; }); }\n"
                                      "}\n"
                                      "bool operator==(A a, A b) { return true; }\n"
                                      "}\n");
  const std::vector<Function> functions = functions_of(file);
  ASSERT_EQ(functions.size(), 3U);
  EXPECT_EQ(functions[0].name, "A");
  EXPECT_EQ(functions[0].first_line, 3U);
  EXPECT_EQ(functions[0].last_line, 5U);
  EXPECT_EQ(functions[1].name, "f");
  EXPECT_EQ(functions[1].first_line, 13U);
  EXPECT_EQ(functions[1].last_line, 16U);
  EXPECT_EQ(functions[2].line_count(), 1U);
}

// ---- arrows
// --------------------------------------------------------------------------------------

TEST(Arrows, Each_room_sees_only_what_is_below_it) {
  EXPECT_EQ(arrows("include/base/a.hpp", "#include \"verbs/qp.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("include/noria/a.h", "#include \"base/status.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("verbs/a.cc", "#include \"verbs/transport/wire.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("verbs/transport/a.cc", "#include \"verbs/soft/slot.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("verbs/transport/a.cc", "#include \"bucketing/ring.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("verbs/soft/a.cc", "#include \"verbs/qp.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("plugin/a.cc", "#include \"bucketing/ring.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include \"plugin/net.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include \"verbs/qp.hpp\"\n"), 1U);

  // Expect: downward arrows are allowed.
  EXPECT_EQ(arrows("include/base/a.hpp", "#include \"base/status.hpp\"\n"), 0U);
  EXPECT_EQ(arrows("verbs/transport/a.cc", "#include \"verbs/qp.hpp\"\n"), 0U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include \"verbs/transport/domain.hpp\"\n"), 0U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include <noria/bucketing.h>\n"), 0U);
  EXPECT_EQ(arrows("tests/unit/a.cc", "#include \"verbs/soft/slot.hpp\"\n"), 0U);
}

TEST(Arrows, The_verbs_headers_and_libraries_have_their_folders) {
  EXPECT_EQ(arrows("bucketing/a.cc", "#include <infiniband/verbs.h>\n"), 1U);
  EXPECT_EQ(arrows("perf/a.cc", "#include <infiniband/verbs.h>\n"), 1U);
  EXPECT_EQ(arrows("include/base/a.hpp", "#  include <infiniband/verbs.h>\n"), 1U);
  EXPECT_EQ(arrows("verbs/a.cc", "#include <hwy/highway.h>\n"), 1U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include <CLI/CLI.hpp>\n"), 1U);

  EXPECT_EQ(arrows("verbs/soft/a.cc", "#include <infiniband/verbs.h>\n"), 0U);
  EXPECT_EQ(arrows("examples/a.c", "#include \"base/clock.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("examples/a.c", "#include <noria/bucketing.h>\n"), 0U);
  EXPECT_EQ(arrows("bucketing/a.cc", "#include <hwy/highway.h>\n#include <sys/mman.h>\n"), 0U);
  EXPECT_EQ(arrows("perf/a.cc", "#include <CLI/CLI.hpp>\n"), 0U);
}

TEST(Arrows, Quotes_mean_ours_and_are_named_from_the_root) {
  EXPECT_EQ(arrows("verbs/a.cc", "#include \"qp.hpp\"\n"), 1U);
  EXPECT_EQ(arrows("verbs/a.cc", "#include <base/status.hpp>\n"), 1U);
  EXPECT_EQ(arrows("verbs/a.cc", "// #include \"qp.hpp\"\n"), 0U);
}

// ---- words
// ---------------------------------------------------------------------------------------

TEST(Words, Shortcuts_past_the_device_stand_only_in_the_device) {
  for (const char* text : {"process_vm_readv(pid);\n", "syscall(SYS_memfd_create, 0);\n",
                           "mmap(0, n, p, MAP_SHARED, fd, 0);\n", "shm_open(n, 0, 0);\n",
                           "syscall(SYS_futex, a);\n", "int op = FUTEX_WAIT;\n"}) {
    EXPECT_EQ(words("bucketing/a.cc", text, "shortcuts"), 1U) << text;
    EXPECT_EQ(words("verbs/transport/a.cc", text, "shortcuts"), 1U) << text;
    EXPECT_EQ(words("perf/a.cc", text, "shortcuts"), 1U) << text;
    EXPECT_EQ(words("verbs/soft/a.cc", text, "shortcuts"), 0U) << text;
    EXPECT_EQ(words("tests/fault/a.cc", text, "shortcuts"), 0U) << text;
  }
}

TEST(Words, The_environment_has_one_reader) {
  EXPECT_EQ(words("verbs/a.cc", "getenv(x);\n", "environment"), 1U);
  EXPECT_EQ(words("perf/a.cc", "std::getenv(x);\n", "environment"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "secure_getenv(x);\n", "environment"), 1U);
  EXPECT_EQ(words("bucketing/a.cc", "setenv(x, y, 1);\n", "environment"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "for (char** e = environ; *e; ++e) use(*e);\n", "environment"), 1U);

  EXPECT_EQ(words("verbs/a.cc", "auto p = load_params(environ);\n", "environment"), 0U);
  EXPECT_EQ(words("verbs/a.cc", "return load_params_named(environ, {x});\n", "environment"), 0U);
  EXPECT_EQ(words("verbs/a.cc", "// getenv would do\nlog(x, \"getenv\");\n", "environment"), 0U);
  EXPECT_EQ(words("perf/a.cc", "setenv(x, y, 1);\n", "environment"), 0U);
}

TEST(Words, The_process_and_its_output_are_not_ours) {
  EXPECT_EQ(words("verbs/a.cc", "exit(1);\n", "process"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "::_exit(1);\n", "process"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "std::abort();\n", "process"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "printf(x);\n", "output"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "std::fprintf(stderr, x);\n", "output"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "std::cout << x;\n", "output"), 1U);

  EXPECT_EQ(words("verbs/a.cc", "std::snprintf(x, n, y); comm.abort(); on_exit_of(x);\n", "output"),
            0U);
  EXPECT_EQ(
      words("verbs/a.cc", "std::snprintf(x, n, y); comm.abort(); on_exit_of(x);\n", "process"), 0U);
  EXPECT_EQ(words("perf/a.cc", "std::printf(x); exit(2);\n", "output"), 0U);
}

TEST(Words, Locks_are_those_that_clang_can_check) {
  for (const char* text : {"std::mutex m;\n", "std::shared_mutex m;\n", "std::lock_guard l(m);\n",
                           "std::unique_lock l(m);\n", "std::condition_variable c;\n"}) {
    EXPECT_EQ(words("bucketing/a.cc", text, "mutex"), 1U) << text;
    EXPECT_EQ(words("include/base/mutex.hpp", text, "mutex"), 0U) << text;
  }
  EXPECT_EQ(words("bucketing/a.cc", "#include <mutex>\nMutex m; MutexLock l(m);\n", "mutex"), 0U);
}

TEST(Words, Product_code_has_no_exceptions) {
  EXPECT_EQ(words("verbs/a.cc", "try { f(); } catch (...) {}\n", "exceptions"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "throw 1;\n", "exceptions"), 1U);
  EXPECT_EQ(words("verbs/a.cc", "try_send(); NORIA_TRY(x);\n", "exceptions"), 0U);
  EXPECT_EQ(words("perf/a.cc", "try { f(); } catch (...) {}\n", "exceptions"), 0U);
}

TEST(Words, A_promise_names_its_issue) {
  const std::string todo = "// TODO";
  EXPECT_EQ(words("verbs/a.cc", todo + ": later\n", "promises"), 1U);
  EXPECT_EQ(words("tests/unit/a.cc", todo + " later\n", "promises"), 1U);
  EXPECT_EQ(words("verbs/a.cc", todo + "(#12): later\n", "promises"), 0U);
}

// ---- shape
// ---------------------------------------------------------------------------------------

TEST(Shape, Files_functions_and_lines_have_limits) {
  const std::string function = "void f() {\n" + lines_of(69, "  g();") + "}\n";
  EXPECT_EQ(shape("verbs/a.cc", function, "length"), 1U);
  EXPECT_EQ(shape("verbs/a.cc", "void f() {\n" + lines_of(68, "  g();") + "}\n", "length"), 0U);
  EXPECT_EQ(shape("verbs/a.cc", lines_of(501, "int a;"), "length"), 1U);
  EXPECT_EQ(shape("verbs/a.cc", lines_of(500, "int a;"), "length"), 0U);
  EXPECT_EQ(shape("verbs/a.hpp", lines_of(251, "int a;"), "length"), 1U);
  EXPECT_EQ(shape("include/noria/a.h", lines_of(500, "int a;"), "length"), 0U);
  EXPECT_EQ(shape("include/noria/a.h", lines_of(501, "int a;"), "length"), 1U);
  EXPECT_EQ(shape("include/base/a.def", lines_of(300, "ROW" + std::string(101, 'a')), "length"),
            0U);
  EXPECT_EQ(shape("tests/unit/a.cc", std::string(101, 'a') + "\n", "length"), 1U);
  // Expect: columns are counted, not bytes.
  EXPECT_EQ(shape("verbs/a.cc", "// " + std::string(96, 'a') + "\xE2\x80\xA6\n", "length"), 0U);
}

TEST(Shape, A_header_opens_with_its_contract) {
  const std::string guard = "#pragma once\nint a;\n";
  EXPECT_EQ(shape("verbs/a.hpp", "// A thing.\n//\n// Threads: any thread.\n" + guard, "contract"),
            0U);
  EXPECT_EQ(shape("verbs/a.hpp", "// A thing.\n" + guard, "contract"), 1U);
  EXPECT_EQ(shape("verbs/a.hpp", guard + "// Threads: any thread.\n", "contract"), 1U);
  EXPECT_EQ(shape("verbs/a.hpp", "// A.\n// Threads: any thread.\nint a;\n", "contract"), 1U);
}

TEST(Shape, A_file_is_one_idea_with_a_name) {
  EXPECT_EQ(shape("verbs/utils.hpp", "", "names"), 1U);
  EXPECT_EQ(shape("tests/support/test_helpers.cc", "", "names"), 1U);
  EXPECT_EQ(shape("verbs/stripe.hpp", "", "names"), 0U);
}

TEST(Hot, A_body_is_measured_by_its_declaration_elsewhere) {
  const std::vector<SourceFile> files{
      make_source("verbs/a.hpp",
                  "class NORIA_CAPABILITY(\"x\") A : public B {\n"
                  "  NORIA_HOT Request*\n  try_send(const Region& r);\n  int cold();\n};\n"
                  "NORIA_HOT void free_one(int x);\n")};
  const HotFunctions hot = hot_functions(files);
  const auto count = [&](const std::string& path, const std::string& text) {
    return found(check_hot(make_source(path, text), hot), "hot");
  };
  EXPECT_EQ(count("verbs/a.cc", "int A::try_send(int r) {\n  auto p = new int;\n}\n"), 1U);
  EXPECT_EQ(count("verbs/a.cc", "int A::try_send(int r) {\n  MutexLock lock(m_);\n}\n"), 1U);
  EXPECT_EQ(count("verbs/a.cc", "int A::try_send(int r) {\n  log(LogLevel::warn, x);\n}\n"), 1U);
  EXPECT_EQ(count("verbs/a.cc", "int A::try_send(int r) {\n" + lines_of(49, "  g();") + "}\n"), 1U);

  EXPECT_EQ(count("verbs/a.cc", "void free_one(int x) {\n  auto p = new int;\n}\n"), 1U);
  EXPECT_EQ(count("verbs/a.cc", "NORIA_HOT void f(int x) {\n  auto p = new int;\n}\n"), 1U);

  EXPECT_EQ(count("verbs/a.cc", "int A::try_send(int r) {\n  return newest(r);\n}\n"), 0U);
  EXPECT_EQ(count("verbs/a.cc", "int B::try_send(int r) {\n  auto p = new int;\n}\n"), 0U);
  EXPECT_EQ(count("verbs/a.cc", "int A::free_one(int r) {\n  auto p = new int;\n}\n"), 0U);
  EXPECT_EQ(count("verbs/a.cc", "int A::cold() {\n  auto p = new int;\n}\n"), 0U);
  EXPECT_EQ(count("plugin/a.cc", "int A::try_send(int r) {\n  auto p = new int;\n}\n"), 0U);
}

// ---- pages
// ---------------------------------------------------------------------------------------

TEST(Pages, A_map_names_only_what_is_there) {
  const std::vector<SourceFile> files{make_source("verbs/qp.cc", "void post() {}  // flush\n"),
                                      make_source("include/base/status.hpp", "")};
  const auto count = [&](const std::string& text) {
    return found(check_names_on_page(make_source("README.md", text), files), "map");
  };
  EXPECT_EQ(count("`verbs/qp.cc: post` and `verbs/`, `base/status.hpp`\n"), 0U);
  EXPECT_EQ(count("`verbs/gone.cc`\n"), 1U);
  EXPECT_EQ(count("`verbs/qp.cc: flush`\n"), 1U);  // a comment is no function
  EXPECT_EQ(count("`soft/`\n"), 0U);
}

TEST(Pages, A_test_that_is_named_exists_and_a_contract_names_one_for_each_point) {
  const std::set<std::string> tests =
      tests_of({make_source("tests/unit/a.cc",
                            "TEST(Suite, A_b_c) {}\nTEST_P(Long,\n   D_e) {}\n"
                            "// TEST(Suite, In_a_comment)\n"),
                make_source("verbs/a.cc", "TEST(Suite, Elsewhere_x) {}\n")});
  EXPECT_EQ(tests, (std::set<std::string>{"A_b_c", "D_e"}));
  const auto count = [&](const std::string& text) {
    return found(check_tests_on_page(make_source("plugin/README.md", text), tests), "tests");
  };
  EXPECT_EQ(count("*A_b_c*, *D_e* and *not* a test\n"), 0U);
  EXPECT_EQ(count("*A_...* and *A_..._c*\n"), 0U);
  EXPECT_EQ(count("*B_...*\n"), 1U);
  EXPECT_EQ(count("*A_b* and *In_a_comment*\n"), 2U);
  EXPECT_EQ(count("## The contract\n- It is so. *D_e*\n- Long, and\n  in two lines. *A_...*\n"),
            0U);
  EXPECT_EQ(count("## The contract\n- It is so.\n- It is. *D_e*\n\n## Other\n- It is so.\n"), 1U);
  EXPECT_EQ(count("## The contract\n- Shown by `tests/unit/a.cc`.\n"), 0U);
}

TEST(Pages, A_table_is_that_of_the_code) {
  const auto count = [](const std::string& text) {
    return found(check_table(make_source("README.md", text), "params", "| a |\n"), "tables");
  };
  EXPECT_EQ(count("x\n<!-- params:begin made -->\n| a |\n<!-- params:end -->\n"), 0U);
  EXPECT_EQ(count("<!-- params:begin -->\n| b |\n<!-- params:end -->\n"), 1U);
  EXPECT_EQ(count("<!-- params:begin -->\n| a |\n"), 1U);
  EXPECT_EQ(count("| a |\n"), 1U);
}

TEST(Pages, A_room_has_its_page) {
  EXPECT_EQ(found(check_folders({make_source("verbs/qp.cc", "")}), "pages"), 1U);
  EXPECT_EQ(
      found(check_folders({make_source("verbs/qp.cc", ""), make_source("verbs/README.md", "")}),
            "pages"),
      0U);
}

}  // namespace
}  // namespace noria::tidy
