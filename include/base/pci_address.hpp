// The address of a function on the PCI bus, as "0000:17:00.0": domain, bus, device, function, in
// the lower-case hexadecimal that sysfs writes. Pure.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <string_view>

namespace noria {

inline bool is_pci_address(std::string_view text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.x";
  const auto fits = [](char c, char form) {
    return form == 'x' ? (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') : c == form;
  };
  return text.size() == kForm.size() && std::equal(text.begin(), text.end(), kForm.begin(), fits) &&
         text[8] < '2' && text[11] < '8';
}

}  // namespace noria
