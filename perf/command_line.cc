#include "perf/command_line.hpp"

#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <new>

#include "perf/nccl_tests_json.hpp"
#include "perf/sizes.hpp"

namespace noria::perf {
namespace {

std::string refused(const std::string& value, const std::string& accepts) {
  return "'" + value + "' is not accepted; it takes " + accepts;
}

// CLI11 writes "-b: text" for validators; other failures of its own already name the flag.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text;
}

}  // namespace

std::string nearest_flag(const CLI::App& app, const std::string& unknown) {
  const std::string wanted = unknown.substr(0, unknown.find('='));
  std::string nearest;
  size_t least = SIZE_MAX;
  const auto consider = [&](const std::string& flag) {
    const size_t distance = edit_distance(wanted, flag);
    if (distance < least) {
      least = distance;
      nearest = flag;
    }
  };
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) consider("--" + name);
    for (const std::string& name : option->get_snames()) consider("-" + name);
  }
  return nearest;
}

bool parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return true;
  } catch (const CLI::ParseError& error) {
    throw usage_error(one_line(error.what()));
  }
  for (const std::string& extra : app.remaining()) {
    if (extra.starts_with("-"))
      throw usage_error(extra + " is not a flag of this tool; the nearest is " +
                        nearest_flag(app, extra));
    throw usage_error("'" + extra + "' belongs to no flag; --help lists them");
  }
  return false;
}

Params params_of_environment() {
  auto params = load_params(environ);
  if (!params) throw usage_error(params.failure());
  return *std::move(params);
}

CLI::Validator whole_number(uint64_t least, uint64_t most) {
  const std::string range = std::to_string(least) + " to " + std::to_string(most);
  return CLI::Validator(
      [=](std::string& text) {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        return whole && value >= least && value <= most ? std::string() : refused(text, range);
      },
      range);
}

CLI::Validator real_number(double least, double most) {
  const std::string range = detail::number_text(least) + " to " + detail::number_text(most);
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool is_number = detail::parse_real(text, &value);
        return is_number && value >= least && value <= most ? std::string() : refused(text, range);
      },
      range);
}

CLI::Validator byte_size(uint64_t least, uint64_t most) {
  const std::string range = detail::bytes_text(least, "bytes") + " to " +
                            detail::bytes_text(most, "bytes") + " bytes (K, M, G: 1024)";
  return CLI::Validator(
      [=](std::string& text) {
        const auto size = parse_size(text);
        if (!size || *size < least || *size > most) return refused(text, range);
        text = std::to_string(*size);
        return std::string();
      },
      range);
}

CLI::Validator file_name() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? refused(text, "a file's name") : std::string();
      },
      "FILE");
}

int run_tool(const char* name, const std::function<int(int argc, char** argv)>& body, int argc,
             char** argv) {
  try {
    const int exit = body(argc, argv);
    require_printed();
    return exit;
  } catch (const ToolError& error) {
    error.show(name);
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory; ask for smaller sizes or fewer ranks\n", name);
    return static_cast<int>(Exit::environment);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return static_cast<int>(Exit::environment);
  }
}

}  // namespace noria::perf
