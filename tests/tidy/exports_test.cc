// What the shared libraries show. They live inside other people's processes, so each shows the
// names of its own interface and nothing else, and loads nothing that could be absent.
#include "tests/tidy/exports.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

namespace noria::tidy {
namespace {

const ExportRule kVerbsNames{"_?ibv_[a-z0-9_]+",
                             "the software HCA stands in for libibverbs and shows ibv_ names only: "
                             "anything else would be a way past the device"};
const ExportRule kNoriaNames{"noria_[a-z0-9_]+",
                             "libnoria shows its C API only: other names could meet the program's"};
const ExportRule kNetPluginNames{"nccl(Net|Tuner)Plugin_v[0-9]+",
                                 "a plugin shows the tables that NCCL asks for by name: anything "
                                 "else could meet the names of NCCL's process"};
const std::set<std::string> kRuntime{
    "libc",  "libm",  "libstdc++", "libgcc_s",        "libpthread",
    "libdl", "librt", "libhwy",    "ld-linux-x86-64", "ld-linux-aarch64"};

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  char chunk[4096];
  while (pipe != nullptr && fgets(chunk, sizeof chunk, pipe.get()) != nullptr) output += chunk;
  return output;
}

const std::string kSoftverbs = NORIA_SOFTVERBS_FILE;
const std::string kLibnoria = NORIA_LIBRARY_FILE;
const std::string kNetPlugin = NORIA_NET_PLUGIN_FILE;

std::string nm_of(const std::string& library) {
  return output_of("nm -D --defined-only '" + library + "'");
}

std::string readelf_of(const std::string& library) {
  return output_of("readelf -d '" + library + "'");
}

void expect_none(const std::string& library, const std::vector<std::string>& findings) {
  for (const std::string& finding : findings) ADD_FAILURE() << library << ": " << finding;
}

// ---- the checks themselves ----

TEST(Exports, A_foreign_or_unique_name_is_found) {
  const std::string good =
      "0000000000000000 A IBVERBS_1.1\n"
      "00000000000012ab T ibv_open_device@@IBVERBS_1.1\n"
      "00000000000012ab T _ibv_query_gid_ex@@IBVERBS_1.11\n";
  EXPECT_TRUE(check_exports(good, kVerbsNames).empty());
  EXPECT_EQ(check_exports(good + "00000000000012ab T noria_poke\n", kVerbsNames).size(), 1U);
  EXPECT_EQ(check_exports("00000000000012ab W _ZNSt6vectorIiE4pushEv\n", kNoriaNames).size(), 1U);
  EXPECT_EQ(check_exports("00000000000012ab u noria_unique\n", kNoriaNames).size(), 1U);
  EXPECT_EQ(exported_names(good).count("ibv_open_device"), 1U);
}

TEST(Exports, A_linked_library_is_found) {
  const std::string line = " 0x0000000000000001 (NEEDED)  Shared library: [libibverbs.so.1]\n";
  EXPECT_EQ(check_needed(line, kRuntime).size(), 1U);
  EXPECT_TRUE(check_needed(" 0x1 (NEEDED)  Shared library: [libc.so.6]\n", kRuntime).empty());
}

TEST(Exports, Declarations_of_a_header_are_found) {
  const auto names = declared_functions(
      "#define NORIA_API __attribute__((visibility(x)))\n"
      "NORIA_API noria_status noria_a(int x);\n"
      "NORIA_API const char* noria_b(noria_status\n status);\nint noria_c(void);\n");
  EXPECT_EQ(names, (std::set<std::string>{"noria_a", "noria_b"}));
}

// ---- the libraries ----

TEST(Software_hca, Shows_verbs_names_only_and_needs_nothing) {
  if (kSoftverbs.empty()) GTEST_SKIP() << "libnoria-softverbs.so is not part of this build";
  const std::string nm = nm_of(kSoftverbs);
  EXPECT_GT(exported_names(nm).size(), 20U);
  expect_none(kSoftverbs, check_exports(nm, kVerbsNames));
  expect_none(kSoftverbs, check_needed(readelf_of(kSoftverbs), kRuntime));
}

TEST(Net_plugin, Shows_a_table_for_each_version_only_and_needs_nothing) {
  if (kNetPlugin.empty()) GTEST_SKIP() << "libnccl-net-noria.so is not part of this build";
  const std::string nm = nm_of(kNetPlugin);
  EXPECT_EQ(exported_names(nm).size(), 12U);
  expect_none(kNetPlugin, check_exports(nm, kNetPluginNames));
  expect_none(kNetPlugin, check_needed(readelf_of(kNetPlugin), kRuntime));
}

TEST(Libnoria, Shows_its_c_api_only_and_needs_nothing) {
  if (kLibnoria.empty()) GTEST_SKIP() << "libnoria.so is not part of this build";
  expect_none(kLibnoria, check_exports(nm_of(kLibnoria), kNoriaNames));
  expect_none(kLibnoria, check_needed(readelf_of(kLibnoria), kRuntime));
}

TEST(Libnoria, Has_every_function_that_its_headers_promise) {
  if (kLibnoria.empty()) GTEST_SKIP() << "libnoria.so is not part of this build";
  const std::set<std::string> exported = exported_names(nm_of(kLibnoria));
  size_t promised = 0;
  for (const char* header : {"noria.h", "comm.h", "bucketing.h", "observe.h"}) {
    std::stringstream text;
    text << std::ifstream(std::string(NORIA_SOURCE_DIR "/include/noria/") + header).rdbuf();
    for (const std::string& name : declared_functions(text.str())) {
      ++promised;
      EXPECT_TRUE(exported.contains(name)) << header << " declares " << name;
    }
  }
  EXPECT_GT(promised, 25U);
}

}  // namespace
}  // namespace noria::tidy
