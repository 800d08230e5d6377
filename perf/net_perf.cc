// net_perf: what a net plugin of NCCL carries between two processes: bandwidth, latency, message
// rate, in perftest's flags and columns.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.hpp"
#include "perf/command_line.hpp"
#include "perf/net_measure.hpp"
#include "perf/sizes.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "net_perf";
constexpr uint64_t kMostBytes = 1_GiB;
constexpr uint64_t kMostOfAll = 8_MiB;  // -a, as perftest
constexpr uint64_t kMostMessages = uint64_t{1} << 40;
constexpr double kMostSeconds = 86400;
constexpr uint32_t kMostInFlight = 256, kMostBuffers = 256, kMostConnections = 64;

struct Options {
  std::string test = "bw";
  std::string size;
  bool all_sizes = false;
  uint64_t iterations = 0;  // 0: perftest's default
  double seconds = 0;
  bool is_bidirectional = false;
  uint32_t depth = 8;
  uint32_t buffers = 1;
  uint32_t connections = 1;

  NetPluginChoice choice;
  std::string host;
  uint16_t port = 18515;
  int local_ends = 0;
  bool in_gigabits = false;
  bool json = false;

  bool is_latency() const { return test == "lat"; }
  bool goes_both_ways() const { return is_bidirectional || is_latency(); }
  NetLength length() const {
    if (seconds > 0) return {.duration = static_cast<Nanoseconds>(seconds * 1e9)};
    return {.messages = iterations != 0 ? iterations : is_latency() ? 1000 : 5000};
  }
  std::vector<uint64_t> sizes() const {
    if (all_sizes) return sizes_of({.min_bytes = 2, .max_bytes = kMostOfAll, .step_factor = 2});
    return {!size.empty() ? std::stoull(size) : test == "bw" ? 64_KiB : 8};
  }
};

// ---- what both sides must do alike --------------------------------------------------------------

// The client's word holds; a flag that the server was given too must say the same.
struct Terms {
  const char* flag;
  const char* key;
};
constexpr Terms kTerms[] = {
    {"--test", "test"},   {"-s", "size"},           {"-a", "all_sizes"},
    {"-n", "iterations"}, {"-D", "seconds"},        {"-b", "is_bidirectional"},
    {"-t", "depth"},      {"--buffers", "buffers"}, {"-q", "connections"}};

Json terms_of(const Options& options) {
  return {{"test", options.test},
          {"size", options.size},
          {"all_sizes", options.all_sizes},
          {"iterations", options.iterations},
          {"seconds", options.seconds},
          {"is_bidirectional", options.is_bidirectional},
          {"depth", options.depth},
          {"buffers", options.buffers},
          {"connections", options.connections}};
}

// A stranger on the port may say anything.
bool are_possible(const Options& options) {
  const uint64_t bytes = parse_size(options.size).value_or(0);
  return (options.test == "bw" || options.test == "lat" || options.test == "rate") &&
         (options.size.empty() || (bytes >= 1 && bytes <= kMostBytes)) &&
         options.iterations <= kMostMessages && options.seconds >= 0 &&
         options.seconds <= kMostSeconds && options.depth >= 1 && options.depth <= kMostInFlight &&
         options.buffers >= 1 && options.buffers <= kMostBuffers && options.connections >= 1 &&
         options.connections <= kMostConnections;
}

