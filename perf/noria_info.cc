// noria_info: what noria finds on this machine, and every parameter with its value.

#include <noria/observe.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "perf/command_line.hpp"
#include "perf/communicator.hpp"
#include "perf/machine_check.hpp"
#include "verbs/provider.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kName = "noria_info";

std::string version_text(uint32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Json port_json(const verbs::PortInfo& port) {
  return {{"device", port.device},
          {"port", port.port},
          {"active", port.is_active},
          {"state", port.state},
          {"link", port.is_ethernet ? "ethernet" : "infiniband"},
          {"gbit", static_cast<double>(port.speed_mbps) / 1000},
          {"lid", port.lid},
          {"gid", port.gid},
          {"gid_index", port.gid_index},
          {"gid_type", port.gid_type},
          {"numa", port.numa_node},
          {"path", port.sysfs_path}};
}

// One answer of the choice that verbs/provider.hpp describes.
Json provider_json(const Params& params, verbs::Use use) {
  const auto provider = verbs::open_provider(params, use);
  if (!provider) return {{"failure", provider.failure()}};
  Json json{
      {"library", (*provider)->library_path()},
      {"kind", (*provider)->kind() == verbs::ProviderKind::software ? "software HCA" : "hardware"},
      {"notice", (*provider)->notice()},
      {"ports", Json::array()}};
  for (const verbs::PortInfo& port : (*provider)->ports()) json["ports"].push_back(port_json(port));
  return json;
}

Json params_json() {
  Json json = Json::array();
  noria_param_info info{};
  info.struct_size = sizeof info;
  for (uint32_t i = 0; noria_observe_param(i, &info) == NORIA_OK; ++i)
    json.push_back({{"name", info.name},
                    {"value", info.value},
                    {"default", info.default_value},
                    {"source", info.source},
                    {"nccl_name", info.nccl_name},
                    {"is_default", info.is_default != 0},
                    {"accepts", info.accepts},
                    {"sentence", info.sentence}});
  return json;
}

std::string text_of(const Json& json, const char* key) { return json.at(key).get<std::string>(); }

void print_provider(const char* who, const Json& json) {
  if (json.contains("failure")) {
    std::printf("%s: none: %s\n", who, text_of(json, "failure").c_str());
    return;
  }
  std::printf("%s: %s (%s)\n", who, text_of(json, "library").c_str(),
              text_of(json, "kind").c_str());
  if (const std::string notice = text_of(json, "notice"); !notice.empty())
    std::printf("  %s\n", notice.c_str());
  for (const Json& port : json.at("ports"))
    std::printf("  %s port %d: %s, %s, %g Gbit/s, NUMA node %d, GID %u %s (%s)\n",
                text_of(port, "device").c_str(), port.at("port").get<int>(),
                text_of(port, "state").c_str(), text_of(port, "link").c_str(),
                port.at("gbit").get<double>(), port.at("numa").get<int>(),
                port.at("gid_index").get<unsigned>(), text_of(port, "gid").c_str(),
                text_of(port, "gid_type").c_str());
}

void print(const Json& json) {
  std::printf("noria %s\n", text_of(json, "library_version").c_str());
  print_provider("verbs, for collectives", json.at("collectives"));
  print_provider("verbs, for the NCCL plugin", json.at("plugin"));
  std::printf("parameters (* not the default)\n");
  for (const Json& param : json.at("parameters")) {
    const auto shown = [&](const char* key) {
      const std::string text = text_of(param, key);
      return text.empty() ? std::string("-") : text;
    };
    const std::string nccl_name = text_of(param, "nccl_name");
    std::printf("%c %-28s %-12s from %-10s default %-8s takes %s%s\n    %s\n",
                param.at("is_default").get<bool>() ? ' ' : '*', text_of(param, "name").c_str(),
                shown("value").c_str(), text_of(param, "source").c_str(), shown("default").c_str(),
                text_of(param, "accepts").c_str(),
                nccl_name.empty() ? "" : (", or NCCL's " + nccl_name).c_str(),
                text_of(param, "sentence").c_str());
  }
}

Json findings_json(const std::vector<Finding>& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings)
    json.push_back({{"name", finding.name},
                    {"ok", finding.is_ok()},
                    {"says", finding.says},
                    {"remedy", finding.remedy}});
  return json;
}

void print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    std::printf("%-5s  %-9s  %s", finding.is_ok() ? "ok" : "WRONG", finding.name.c_str(),
                finding.says.c_str());
    if (!finding.is_ok()) std::printf(": %s", finding.remedy.c_str());
    std::printf("\n");
  }
}

int check(bool as_json) {
  const std::vector<Finding> findings = check_machine(read_machine(environ));
  if (as_json)
    std::printf("%s\n", Json{{"check", findings_json(findings)}}.dump(2).c_str());
  else
    print(findings);
  const bool is_good = std::all_of(findings.begin(), findings.end(),
                                   [](const Finding& finding) { return finding.is_ok(); });
  return static_cast<int>(is_good ? Exit::ok : Exit::environment);
}

int body(int argc, char** argv) {
  CLI::App app(
      "Shows the version, the verbs library and devices that noria would use here, and every "
      "variable with its value and where that comes from.\n"
      "With --check, what the NCCL plugin needs of this machine, line by line: ok, or WRONG and "
      "what to "
      "do.\n"
      "Exit: 0, 2 usage or a bad variable, 3 no device, or something is wrong.",
      kName);
  bool as_json = false;
  bool only_check = false;
  app.add_flag("--json", as_json, "JSON instead of text");
  app.add_flag("--check", only_check, "Look for what is wrong, and nothing else");
  if (parse_command_line(app, argc, argv)) return 0;
  if (only_check) return check(as_json);

  const Params params = params_of_environment();
  Json json{{"library_version", version_text(noria_version())},
            {"collectives", provider_json(params, verbs::Use::collective)},
            {"plugin", provider_json(params, verbs::Use::plugin)},
            {"parameters", params_json()}};
  if (as_json)
    std::printf("%s\n", json.dump(2).c_str());
  else
    print(json);
  return static_cast<int>(json["collectives"].contains("failure") ? Exit::environment : Exit::ok);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
