// The rules on the tree. Each failure names the place, the rule and its reason.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/params.hpp"
#include "tests/tidy/readme_tables.hpp"
#include "tests/tidy/rules.hpp"

namespace noria::tidy {
namespace {

const std::vector<SourceFile>& tree() {
  static const std::vector<SourceFile> files = read_tree(NORIA_SOURCE_DIR);
  return files;
}

const SourceFile& readme() {
  const auto found = std::find_if(tree().begin(), tree().end(),
                                  [](const SourceFile& file) { return file.path == "README.md"; });
  static const SourceFile absent = make_source("README.md", "");
  return found == tree().end() ? absent : *found;
}

void expect_none(const Violations& violations) {
  for (const Violation& violation : violations) ADD_FAILURE() << to_string(violation);
}

TEST(Tree, Is_found) {
  // Expect: a rule over no files would pass without a word.
  EXPECT_GT(tree().size(), 20U);
  EXPECT_FALSE(readme().lines.empty());
}

TEST(Tree, Arrows_point_down) {
  for (const SourceFile& file : tree()) expect_none(check_includes(file));
}

TEST(Tree, Words_stand_where_they_are_at_home) {
  for (const SourceFile& file : tree()) expect_none(check_words(file));
}

TEST(Tree, Files_and_functions_are_one_idea_long) {
  for (const SourceFile& file : tree()) expect_none(check_shape(file));
}

TEST(Tree, The_data_path_neither_allocates_nor_locks_nor_logs) {
  const HotFunctions hot = hot_functions(tree());
  EXPECT_FALSE(hot.empty());
  for (const SourceFile& file : tree()) expect_none(check_hot(file, hot));
}

TEST(Tree, Each_room_has_its_page) { expect_none(check_folders(tree())); }

TEST(Tree, Pages_name_only_what_is_there) {
  for (const SourceFile& file : tree())
    if (file.path.ends_with(".md")) expect_none(check_names_on_page(file, tree()));
}

TEST(Tree, Pages_name_only_tests_that_there_are) {
  const std::set<std::string> tests = tests_of(tree());
  EXPECT_GT(tests.size(), 100U);
  for (const SourceFile& file : tree())
    if (file.path.ends_with(".md")) expect_none(check_tests_on_page(file, tests));
}

TEST(Readme, Follows_a_byte_through_the_rooms) {
  // Expect: enough stations, each a file and a function, that the path can be walked.
  size_t stations = 0;
  for (const std::string& line : readme().lines)
    if (line.find(".cc: ") != std::string::npos || line.find(".hpp: ") != std::string::npos)
      ++stations;
  EXPECT_GE(stations, 6U);
}

TEST(Readme, Its_tables_are_those_of_the_code) {
  for (const ReadmeTable& table : readme_tables())
    expect_none(check_table(readme(), table.name, table.text));
}

}  // namespace
}  // namespace noria::tidy