// What the client asks of both sides. Throws ToolError: peer for a stranger, usage where the server
// was given something else.
Options take_terms(const NetControl& control, const std::string& asked, const CLI::App& app,
                   Options options) {
  const Json theirs = Json::parse(asked, nullptr, false);
  const Json mine = terms_of(options);
  const ToolError is_other(Exit::peer, control.peer() + " is a net_perf of another version");
  for (const Terms& term : kTerms) {
    if (!theirs.is_object() || !theirs.contains(term.key) ||
        theirs[term.key].type() != mine[term.key].type())
      throw is_other;
    if (app.get_option(term.flag)->count() != 0 && theirs[term.key] != mine[term.key])
      throw usage_error(std::string(term.flag) + ": the server was given " + mine[term.key].dump() +
                        ", the client has " + theirs[term.key].dump() +
                        "; leave it out at the server, or give both the same");
  }
  options.test = theirs["test"];
  options.size = theirs["size"];
  options.all_sizes = theirs["all_sizes"];
  options.iterations = theirs["iterations"];
  options.seconds = theirs["seconds"];
  options.is_bidirectional = theirs["is_bidirectional"];
  options.depth = theirs["depth"];
  options.buffers = theirs["buffers"];
  options.connections = theirs["connections"];
  if (!are_possible(options)) throw is_other;
  return options;
}

// ---- the table ----------------------------------------------------------------------------------

class Report {
 public:
  Report(const Options& options, const NetPlugin& plugin, const std::string& peer)
      : options_(options), is_terminal_(::isatty(STDERR_FILENO) != 0) {
    json_ = {
        {"tool", kName},
        {"plugin",
         {{"path", plugin.path()}, {"name", plugin.net().name()}, {"version", plugin.version()}}},
        {"device", {{"name", plugin.device_name()}, {"gbit", plugin.speed_mbps() * 1e-3}}},
        {"test", options.test},
        {"bidirectional", options.is_bidirectional},
        {"depth", options.depth},
        {"buffers", options.buffers},
        {"connections", options.connections},
        {"rows", Json::array()}};
    if (options.json) return;
    std::printf(
        "# %s %s, %s v%d, device %s, %g Gb/s; to %s\n# %u connection%s, of each %u in flight, %u "
        "buffer%s a side\n",
        kName, options.test.c_str(), plugin.net().name().c_str(), plugin.version(),
        plugin.device_name().c_str(), plugin.speed_mbps() * 1e-3, peer.c_str(), options.connections,
        options.connections == 1 ? "" : "s", options.depth, options.buffers,
        options.buffers == 1 ? "" : "s");
    std::fputs(options.is_latency() ? latency_header().c_str() : rate_header(unit()).c_str(),
               stdout);
    std::fflush(stdout);
  }
  ~Report() { clear(); }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void progress(uint64_t bytes, double percent) {
    if (!is_terminal_ || now_ns() - shown_ < 100_ms) return;
    shown_ = now_ns();
    std::fprintf(stderr, "\r\033[K%s: %llu bytes, %.0f %%", kName,
                 static_cast<unsigned long long>(bytes), percent);
  }
  void add(const RateRow& row) { add(rate_text(row, unit()), rate_json(row)); }
  void add(const LatencyRow& row) { add(latency_text(row), latency_json(row)); }
  void end() {
    if (options_.json) std::printf("%s\n", json_.dump(2).c_str());
  }

