// noria_soft: runs a program that knows nothing of noria on the software HCA.
//
// Linked programs meet it by LD_PRELOAD, noria by NORIA_IBVERBS, NCCL by NCCL_IBVERBS_LIB. The tool
// becomes the program (exec): signals, exit code and process id are the program's own.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/real_path.hpp"
#include "perf/command_line.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "noria_soft";
constexpr const char* kLibrary = "libnoria-softverbs.so";

constexpr const char* kHelp =
    "Runs CMD on the software HCA instead of the RDMA devices of this machine.\n"
    "Usage: noria_soft CMD [ARGUMENT...]\n"
    "\n"
    "It becomes CMD, with these variables set:\n"
    "  LD_PRELOAD        for programs linked with libibverbs (put before what stands there)\n"
    "  NORIA_IBVERBS     for noria\n"
    "  NCCL_IBVERBS_LIB  for NCCL, which loads libibverbs by its name\n"
    "\n"
    "Options:\n"
    "  -h,--help         this text\n"
    "\n"
    "  noria_soft ibv_devinfo -v\n"
    "  NORIA_SOFT_DEVICES='name=mlx0,rate=400' noria_soft ib_write_bw\n"
    "\n"
    "Exit: CMD's own; before it starts 2 for usage or a bad variable, 3 if the software HCA is "
    "not\n"
    "found, and as in a shell 127 if CMD is not found, 126 if it cannot be run.\n";

constexpr int kNotFound = 127, kNotRunnable = 126;

std::string find_library() {
  const std::string self = real_path("/proc/self/exe");
  const std::string folder = self.substr(0, self.rfind('/') + 1);
  // In the build tree and where the tree is installed.
  for (const char* step : {"../lib/", "../" NORIA_LIBDIR "/"}) {
    std::string found = real_path(folder + step + kLibrary);
    if (found.empty() || ::access(found.c_str(), R_OK) != 0) continue;
    if (found.find_first_of(": ") != std::string::npos)
      throw ToolError(Exit::environment, found +
                                             ": LD_PRELOAD takes no path with a blank or a colon; "
                                             "install noria elsewhere");
    return found;
  }
  throw ToolError(Exit::environment, std::string(kLibrary) + " is neither in " + folder +
                                         "../lib nor in " + folder + "../" NORIA_LIBDIR);
}

int body(int argc, char** argv) {
  if (argc < 2) throw usage_error("no program is named; noria_soft --help shows how");
  const std::string first = argv[1];
  if (first == "-h" || first == "--help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (first.starts_with("-"))
    throw usage_error(first + " is not a flag of this tool; it takes --help, or a program");

  const Params params = params_of_environment();
  const std::string library = find_library();
  const std::string preload =
      params.ld_preload.empty() ? library : library + ":" + params.ld_preload;
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  ::setenv("NORIA_IBVERBS", library.c_str(), 1);
  ::setenv("NCCL_IBVERBS_LIB", library.c_str(), 1);
  ::execvp(argv[1], argv + 1);

  const int why = errno;
  std::fprintf(stderr, "%s: %s: %s\n", kName, argv[1], std::strerror(why));
  return why == ENOENT ? kNotFound : kNotRunnable;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
