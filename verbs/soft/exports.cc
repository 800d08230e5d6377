// The functions that applications call by name. Thin: checks of arguments, then the objects.
#include <errno.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/log.hpp"
#include "base/units.hpp"
#include "verbs/soft/device.hpp"
#include "verbs/soft/export.hpp"
#include "verbs/soft/fence.hpp"
#include "verbs/soft/own_pages.hpp"
#include "verbs/soft/set_up_qp.hpp"
#include "verbs/soft/shared_receives.hpp"

// The header turns these names into inline functions.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

using noria::LogLevel;
using noria::VerbsStats;
using noria::soft::Allocation;
using noria::soft::Channel;
using noria::soft::Cq;
using noria::soft::Engine;
using noria::soft::LinkKind;
using noria::soft::LinkMessage;
using noria::soft::Mr;
using noria::soft::Pd;
using noria::soft::Qp;
using noria::soft::SpinGuard;
using noria::soft::Srq;
namespace soft = noria::soft;

// ---- devices ------------------------------------------------------------------------------------

NORIA_EXPORT ibv_device** ibv_get_device_list(int* count) { return soft::list_devices(count); }
NORIA_EXPORT void ibv_free_device_list(ibv_device** list) { soft::free_device_list(list); }
NORIA_EXPORT const char* ibv_get_device_name(ibv_device* device) { return device->name; }
NORIA_EXPORT int ibv_get_device_index(ibv_device*) { return -1; }
NORIA_EXPORT __be64 ibv_get_device_guid(ibv_device* device) { return soft::device_guid(device); }
NORIA_EXPORT ibv_context* ibv_open_device(ibv_device* device) { return soft::open_device(device); }
NORIA_EXPORT int ibv_close_device(ibv_context* context) { return soft::close_device(context); }

NORIA_EXPORT int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  *attr = soft::device_attributes(context);
  return 0;
}

// Callers of this symbol have the structure without its last member.
NORIA_EXPORT int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* out) {
  if (port != 1) return EINVAL;
  const ibv_port_attr attr = soft::port_attributes(context);
  std::memcpy(static_cast<void*>(out), &attr, offsetof(ibv_port_attr, port_cap_flags2));
  return 0;
}

NORIA_EXPORT int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *gid = soft::port_gid(context);
  return 0;
}

NORIA_EXPORT int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index,
                                   ibv_gid_entry* entry, uint32_t flags, size_t bytes) {
  if (port != 1 || index != 0 || flags != 0 || bytes < sizeof *entry) return EINVAL;
  *entry = ibv_gid_entry{};
  entry->gid = soft::port_gid(context);
  entry->port_num = port;
  entry->gid_type = soft::gid_type(context);
  return 0;
}

NORIA_EXPORT ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t room,
                                          uint32_t flags, size_t bytes) {
  if (room < 1) return -EINVAL;
  const int failure = _ibv_query_gid_ex(context, 1, 0, entries, flags, bytes);
  return failure == 0 ? 1 : -failure;
}

// Not in <infiniband/verbs.h>. 0: InfiniBand or RoCE v1, 1: RoCE v2.
extern "C" int ibv_query_gid_type(ibv_context*, uint8_t port, unsigned index, int* type);
NORIA_EXPORT int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, int* type) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *type = soft::gid_type(context) == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

NORIA_EXPORT int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;  // the default partition
  return 0;
}

NORIA_EXPORT int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
  return port == 1 && pkey == 0xffff ? 0 : -1;
}

NORIA_EXPORT int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (soft::engine_of(context) == nullptr) return -1;
  return soft::take_async_event(context, event);
}
NORIA_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  soft::acknowledge_async_event(*event);
}

NORIA_EXPORT int ibv_fork_init(void) { return 0; }
NORIA_EXPORT ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

// ---- protection domains and memory --------------------------------------------------------------

NORIA_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Engine* engine = soft::engine_for(context, "alloc_pd");
  if (engine == nullptr) return nullptr;
  auto pd = std::make_unique<Pd>();
  pd->context = context;
  pd->number = pd->handle = engine->next_pd_number(soft::context_of(context).device);
  return pd.release();
}