 private:
  RateUnit unit() const { return options_.in_gigabits ? RateUnit::gigabits : RateUnit::megabytes; }
  void clear() const {
    if (is_terminal_) std::fputs("\r\033[K", stderr);
  }
  void add(const std::string& text, const Json& json) {
    clear();
    json_["rows"].push_back(json);
    if (!options_.json) std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

  const Options& options_;
  const bool is_terminal_;
  Nanoseconds shown_ = 0;
  Json json_;
};

// ---- the two sides ------------------------------------------------------------------------------

// Until both plugins are up: a side that fails says so to the other before anything waits for it.
std::vector<NetLink> set_up(const NetPlugin& plugin, NetControl& control, const Options& options,
                            bool is_client) {
  control.meet();
  const auto sizes = options.sizes();
  const NetShape shape{.most_bytes = *std::max_element(sizes.begin(), sizes.end()),
                       .buffers = options.buffers,
                       .depth = options.depth};
  const bool both = options.goes_both_ways();
  std::vector<NetLink> links;
  while (links.size() < options.connections)
    links.push_back(connect_net(plugin, control, shape, is_client || both, !is_client || both));
  return links;
}

void serve(NetControl& control, const Options& options) {
  const NetPlugin plugin(options.choice);
  std::vector<NetLink> links = set_up(plugin, control, options, false);
  use_links(control, options.local_ends == 0 ? kName : nullptr, [&] {
    for (const uint64_t bytes : options.sizes()) {
      const NetProgress silent = [](double) {};
      RateRow row;
      if (options.is_latency())
        measure_latency(links.front(), control, bytes, options.length(), false, silent);
      else
        row = measure_rate(links, control, bytes, options.length(), silent);
      control.send(Json{{"peak", row.peak}, {"average", row.average}}.dump());
      control.receive();
    }
  });
}

void ask(NetControl& control, const Options& options) {
  control.send(terms_of(options).dump());
  const NetPlugin plugin(options.choice);
  if (*plugin.notice() != '\0') std::fprintf(stderr, "%s: %s\n", kName, plugin.notice());
  std::vector<NetLink> links = set_up(plugin, control, options, true);
  Report report(options, plugin, control.peer());
  use_links(control, kName, [&] {
    for (const uint64_t bytes : options.sizes()) {
      const NetProgress progress = [&](double percent) { report.progress(bytes, percent); };
      if (options.is_latency()) {
        report.add(latency_row(bytes, measure_latency(links.front(), control, bytes,
                                                      options.length(), true, progress)));
        control.receive();
      } else {
        RateRow row = measure_rate(links, control, bytes, options.length(), progress);
        const Json theirs = Json::parse(control.receive(), nullptr, false);
        row.peak += theirs.value("peak", 0.0);
        row.average += theirs.value("average", 0.0);
        report.add(row);
      }
      control.send("next");
    }
  });
  report.end();
}

// ---- both on this machine -----------------------------------------------------------------------

class LocalServer {
 public:
  // Forks before any plugin is loaded. The child ends when the parent does, and says nothing
  // itself: what fails there the parent prints.
  explicit LocalServer(const CLI::App& app, const Options& options) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      throw ToolError(Exit::environment, std::string("socketpair: ") + std::strerror(errno));
    Fd mine(ends[0]), theirs(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw ToolError(Exit::environment, std::string("fork: ") + std::strerror(errno));
    if (pid_ == 0) {
      mine.reset();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(static_cast<int>(Exit::peer));
      ::_exit(static_cast<int>(run(std::move(theirs), app, options)));
    }
    control_.emplace(std::move(mine), "the other process (pid " + std::to_string(pid_) + ")");
  }
  ~LocalServer() {
    control_.reset();  // it sees the end of the socket, where it waits for us
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  NetControl& control() { return *control_; }

 private:
  static Exit run(Fd socket, const CLI::App& app, const Options& options) {
    NetControl control(std::move(socket), "the tool");
    try {
      with_news(control,
                [&] { serve(control, take_terms(control, control.receive(), app, options)); });
    } catch (const ToolError& error) {
      return error.code();
    } catch (const std::exception& error) {
      control.send_failure(ToolError(Exit::environment, error.what()));
      return Exit::environment;
    }
    return Exit::ok;
  }

  pid_t pid_ = -1;
  std::optional<NetControl> control_;
};

// ---- the command line ---------------------------------------------------------------------------

constexpr const char* kHelp =
    "Bandwidth, latency or message rate of a net plugin of NCCL between two processes, by host "
    "memory.\n"
    "  net_perf -g 2            both sides on this machine\n"
    "  net_perf                 the server: waits for a client, once; it receives\n"
    "  net_perf HOST            the client: its flags hold for both sides\n"
    "A size is measured from the first isend after a warm-up to the last completion of one. MB is "
    "2^20 bytes,\nas perftest has it.\n"
    "Exit: 0, 1 a wrong length came, 2 usage, 3 the plugin does not start or has no device, 4 the "
    "other\nside was lost.";

void add_flags(CLI::App& app, Options& options) {
  app.add_option("HOST", options.host, "where the server runs");
  app.add_option("-g", options.local_ends, "2: both sides on this machine")
      ->check(whole_number(2, 2));
  app.add_option("-p,--port", options.port, "of the server (18515)")->check(whole_number(1, 65535));
  app.add_option("--plugin", options.choice.plugin,
                 "path, or NAME of libnccl-net-NAME.so (noria's, beside this tool)");
  app.add_option("--abi", options.choice.version, "version of its table (the highest it has)")
      ->check(whole_number(abi::kOldestVersion, abi::kNewestVersion));
  app.add_option("-d,--ib-dev", options.choice.device, "index or name of a device (0)");
  app.add_flag("--log", options.choice.shows_log, "show the plugin's log on standard error");
  app.add_option("--test", options.test, "bw, lat or rate (bw)")
      ->check(CLI::IsMember({"bw", "lat", "rate"}));
  app.add_option("-s,--size", options.size, "of a message (64K; 8 for lat and rate)")
      ->transform(byte_size(1, kMostBytes));
  app.add_flag("-a,--all", options.all_sizes, "sizes from 2 to 8M");
  app.add_option("-n,--iters", options.iterations, "messages of a size (5000; 1000 for lat)")
      ->check(whole_number(1, kMostMessages));
  app.add_option("-D,--duration", options.seconds, "seconds of a size, instead of -n")
      ->check(real_number(0.01, kMostSeconds));
  app.add_flag("-b,--bidirectional", options.is_bidirectional,
               "both ways at once; the sum is shown");
  app.add_option("-t,--depth", options.depth, "messages in flight (8, as NCCL)")
      ->check(whole_number(1, kMostInFlight));
  app.add_option("--buffers", options.buffers, "that a side goes through in turn (1; NCCL has 8)")
      ->check(whole_number(1, kMostBuffers));
  app.add_option("-q,--qp", options.connections, "connections side by side, -n and -t of each (1)")
      ->check(whole_number(1, kMostConnections));
  app.add_flag("--report_gbits", options.in_gigabits, "Gb/sec in place of MB/sec");
  app.add_flag("--json", options.json, "JSON on standard output, and no table");
}

void settle(const CLI::App& app, const Options& options) {
  const auto exclude = [&](const char* one, const char* other) {
    if (app.get_option(one)->count() != 0 && app.get_option(other)->count() != 0)
      throw usage_error(std::string(one) + " and " + other + " exclude each other");
  };
  exclude("-n", "-D");
  exclude("-s", "-a");
  exclude("-g", "HOST");
  exclude("-g", "-p");
  if (options.is_latency() && options.is_bidirectional)
    throw usage_error("-b: a latency test goes both ways by itself");
  if (options.is_latency() && options.connections != 1)
    throw usage_error("-q: a latency test has one message under way");
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(kHelp, kName);
  add_flags(app, options);
  if (parse_command_line(app, argc, argv)) return 0;
  settle(app, options);
  params_of_environment();
  if (options.local_ends != 0) {
    LocalServer server(app, options);
    with_news(server.control(), [&] { ask(server.control(), options); });
  } else if (!options.host.empty()) {
    NetControl control = connect_to_server(options.host, options.port,
                                           "is net_perf running there, without a host's name?");
    with_news(control, [&] { ask(control, options); });
  } else {
    const Fd listener = listen_for_client(options.port);
    std::printf("# %s waits for a client on port %u\n", kName, unsigned{options.port});
    std::fflush(stdout);
    NetControl control =
        wait_for_client(listener, kName, [&](NetControl& client, const std::string& asked) {
          options = take_terms(client, asked, app, options);
        });
    with_news(control, [&] { serve(control, options); });
  }
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
