#include "perf/log_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

constexpr size_t kLongestLog = size_t{256} << 20;

}  // namespace

std::string read_log(const std::string& path) {
  const auto cannot = [&](const std::string& why) { return usage_error(path + ": " + why); };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw cannot("cannot be read: " + std::string(std::strerror(errno)));
  std::string text;
  std::vector<char> piece(1 << 20);
  while (const size_t bytes = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), bytes);
    if (text.size() > kLongestLog) throw cannot("is longer than any log: 256 MiB");
  }
  if (std::ferror(file.get()) != 0)
    throw cannot("cannot be read: " + std::string(std::strerror(errno)));
  return text;
}

}  // namespace noria::perf