NORIA_EXPORT int ibv_dealloc_pd(ibv_pd* base) {
  auto* pd = static_cast<Pd*>(base);
  if (soft::engine_of(pd->context) == nullptr) return ENODEV;
  if (pd->users.load(std::memory_order_relaxed) != 0) return EBUSY;
  delete pd;
  return 0;
}

namespace {

// What a region may be made of. `mapping` is ours to unmap with the region.
struct Memory {
  void* start;  // where it is
  void* name;   // ibv_mr::addr
  size_t length;
  uint64_t iova;
  soft::Mapping<void> mapping{};
};

ibv_mr* register_memory(ibv_pd* base, Memory memory, unsigned access) {
  auto* pd = static_cast<Pd*>(base);
  Engine* engine = soft::engine_for(pd->context, "reg_mr");
  if (engine == nullptr) return nullptr;
  access &= ~unsigned{IBV_ACCESS_OPTIONAL_RANGE};
  constexpr unsigned kWritten = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | kWritten;
  const auto start = reinterpret_cast<uint64_t>(memory.start);
  if ((access & ~kKnown) != 0 || start + memory.length < start ||
      ((access & kWritten) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    errno = (access & ~kKnown) != 0 ? EOPNOTSUPP : EINVAL;
    return nullptr;
  }
  if (!soft::has_pages(start, memory.length, (access & IBV_ACCESS_LOCAL_WRITE) != 0)) {
    errno = EFAULT;
    return nullptr;
  }
  const bool is_posted = engine->places_late() && memory.mapping != nullptr;
  const auto key =
      engine->memory().add({pd->number, start, memory.length, memory.iova, access, is_posted});
  if (!key) {
    errno = ENOMEM;
    return nullptr;
  }
  auto mr = std::make_unique<Mr>();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = memory.name;
  mr->length = memory.length;
  mr->handle = mr->lkey = mr->rkey = *key;
  mr->mapping = std::move(memory.mapping);
  pd->users.fetch_add(1, std::memory_order_relaxed);
  return mr.release();
}

}  // namespace

NORIA_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_memory(pd, {address, address, length, reinterpret_cast<uint64_t>(address)},
                         static_cast<unsigned>(access));
}
NORIA_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                     int access) {
  return register_memory(pd, {address, address, length, iova}, static_cast<unsigned>(access));
}
NORIA_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                      unsigned access) {
  return register_memory(pd, {address, address, length, iova}, access);
}

// A file in memory stands for what a GPU would export. It is mapped while the region lives.
NORIA_EXPORT ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova,
                                       int fd, int access) {
  const off_t end = ::lseek(fd, 0, SEEK_END);
  if (end < 0) return nullptr;  // errno says why
  const auto size = static_cast<uint64_t>(end);
  if (length == 0 || offset > size || length > size - offset) {
    errno = EINVAL;
    return nullptr;
  }
  const uint64_t lead = offset % 4096;
  const int protection =
      (access & IBV_ACCESS_LOCAL_WRITE) != 0 ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base =
      ::mmap(nullptr, lead + length, protection, MAP_SHARED, fd, static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) return nullptr;
  ::madvise(base, lead + length, MADV_DONTFORK);
  return register_memory(pd,
                         {static_cast<uint8_t*>(base) + lead, reinterpret_cast<void*>(offset),
                          length, iova, soft::Mapping<void>(base, soft::Unmapper{lead + length})},
                         static_cast<unsigned>(access));
}

NORIA_EXPORT int ibv_dereg_mr(ibv_mr* base) {
  auto* mr = static_cast<Mr*>(base);
  Engine* engine = soft::engine_of(mr->context);
  if (engine == nullptr) return ENODEV;
  engine->memory().revoke(mr->lkey);
  if (!soft::fence_key(*engine, mr->lkey)) {
    noria::log(LogLevel::error, "mr 0x%x: a stopped peer is in the middle of a transfer; try again",
               mr->lkey);
    return EBUSY;
  }
  engine->posted_writes().publish(soft::context_of(mr->context).device);
  engine->memory().recycle(mr->lkey);
  static_cast<Pd*>(mr->pd)->users.fetch_sub(1, std::memory_order_relaxed);
  delete mr;
  return 0;
}

