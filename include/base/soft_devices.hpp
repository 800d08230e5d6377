// The devices that NORIA_SOFT_DEVICES describes, for the software HCA:
//
//   name=mlx0,rate=400,width=4,ll=ib,numa=0,pci=0000:17:00.0,host=a,shape=25,ece=0x3,
//   max_msg=8; name=mlx1,...
//
// Strict: a key that is unknown, given twice or out of its range refuses the whole text, and the
// failure is one line that names the device, the word, what is accepted, and the nearest key. Pure.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/pci_address.hpp"
#include "base/result.hpp"
#include "base/value_text.hpp"

namespace noria {

// One device with one port. `rate_gbit` is what it declares; `shape_gbit` is what it keeps.
struct SoftDevice {
  std::string name = "noria0";
  double rate_gbit = 400;
  uint32_t width = 4;  // lanes
  bool is_infiniband = false;
  int numa = -1;    // -1: the host does not say
  std::string pci;  // empty: on no bus
  std::string
      host;  // whose port it is: processes that name the same host share it. Empty: their own
  double shape_gbit = 0;  // 0: as NORIA_SOFT_RATE_GBIT says
  uint32_t ece = 0;       // options of enhanced connection establishment; 0: it has none
  uint64_t max_message = 1ull << 30;  // bytes of a work request
  bool is_described = false;          // false: the one device there is without a description
};

constexpr size_t kMaxSoftDevices = 32;

namespace detail {

// Gbit/s of a lane, SDR to NDR.
constexpr std::array<double, 7> kLaneRates{2.5, 5, 10, 14, 25, 50, 100};

inline std::string lane_rates_text(uint32_t width) {
  std::string text;
  for (const double lane : kLaneRates)
    text += (text.empty()                ? ""
             : lane == kLaneRates.back() ? " or "
                                         : ", ") +
            number_text(lane * width);
  return text;
}

// Letters, digits, '_', '-'; a letter first: it names a folder and a socket.
inline bool is_soft_name(std::string_view text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= 31 &&
         std::isalpha(static_cast<unsigned char>(text.front())) != 0 &&
         std::all_of(text.begin(), text.end(), is_plain);
}

constexpr std::array<std::string_view, 10> kSoftKeys{"name", "rate", "width", "ll",  "numa",
                                                     "pci",  "host", "shape", "ece", "max_msg"};

// Empty, or what the key takes.
inline std::string take_soft_value(std::string_view key, std::string_view value, SoftDevice* to) {
  uint64_t number = 0;
  if (key == "name") {
    to->name = value;
    return is_soft_name(value) ? "" : "a letter, then letters, digits, '_' or '-', 31 at most";
  }
  if (key == "host") {
    to->host = value;
    return is_soft_name(value) ? "" : "a letter, then letters, digits, '_' or '-', 31 at most";
  }
  if (key == "rate") return parse_real(value, &to->rate_gbit) ? "" : "Gbit/s, as 400";
  if (key == "shape") {
    const bool is_rate = parse_real(value, &to->shape_gbit) && to->shape_gbit > 0;
    return is_rate && to->shape_gbit <= 100000 ? "" : "more than 0, to 100000 Gbit/s, as 2.5";
  }
  if (key == "width") {
    if (!parse_uint(value, &number) || !is_choice(value, "1|2|4|8|12")) return "1, 2, 4, 8 or 12";
    to->width = static_cast<uint32_t>(number);
    return "";
  }
  if (key == "ll") {
    to->is_infiniband = value == "ib";
    return is_choice(value, "ib|eth") ? "" : "ib or eth";
  }
  if (key == "numa") {
    if (!parse_uint(value, &number) || number > 1023) return "0 to 1023";
    to->numa = static_cast<int>(number);
    return "";
  }
  if (key == "ece") {
    const bool is_hex = value.starts_with("0x") && parse_hex(value.substr(2), &number);
    if (!is_hex || number == 0 || number > UINT32_MAX) return "options in hexadecimal, as 0x3";
    to->ece = static_cast<uint32_t>(number);
    return "";
  }
  if (key == "max_msg") {
    if (!parse_uint(value, &number) || number < 1 || number > 1024) return "1 to 1024 MiB, as 8";
    to->max_message = number << 20;
    return "";
  }
  to->pci = value;
  return is_pci_address(value) ? "" : "domain:bus:device.function as sysfs has it: 0000:17:00.0";
}

inline Result<SoftDevice, std::string> parse_soft_device(std::string_view text) {
  using Parsed = Result<SoftDevice, std::string>;
  SoftDevice device;
  device.is_described = true;
  std::vector<std::string_view> seen;
  if (text.ends_with(',')) return Parsed("nothing follows its last ','");
  while (!text.empty()) {
    std::string_view word = take_until(&text, ',');
    const std::string whole(word);
    if (word.find('=') == std::string_view::npos)
      return Parsed("'" + whole + "' is not key=value, as name=mlx0");
    const std::string_view key = take_until(&word, '=');
    if (std::find(kSoftKeys.begin(), kSoftKeys.end(), key) == kSoftKeys.end())
      return Parsed("'" + std::string(key) + "' is not a key; the nearest is '" +
                    nearest_word(key, kSoftKeys) + "'");
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      return Parsed("'" + std::string(key) + "' stands twice");
    seen.push_back(key);
    const std::string accepts = take_soft_value(key, trimmed(word), &device);
    if (!accepts.empty()) return Parsed("'" + whole + "' is not accepted; it takes " + accepts);
  }
  if (std::find(seen.begin(), seen.end(), "name") == seen.end())
    return Parsed("it has no name, as name=mlx0");
  const bool is_link = std::any_of(kLaneRates.begin(), kLaneRates.end(), [&](double lane) {
    return lane * device.width == device.rate_gbit;
  });
  if (!is_link)
    return Parsed("rate=" + number_text(device.rate_gbit) + " is no link of width " +
                  std::to_string(device.width) + "; it takes " + lane_rates_text(device.width));
  return device;
}

}  // namespace detail

// The devices in order; one, undescribed, for an empty text.
inline Result<std::vector<SoftDevice>, std::string> parse_soft_devices(std::string_view text) {
  using Parsed = Result<std::vector<SoftDevice>, std::string>;
  std::vector<SoftDevice> devices;
  if (text.empty()) devices.emplace_back();
  while (!text.empty()) {
    const std::string where = "device " + std::to_string(devices.size() + 1) + ": ";
    auto device = detail::parse_soft_device(detail::take_until(&text, ';'));
    if (!device.is_ok()) return Parsed(where + device.failure());
    for (const SoftDevice& other : devices) {
      if (other.name == device->name) return Parsed(where + "name=" + other.name + " is taken");
      if (!other.pci.empty() && other.pci == device->pci && other.host == device->host)
        return Parsed(where + "pci=" + other.pci + " is taken by " + other.name);
    }
    if (devices.size() == kMaxSoftDevices)
      return Parsed(where + "there is room for " + std::to_string(kMaxSoftDevices));
    devices.push_back(std::move(device).value());
  }
  return devices;
}

}  // namespace noria
