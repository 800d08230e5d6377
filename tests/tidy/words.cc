// Words that have one home, or none, each with the reason.
#include <algorithm>
#include <regex>

#include "tests/tidy/rules.hpp"

namespace noria::tidy {

namespace {

enum class Where { product, product_and_perf, everywhere };

struct WordRule {
  const char* rule;
  const char* pattern;  // searched in code, without comments and literals
  Where where;
  std::vector<std::string_view> homes;  // where the word is at home
  const char* reason;
};

const std::vector<WordRule>& word_rules() {
  static const std::vector<WordRule> table{
      {"shortcuts",
       R"(process_vm_|memfd_create|shm_open|MAP_SHARED|[Ff][Uu][Tt][Ee][Xx])",
       Where::product_and_perf,
       {"verbs/soft/", "perf/soft_baseline.cc"},
       "stands only under verbs/soft, and where its device is measured against: elsewhere it would "
       "be a way past the device, and figures "
       "taken over it would measure nothing that a NIC could do"},
      {"environment",
       R"(\b(secure_)?getenv\b)",
       Where::product_and_perf,
       {},
       "is not used: load_params() reads the environment once, checks it, and knows every name "
       "(base/params.def)"},
      {"environment",
       R"(\b(setenv|putenv|unsetenv|clearenv)\b)",
       Where::product,
       {},
       "is not used: the environment belongs to the process that loaded us, and changing it is "
       "not safe beside its threads"},
      {"process",
       R"(\b_?exit\s*\(|\bquick_exit\s*\(|\bstd::abort\b)",
       Where::product,
       {"include/base/check.hpp"},
       "is not called: this library lives inside other people's processes; return a Status, or "
       "NORIA_CHECK what cannot happen"},
      {"output",
       R"(\b(printf|fprintf|vprintf|vfprintf|dprintf|puts|fputs|putchar|perror)\s*\()"
       R"(|\bstd::(cout|cerr|clog)\b)",
       Where::product,
       {"include/base/check.hpp"},
       "is not called: standard output belongs to the process that loaded us; log() goes to the "
       "sink that it chose"},
      {"mutex",
       R"(\bstd::(\w*_?mutex|\w*_lock|lock_guard|condition_variable\w*)\b)",
       Where::product_and_perf,
       {"include/base/mutex.hpp"},
       "stands only in base/mutex.hpp: libstdc++'s mutex carries no annotations, so Clang could "
       "not check who holds it; use Mutex, MutexLock and CondVar"},
      {"exceptions",
       R"(\b(throw|try|catch|dynamic_cast|typeid)\b)",
       Where::product,
       {},
       "is not used: product code has neither exceptions nor RTTI; return a Status or a Result"},
      {"namespaces",
       R"(\busing\s+namespace\b)",
       Where::product_and_perf,
       {"bucketing/c_api_"},
       "stands only where the C API's names are made of ours: elsewhere a reader must see where a "
       "name comes from"},
  };
  return table;
}

bool applies(const WordRule& rule, const SourceFile& file) {
  if (!file.is_cpp()) return false;
  if (std::any_of(rule.homes.begin(), rule.homes.end(),
                  [&](std::string_view home) { return file.is_under(home); }))
    return false;
  switch (rule.where) {
    case Where::product: return file.is_product();
    case Where::product_and_perf: return file.is_product() || file.is_under("perf/");
    case Where::everywhere: return true;
  }
  return false;
}

// `environ` may be handed to load_params() and declared; anything else would read it.
void check_environ(const SourceFile& file, Violations* out) {
  if (!file.is_product()) return;  // a tool may print what it was run with
  static const std::regex kEnviron(R"(\benviron\b)");
  static const std::regex kHandedOn(R"(\bload_params(_named)?\s*\(\s*(::)?environ\b|\bextern\b)");
  for (size_t i = 0; i < file.code.size(); ++i) {
    if (std::regex_search(file.code[i], kEnviron) && !std::regex_search(file.code[i], kHandedOn))
      out->push_back({"environment", file.path, i + 1,
                      "environ is handed to load_params() and to nothing else: one reader knows "
                      "every name and checks every value"});
  }
}

void check_todo(const SourceFile& file, Violations* out) {
  static const std::regex kTodo(R"(\b(TODO|FIXME|XXX)\b(?!\(#[0-9]+\)))");
  for (size_t i = 0; i < file.comments.size(); ++i) {
    std::smatch match;
    if (!std::regex_search(file.comments[i], match, kTodo)) continue;
    out->push_back({"promises", file.path, i + 1,
                    match.str() + " without an issue, as in TODO(#12): a promise that nobody "
                                  "tracks is kept by nobody; file it or delete it"});
  }
}

}  // namespace

Violations check_words(const SourceFile& file) {
  Violations out;
  for (const WordRule& rule : word_rules()) {
    if (!applies(rule, file)) continue;
    const std::regex pattern(rule.pattern);
    for (size_t i = 0; i < file.code.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(file.code[i], match, pattern)) continue;
      // An include names a header; what may be included is another rule's business.
      if (file.code[i].find("#include") != std::string::npos) continue;
      out.push_back({rule.rule, file.path, i + 1, "'" + match.str() + "' " + rule.reason});
    }
  }
  if (file.is_cpp()) {
    check_environ(file, &out);
    check_todo(file, &out);
  }
  return out;
}

}  // namespace noria::tidy