// ---- completion queues --------------------------------------------------------------------------

NORIA_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  Engine* engine = soft::engine_for(context, "create_comp_channel");
  if (engine == nullptr) return nullptr;
  Channel* channel = engine->add_channel();
  if (channel == nullptr) return nullptr;  // errno says why
  channel->context = context;
  return channel;
}

NORIA_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<Channel*>(base);
  Engine* engine = soft::engine_of(channel->context);
  if (engine == nullptr) return ENODEV;
  if (channel->refcnt != 0) return EBUSY;
  engine->remove_channel(channel);
  return 0;
}

NORIA_EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                                   ibv_comp_channel* channel, int vector) {
  Engine* engine = soft::engine_for(context, "create_cq");
  if (engine == nullptr) return nullptr;
  if (entries < 1 || entries > soft::kMaxCqe || vector < 0 || vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return nullptr;
  }
  Cq* cq =
      engine->add_cq(std::bit_ceil(static_cast<uint32_t>(entries)), static_cast<Channel*>(channel));
  if (cq == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  cq->context = context;
  cq->cq_context = cq_context;
  if (channel != nullptr) ++channel->refcnt;
  return cq;
}

NORIA_EXPORT int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }

NORIA_EXPORT int ibv_destroy_cq(ibv_cq* base) {
  auto* cq = static_cast<Cq*>(base);
  Engine* engine = soft::engine_of(cq->context);
  if (engine == nullptr) return ENODEV;
  {
    SpinGuard guard(cq->list);
    if (!cq->senders.empty() || !cq->receivers.empty()) return EBUSY;
  }
  if (!soft::wait_acknowledged(*cq)) {
    noria::log(LogLevel::error, "cq %u: an event was taken and not acknowledged", cq->index);
    return EBUSY;
  }
  if (!soft::end_events(cq->context, cq)) return EBUSY;
  if (cq->channel != nullptr) --cq->channel->refcnt;
  engine->remove_cq(cq);
  return 0;
}

NORIA_EXPORT int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  if (soft::engine_of(channel->context) == nullptr) return -1;
  return soft::get_cq_event(*static_cast<Channel*>(channel), cq, cq_context);
}

NORIA_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  soft::acknowledge_events(*static_cast<Cq*>(cq), count);
}

// ---- shared receive queues ----------------------------------------------------------------------

NORIA_EXPORT ibv_srq* ibv_create_srq(ibv_pd* base, ibv_srq_init_attr* init) {
  auto* pd = static_cast<Pd*>(base);
  if (soft::engine_for(pd->context, "create_srq") == nullptr) return nullptr;
  if (init->attr.max_wr > soft::kMaxQueueDepth || init->attr.max_sge > soft::kMaxSge) {
    errno = EINVAL;
    return nullptr;
  }
  auto srq = std::make_unique<Srq>(pd, *init);
  soft::query_srq(*srq, &init->attr);
  pd->users.fetch_add(1, std::memory_order_relaxed);
  return srq.release();
}

NORIA_EXPORT int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  if (soft::engine_of(srq->context) == nullptr) return ENODEV;
  return soft::modify_srq(*static_cast<Srq*>(srq), *attr, mask);
}

NORIA_EXPORT int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  if (soft::engine_of(srq->context) == nullptr) return ENODEV;
  soft::query_srq(*static_cast<Srq*>(srq), attr);
  return 0;
}

NORIA_EXPORT int ibv_destroy_srq(ibv_srq* base) {
  auto* srq = static_cast<Srq*>(base);
  if (soft::engine_of(srq->context) == nullptr) return ENODEV;
  {
    noria::MutexLock users(srq->users);
    if (!srq->qps.empty()) return EBUSY;
  }
  if (!soft::end_events(srq->context, srq)) return EBUSY;
  static_cast<Pd*>(srq->pd)->users.fetch_sub(1, std::memory_order_relaxed);
  delete srq;
  return 0;
}

// ---- queue pairs --------------------------------------------------------------------------------

