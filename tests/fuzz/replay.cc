// The main function of a fuzz target where there is no libFuzzer: gives it every file of the
// folders named, and the same files cut short at every length, and ends with how many there were.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/fuzz/input.hpp"

namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void give(const std::string& bytes, size_t size) {
  // In memory of its own, so that a sanitizer sees a read past the end.
  const std::string exact(bytes, 0, size);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(exact.data()), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  unsigned files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      // Before, so that a crash names the file.
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      const std::string bytes = read_file(entry.path());
      constexpr size_t kMostCuts = 64;
      const size_t step = bytes.size() / kMostCuts + 1;
      for (size_t size = 0; size < bytes.size(); size += step) give(bytes, size);
      give(bytes, bytes.size());
      ++files;
    }
  std::printf("%u files replayed\n", files);
  return files == 0 ? 1 : 0;
}
