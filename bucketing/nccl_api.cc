#include "bucketing/nccl_api.hpp"

#include <memory>
#include <utility>

#include "base/value_text.hpp"

namespace noria::bucketing {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

noria_status status_of(nccl::Result result) {
  switch (result) {
    case nccl::Result::system_error: return NORIA_E_NET;
    case nccl::Result::remote_error: return NORIA_E_PEER;
    case nccl::Result::invalid_argument:
    case nccl::Result::invalid_usage: return NORIA_E_ARG;
    default: return NORIA_E_DEVICE;
  }
}

// First of all: an old library is told by its age rather than by what it lacks.
Outcome<int> version_of(const SharedObject& library) {
  NcclSymbols symbols;
  std::string missing;
  take_function(library, NcclRow<&NcclSymbols::get_version>::name, true, &symbols.get_version,
                &missing);
  int version = 0;
  if (!missing.empty() || symbols.get_version(&version) != nccl::Result::success)
    return Failure{NORIA_E_UNSUPPORTED, library.path() + " tells no version: is it NCCL?"};
  if (version >= nccl::kOldestVersion) return version;
  return Failure{NORIA_E_UNSUPPORTED, library.path() + " is NCCL " + nccl_version_text(version) +
                                          ", and " + nccl_version_text(nccl::kOldestVersion) +
                                          " or later is needed; NORIA_NCCL may name another"};
}

}  // namespace

// Up to 2.8 the number had one digit less for the minor version.
std::string nccl_version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

Outcome<NcclSymbols> NcclSymbols::load(const SharedObject& library) {
  NcclSymbols symbols;
  std::string missing;
#define NORIA_NCCL(member, function, type, arguments, required, answers) \
  take_function(library, #function, required, &symbols.member, &missing);
#include "bucketing/nccl_symbols.def"
#undef NORIA_NCCL
  if (missing.empty()) return symbols;
  return Failure{NORIA_E_UNSUPPORTED, library.path() + " has no " + missing + ": NCCL " +
                                          nccl_version_text(nccl::kOldestVersion) +
                                          " or later has all that is needed"};
}

NcclApi::NcclApi(SharedObject library, const NcclSymbols& symbols, int version)
    : library_(std::move(library)), symbols_(symbols), version_(version) {}

Outcome<const NcclApi*> NcclApi::open(const std::string& path) {
  static auto* const all = new OpenLibraries<NcclApi>;  // never destroyed: as the header says
  return all->get(path, [&path]() -> Outcome<std::unique_ptr<const NcclApi>> {
    auto library = SharedObject::open(path.empty() ? kLibrary : path);
    if (!library)
      return Failure{NORIA_E_UNSUPPORTED, "cannot load NCCL: " + library.failure() +
                                              "; install it, or name its path by NORIA_NCCL"};
    NORIA_TRY_ASSIGN(const int version, version_of(*library));
    NORIA_TRY_ASSIGN(const NcclSymbols symbols, NcclSymbols::load(*library));
    return std::unique_ptr<const NcclApi>(new NcclApi(std::move(*library), symbols, version));
  });
}

Failure NcclApi::failed(const char* doing, nccl::Result result) const {
  const char* const words = symbols_.get_error_string(result);
  // The argument is not looked at: the words are the process's.
  const char* const last = symbols_.get_last_error(nullptr);
  std::string text = std::string(doing) + ": " + (words != nullptr ? words : "unknown failure") +
                     " (" + std::to_string(static_cast<int>(result)) + ")";
  if (last != nullptr && last[0] != '\0') text += ": " + printable(last);
  return {status_of(result), text + "; NCCL_DEBUG=WARN shows more"};
}

}  // namespace noria::bucketing