NORIA_EXPORT ibv_qp* ibv_create_qp(ibv_pd* base, ibv_qp_init_attr* init) {
  auto* pd = static_cast<Pd*>(base);
  Engine* engine = soft::engine_for(pd->context, "create_qp");
  if (engine == nullptr) return nullptr;
  const auto is_ours = [pd](const ibv_cq* cq) {
    return cq == nullptr || cq->context->device == pd->context->device;
  };
  if (!is_ours(init->send_cq) || !is_ours(init->recv_cq)) {
    errno = EINVAL;
    return nullptr;
  }
  Qp* qp = soft::create_qp(*engine, pd, pd->number, init);
  if (qp != nullptr) pd->users.fetch_add(1, std::memory_order_relaxed);
  return qp;
}

NORIA_EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  if (soft::engine_for(qp->context, "modify_qp") == nullptr) return errno;
  return soft::modify_qp(*static_cast<Qp*>(qp), *attr, mask);
}

NORIA_EXPORT int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  if (soft::engine_of(qp->context) == nullptr) return ENODEV;
  soft::query_qp(*static_cast<Qp*>(qp), attr, init);
  qp->state = attr->qp_state;
  return 0;
}

NORIA_EXPORT int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  if (soft::engine_of(qp->context) == nullptr) return ENODEV;
  return soft::set_ece(*static_cast<Qp*>(qp), *ece);
}

NORIA_EXPORT int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  if (soft::engine_of(qp->context) == nullptr) return ENODEV;
  return soft::query_ece(*static_cast<Qp*>(qp), ece);
}

NORIA_EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  if (soft::engine_of(qp->context) == nullptr) return ENODEV;
  auto* pd = static_cast<Pd*>(qp->pd);
  const int failure = soft::destroy_qp(*static_cast<Qp*>(qp));
  if (failure == 0) pd->users.fetch_sub(1, std::memory_order_relaxed);
  return failure;
}

NORIA_EXPORT int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

// ---- noria's own --------------------------------------------------------------------------------

NORIA_EXPORT uint64_t ibv_noria_features(ibv_context*) {
  return noria::kReadsAreCheap | noria::kTearsLines;
}

NORIA_EXPORT void* ibv_noria_alloc(ibv_context* context, size_t bytes) {
  Engine* engine = soft::engine_of(context);
  if (engine == nullptr) return nullptr;
  const Allocation* allocation = engine->memory().allocate(bytes);
  if (allocation == nullptr) return nullptr;  // errno says why
  void* base = allocation->base.get();
  engine->neighbours().announce(
      LinkMessage{.kind = LinkKind::memory, .id = allocation->id, .bytes = allocation->bytes},
      allocation->fd.get());
  return base;
}

NORIA_EXPORT int ibv_noria_free(ibv_context* context, void* base) {
  Engine* engine = soft::engine_of(context);
  if (engine == nullptr) return ENODEV;
  if (base == nullptr) return 0;
  Allocation allocation;
  if (const int failure = engine->memory().take(base, &allocation); failure != 0) return failure;
  engine->neighbours().announce(LinkMessage{.kind = LinkKind::memory_gone, .id = allocation.id},
                                -1);
  return 0;
}

NORIA_EXPORT int ibv_noria_stats(ibv_context* context, VerbsStats* out) {
  Engine* engine = soft::engine_of(context);
  if (engine == nullptr) return ENODEV;
  if (out->struct_size < sizeof *out) return EINVAL;
  const VerbsStats now = soft::port_stats(*engine, soft::context_of(context).device);
  const VerbsStats& before = soft::context_of(context).opened_at;
  out->sent_bytes = now.sent_bytes - before.sent_bytes;
  out->received_bytes = now.received_bytes - before.received_bytes;
  out->sent_messages = now.sent_messages - before.sent_messages;
  out->received_messages = now.received_messages - before.received_messages;
  return 0;
}

NORIA_EXPORT int64_t ibv_noria_turn(int64_t now) { return soft::take_turn(now); }

NORIA_EXPORT int ibv_noria_describe(ibv_context* context, char* text, size_t capacity) {
  const soft::Engine* engine = soft::engine_of(context);
  if (engine == nullptr) return ENODEV;
  std::snprintf(text, capacity, "software HCA, %s", engine->copy_path());
  return 0;
}
