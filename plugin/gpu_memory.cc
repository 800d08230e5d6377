#include "plugin/gpu_memory.hpp"

namespace noria::plugin {

GpuMemory gpu_memory_of(verbs::ProviderKind kind, const std::string& module, bool takes_dmabuf) {
  // It copies with the processor, which reaches what a descriptor maps and no GPU's own addresses.
  const bool is_software = kind == verbs::ProviderKind::software;
  GpuMemory memory{.by_descriptor = takes_dmabuf, .by_address = !module.empty() && !is_software};
  const std::string no_address =
      is_software ? "the software HCA knows no addresses of a GPU"
                  : "no module of the kernel knows its addresses (nvidia_peermem is not loaded)";
  const std::string no_descriptor = "the device registers no dmabuf";
  std::string way;
  std::string reason;
  if (memory.by_descriptor)
    way = "by dmabuf, else ";
  else
    reason = no_descriptor;
  if (memory.by_address)
    way += "by address (" + module + "), else ";
  else
    reason += (reason.empty() ? "" : ", and ") + no_address;
  memory.text = way + "through host memory" + (reason.empty() ? "" : ": " + reason);
  return memory;
}

Flushing flushing_of(const GpuMemory& memory, verbs::ProviderKind kind, bool is_disabled) {
  if (is_disabled || !(memory.by_descriptor || memory.by_address)) return Flushing::never;
  // It may keep back what arrives by descriptor, whatever GPU stands behind it.
  return kind == verbs::ProviderKind::software ? Flushing::always : Flushing::when_asked;
}

}  // namespace noria::plugin
