#include "verbs/soft/device_tree.hpp"

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "verbs/soft/address.hpp"
#include "verbs/soft/segment.hpp"

namespace noria::soft {
namespace {

constexpr const char* kTreeVersion = "1";  // part of the name: another layout is another tree

// Makes folders, files and links, and remembers the first failure.
class Builder {
 public:
  void folder(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail(path);
  }
  void folders(const std::string& root, const std::string& below) {
    for (size_t at = below.find('/'); at != std::string::npos; at = below.find('/', at + 1))
      folder(root + below.substr(0, at));
    folder(root + below);
  }
  void file(const std::string& path, const std::string& line) {
    const std::string text = line + "\n";
    struct stat now {};
    if (::stat(path.c_str(), &now) == 0 && now.st_size == static_cast<off_t>(text.size())) return;
    const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.is_open() ||
        ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      fail(path);
  }
  void link(const std::string& path, const std::string& target) {
    if (::symlink(target.c_str(), path.c_str()) != 0 && errno != EEXIST) fail(path);
  }
  const std::string& failure() const { return failure_; }

 private:
  void fail(const std::string& path) {
    if (failure_.empty()) failure_ = path + ": " + std::strerror(errno);
  }
  std::string failure_;
};

std::string hex(const char* form, uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, form, static_cast<unsigned long long>(number));
  return text;
}

// Eight bytes in network order, as sysfs writes them: 0102:0304:0506:0708.
std::string bytes_text(const uint8_t* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; i += 2) {
    char part[8];
    std::snprintf(part, sizeof part, "%02x%02x", bytes[i], bytes[i + 1]);
    text += (text.empty() ? "" : ":") + std::string(part);
  }
  return text;
}

std::string host_of(const SoftDevice& device) { return device.host.empty() ? "0" : device.host; }

// The folder of the adapter below its host.
std::string adapter_of(const SoftDevice& device) {
  if (device.pci.empty()) return "devices/virtual/" + device.name;
  return "devices/pci" + device.pci.substr(0, 7) + "/" + device.pci;
}

void make_device(Builder& make, const std::string& host, const SoftDevice& device) {
  const std::string adapter = adapter_of(device);
  const std::string own = adapter + "/infiniband/" + device.name;
  make.folders(host, own + "/ports/1/gids");
  make.folders(host, own + "/ports/1/gid_attrs/types");
  make.folders(host, "class/infiniband");
  make.link(host + "class/infiniband/" + device.name, "../../" + own);
  make.link(host + own + "/device", "../..");

  const std::string folder = host + own + "/";
  const SharedAddress address = address_of(device);
  make.file(host + adapter + "/class", device.is_infiniband ? "0x020700" : "0x020000");
  make.file(host + adapter + "/vendor", "0x0000");
  make.file(host + adapter + "/device", "0x0000");
  make.file(host + adapter + "/numa_node", std::to_string(device.numa));
  make.file(folder + "node_type", "1: CA");
  make.file(folder + "node_guid", bytes_text(address.gid + 8, 8));
  make.file(folder + "sys_image_guid", bytes_text(address.gid + 8, 8));
  make.file(folder + "fw_ver", "noria-soft");

  const std::string port = folder + "ports/1/";
  make.file(port + "state", "4: ACTIVE");
  make.file(port + "phys_state", "5: LinkUp");
  make.file(port + "lid", hex("0x%llx", address.lid));
  make.file(port + "rate", detail::number_text(device.rate_gbit) + " Gb/sec (" +
                               std::to_string(device.width) + "X)");
  make.file(port + "link_layer", device.is_infiniband ? "InfiniBand" : "Ethernet");
  make.file(port + "gids/0", bytes_text(address.gid, sizeof address.gid));
  make.file(port + "gid_attrs/types/0", device.is_infiniband ? "IB/RoCE v1" : "RoCE v2");
}

// A folder of ours that nobody else may enter; the failure says what stands in the way.
std::string claim_root(const std::string& root) {
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST)
    return root + ": " + std::strerror(errno);
  struct stat found {};
  if (::lstat(root.c_str(), &found) != 0) return root + ": " + std::strerror(errno);
  if (!S_ISDIR(found.st_mode) || found.st_uid != ::geteuid() || (found.st_mode & 0077) != 0)
    return root + " is not a folder of this user's alone (mode 0700); remove it";
  return "";
}

std::string description_of(const std::vector<SoftDevice>& devices) {
  std::string text = kTreeVersion;
  for (const SoftDevice& d : devices)
    text += ";" + d.name + "," + d.host + "," + d.pci + "," + std::to_string(d.numa) + "," +
            detail::number_text(d.rate_gbit) + "," + std::to_string(d.width) +
            (d.is_infiniband ? ",ib" : ",eth");
  return hex("%016llx", hash_of(text));
}

}  // namespace

Result<std::vector<std::string>, std::string> make_device_tree(
    const std::vector<SoftDevice>& devices, const std::string& runtime_dir) {
  using Made = Result<std::vector<std::string>, std::string>;
  struct stat folder {};
  const bool is_there = ::stat(runtime_dir.c_str(), &folder) == 0 && S_ISDIR(folder.st_mode);
  const std::string base = runtime_dir.starts_with('/') && is_there ? runtime_dir : "/tmp";
  const std::string root = base + "/noria-soft-" + std::to_string(::geteuid());
  if (std::string failure = claim_root(root); !failure.empty()) return Made(std::move(failure));
  const std::string tree = root + "/" + description_of(devices) + "/";
  Builder make;
  make.folder(tree);
  std::vector<std::string> paths;
  for (const SoftDevice& device : devices) {
    const std::string host = tree + host_of(device) + "/";
    make.folder(host);
    make_device(make, host, device);
    paths.push_back(host + "class/infiniband/" + device.name);
    if (paths.back().size() >= IBV_SYSFS_PATH_MAX)
      return Made(paths.back() + " is too long for a verbs device; XDG_RUNTIME_DIR may be shorter");
  }
  if (!make.failure().empty()) return Made(make.failure());
  return paths;
}

}  // namespace noria::soft
