#include "plugin/tuner/table.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/fingerprint.hpp"

namespace noria::plugin::tuner {
namespace {

bool fits(const Link& wanted, const Link& there) {
  return wanted.kind == LinkKind::any ||
         (wanted.kind == there.kind && (wanted.gbit == 0 || wanted.gbit == there.gbit));
}

void add(const Range& range, Fingerprint* out) {
  out->add(range.first);
  out->add(range.last);
}

// By what the last call left.
std::string cannot_be_read(const std::string& path) {
  return path + ": cannot be read: " + std::strerror(errno);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace

bool says_modelled(std::string_view provenance) { return provenance.starts_with("modelled"); }

Result<Table, std::string> read_table(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return cannot_be_read(path);
  if (!S_ISREG(status.st_mode)) return path + ": is not a regular file";
  if (static_cast<uint64_t>(status.st_size) > kMostTableBytes)
    return path + ": has " + std::to_string(status.st_size) + " bytes; a table has at most " +
           std::to_string(kMostTableBytes);
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return cannot_be_read(path);
  // By read(), which throws nothing, and no more than was announced: a file of /proc has no end.
  std::string text(static_cast<size_t>(status.st_size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return cannot_be_read(path);
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_table(text, path);
}

Result<std::vector<std::string>, std::string> tables_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().extension() == ".csv") paths.push_back(entry->path().string());
  if (error && error != std::errc::no_such_file_or_directory)
    return folder + ": cannot be read: " + error.message();
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool is_for(const Row& row, const Hardware& hardware) {
  const bool is_any_version = row.nccl == Range();
  return fits(row.link, hardware.link) && row.nics.has(hardware.nics) &&
         (!row.gpu || row.gpu == hardware.gpu) &&
         (is_any_version || (hardware.nccl_version != 0 && row.nccl.has(hardware.nccl_version)));
}

size_t keep_rows_for(const Hardware& hardware, Table* table) {
  const size_t others =
      std::erase_if(table->rows, [&](const Row& row) { return !is_for(row, hardware); });
  if (others != 0 && table->rows.empty()) table->constants.clear();
  return others;
}

std::string text_of(const Hardware& hardware) {
  std::string text = std::to_string(hardware.nics) + " NICs of " +
                     (hardware.link.kind == LinkKind::ethernet ? "eth" : "ib") +
                     std::to_string(hardware.link.gbit);
  text += ", " + (hardware.gpu ? std::string(name_of(*hardware.gpu)) : "a GPU that is not known");
  const uint64_t version = hardware.nccl_version;
  if (version == 0) return text + ", NCCL of a version that is not known";
  return text + ", NCCL " + std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

uint64_t fingerprint_of(const Table& table) {
  if (table.rows.empty() && table.constants.empty()) return 0;
  Fingerprint all;
  for (const Row& row : table.rows) {
    all.add(static_cast<uint64_t>(row.collective));
    add(row.bytes, &all);
    add(row.nodes, &all);
    add(row.ranks_per_node, &all);
    all.add(row.cell());
    all.add(row.channels);
    all.add(row.chunk_bytes);
    all.add((row.is_predicted ? 1 : 0) + (row.is_modelled ? 2 : 0));
    for (const double value : {row.fixed_us, row.us_per_mib, row.max_regret})
      all.add(std::bit_cast<uint64_t>(value));
  }
  for (const Constant& constant : table.constants) {
    all.add(constant.place);
    all.add(std::bit_cast<uint64_t>(constant.value));
  }
  return all.value();
}

}  // namespace noria::plugin::tuner
