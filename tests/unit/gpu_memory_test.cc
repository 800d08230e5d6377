#include "plugin/gpu_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "verbs/transport/peer_memory.hpp"

namespace noria::plugin {
namespace {

using verbs::ProviderKind;

TEST(Gpu_memory, Is_reached_by_what_device_and_kernel_can_and_the_line_says_why_not_otherwise) {
  struct Row {
    ProviderKind kind;
    const char* module;
    bool takes_dmabuf;
    bool by_descriptor, by_address;
    Flushing flushing;
    const char* text;
  };
  const char* const kNoModule =
      "no module of the kernel knows its addresses (nvidia_peermem is not loaded)";
  const std::string dmabuf_alone = std::string("by dmabuf, else through host memory: ") + kNoModule;
  const std::string none =
      std::string("through host memory: the device registers no dmabuf, and ") + kNoModule;
  const Row rows[]{
      {ProviderKind::hardware, "nvidia_peermem", true, true, true, Flushing::when_asked,
       "by dmabuf, else by address (nvidia_peermem), else through host memory"},
      {ProviderKind::hardware, "", true, true, false, Flushing::when_asked, dmabuf_alone.c_str()},
      {ProviderKind::hardware, "nv_peer_mem", false, false, true, Flushing::when_asked,
       "by address (nv_peer_mem), else through host memory: the device registers no dmabuf"},
      {ProviderKind::hardware, "", false, false, false, Flushing::never, none.c_str()},
      {ProviderKind::software, "nvidia_peermem", true, true, false, Flushing::always,
       "by dmabuf, else through host memory: the software HCA knows no addresses of a GPU"},
      {ProviderKind::software, "", false, false, false, Flushing::never,
       "through host memory: the device registers no dmabuf, and the software HCA knows no "
       "addresses of a GPU"}};
  for (const Row& row : rows) {
    const GpuMemory memory = gpu_memory_of(row.kind, row.module, row.takes_dmabuf);
    EXPECT_EQ(memory.by_descriptor, row.by_descriptor) << row.text;
    EXPECT_EQ(memory.by_address, row.by_address) << row.text;
    EXPECT_EQ(memory.text, row.text);
    EXPECT_EQ(flushing_of(memory, row.kind, false), row.flushing) << row.text;
    // Expect: whoever forbids it is obeyed.
    EXPECT_EQ(flushing_of(memory, row.kind, true), Flushing::never) << row.text;
  }
}

TEST(Gpu_memory, Is_flushed_where_bytes_arrived_in_it_and_host_memory_never) {
  struct Row {
    Flushing flushing;
    bool is_of_gpu;
    uint64_t bytes;
    bool needs_flush;
  };
  constexpr uint64_t kMost = uint64_t{1} << 30;
  // Every one there is.
  constexpr Row kRows[]{
      {Flushing::never, false, 0, false},        {Flushing::never, false, 8, false},
      {Flushing::never, true, 0, false},         {Flushing::never, true, 8, false},
      {Flushing::when_asked, false, 0, false},   {Flushing::when_asked, false, 8, false},
      {Flushing::when_asked, true, 0, false},    {Flushing::when_asked, true, 1, true},
      {Flushing::when_asked, true, kMost, true}, {Flushing::always, false, 0, false},
      {Flushing::always, false, 8, false},       {Flushing::always, true, 0, false},
      {Flushing::always, true, 1, true},         {Flushing::always, true, kMost, true}};
  for (const Row& row : kRows)
    EXPECT_EQ(needs_flush(row.flushing, row.is_of_gpu, row.bytes), row.needs_flush)
        << static_cast<int>(row.flushing) << row.is_of_gpu << row.bytes;
}

TEST(Peer_memory, Is_found_under_each_of_its_names) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "noria_peer_memory";
  EXPECT_EQ(transport::peer_memory_module(root.string()), "");
  for (const auto& [path, name] : {std::pair{"sys/kernel/mm/memory_peers/nv_mem_nc", "nv_mem_nc"},
                                   std::pair{"sys/kernel/mm/memory_peers/nv_mem", "nv_mem"},
                                   std::pair{"sys/module/nv_peer_mem", "nv_peer_mem"},
                                   std::pair{"sys/module/nvidia_peermem", "nvidia_peermem"}}) {
    fs::create_directories(root / path);
    EXPECT_EQ(transport::peer_memory_module(root.string()), name);
  }
  fs::remove_all(root);
}

}  // namespace
}  // namespace noria::plugin
