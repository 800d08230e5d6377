#include "tests/support/verbs_fixture.hpp"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>

namespace noria::test {
namespace {

template <class F>
void load(void* library, F* function, const char* name, const char* version, bool is_optional) {
  *function = reinterpret_cast<F>(dlvsym(library, name, version));
  if (*function == nullptr && !is_optional) {
    std::fprintf(stderr, "%s@%s is missing\n", name, version);
    std::exit(1);
  }
}

Verbs load_verbs() {
  const char* path = std::getenv("NORIA_IBVERBS");
  void* library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr) {
    std::fprintf(stderr, "NORIA_IBVERBS does not name a verbs library: %s\n",
                 path != nullptr ? dlerror() : "unset");
    std::exit(1);
  }
  Verbs v;
#define NORIA_TEST_VERBS_LOAD(name, version) \
  load(library, &v.name, "ibv_" #name, "IBVERBS_" version, false);
  NORIA_TEST_VERBS(NORIA_TEST_VERBS_LOAD)
#undef NORIA_TEST_VERBS_LOAD
  load(library, &v.noria_alloc, "ibv_noria_alloc", kVerbsExtensionVersion, true);
  load(library, &v.noria_free, "ibv_noria_free", kVerbsExtensionVersion, true);
  load(library, &v.noria_stats, "ibv_noria_stats", kVerbsExtensionVersion, true);
  load(library, &v.noria_describe, "ibv_noria_describe", kVerbsExtensionVersion, true);
  load(library, &v.noria_turn, "ibv_noria_turn", kVerbsExtensionVersion, true);
  return v;
}

std::vector<ibv_sge> sges_of(const std::vector<Piece>& pieces) {
  std::vector<ibv_sge> sges;
  for (const Piece& p : pieces)
    sges.push_back({p.buffer->address() + p.offset, p.bytes, p.buffer->lkey()});
  return sges;
}

}  // namespace

const Verbs& verbs() {
  static const Verbs v = load_verbs();
  return v;
}

template <>
void Closer<ibv_context>::operator()(ibv_context* c) const {
  EXPECT_EQ(verbs().close_device(c), 0);
}
template <>
void Closer<ibv_pd>::operator()(ibv_pd* pd) const {
  EXPECT_EQ(verbs().dealloc_pd(pd), 0);
}
template <>
void Closer<ibv_mr>::operator()(ibv_mr* mr) const {
  EXPECT_EQ(verbs().dereg_mr(mr), 0);
}
template <>
void Closer<ibv_cq>::operator()(ibv_cq* cq) const {
  EXPECT_EQ(verbs().destroy_cq(cq), 0);
}
template <>
void Closer<ibv_srq>::operator()(ibv_srq* srq) const {
  EXPECT_EQ(verbs().destroy_srq(srq), 0);
}
template <>
void Closer<ibv_qp>::operator()(ibv_qp* qp) const {
  EXPECT_EQ(verbs().destroy_qp(qp), 0);
}
template <>
void Closer<ibv_comp_channel>::operator()(ibv_comp_channel* channel) const {
  EXPECT_EQ(verbs().destroy_comp_channel(channel), 0);
}

Buffer::Buffer(ibv_pd* pd, size_t bytes, Memory memory, int access)
    : context_(pd->context),
      bytes_(bytes),
      memory_(verbs().noria_alloc != nullptr ? memory : Memory::plain) {
  if (memory_ == Memory::mapped) {
    data_ = static_cast<uint8_t*>(verbs().noria_alloc(context_, bytes));
  } else {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = p != MAP_FAILED ? static_cast<uint8_t*>(p) : nullptr;
  }
  EXPECT_NE(data_, nullptr) << "no memory of " << bytes << " bytes";
  mr_.reset(verbs().reg_mr(pd, data_, bytes, access));
  EXPECT_NE(mr_, nullptr) << "reg_mr: errno " << errno;
}

Buffer::~Buffer() {
  mr_.reset();
  if (memory_ == Memory::mapped)
    EXPECT_EQ(verbs().noria_free(context_, data_), 0);
  else
    EXPECT_EQ(munmap(data_, bytes_), 0);
}

int Buffer::deregister() { return verbs().dereg_mr(mr_.release()); }

Hca::Hca(int device) {
  int count = 0;
  ibv_device** list = verbs().get_device_list(&count);
  if (list == nullptr || count <= device) {
    std::fprintf(stderr, "the library shows %d devices: no device %d\n", count, device);
    std::exit(1);
  }
  context_.reset(verbs().open_device(list[device]));
  verbs().free_device_list(list);
  EXPECT_NE(context_, nullptr) << "open_device: errno " << errno;
  pd_.reset(verbs().alloc_pd(context_.get()));
  EXPECT_NE(pd_, nullptr);
}

Owned<ibv_cq> Hca::make_cq(int depth, ibv_comp_channel* channel) const {
  Owned<ibv_cq> cq(verbs().create_cq(context_.get(), depth, nullptr, channel, 0));
  EXPECT_NE(cq, nullptr) << "create_cq: errno " << errno;
  return cq;
}

Owned<ibv_comp_channel> Hca::make_channel() const {
  Owned<ibv_comp_channel> channel(verbs().create_comp_channel(context_.get()));
  EXPECT_NE(channel, nullptr);
  return channel;
}

Owned<ibv_qp> Hca::make_qp(ibv_cq* send, ibv_cq* recv, const QpSpec& spec) const {
  ibv_qp_init_attr attr{.send_cq = send,
                        .recv_cq = recv,
                        .srq = spec.srq,
                        .cap = {.max_send_wr = spec.send_depth,
                                .max_recv_wr = spec.recv_depth,
                                .max_send_sge = spec.sges,
                                .max_recv_sge = spec.sges,
                                .max_inline_data = spec.inline_bytes},
                        .qp_type = IBV_QPT_RC,
                        .sq_sig_all = spec.signal_all ? 1 : 0};
  Owned<ibv_qp> qp(verbs().create_qp(pd_.get(), &attr));
  EXPECT_NE(qp, nullptr) << "create_qp: errno " << errno;
  return qp;
}

Owned<ibv_srq> Hca::make_srq(uint32_t max_wr) const {
  ibv_srq_init_attr attr{.attr = {.max_wr = max_wr, .max_sge = 4}};
  Owned<ibv_srq> srq(verbs().create_srq(pd_.get(), &attr));
  EXPECT_NE(srq, nullptr) << "create_srq: errno " << errno;
  return srq;
}

std::unique_ptr<Buffer> Hca::make_buffer(size_t bytes, Memory memory, int access) const {
  return std::make_unique<Buffer>(pd_.get(), bytes, memory, access);
}

Address Hca::address_of(ibv_qp* qp) const {
  Address address{.qpn = qp->qp_num, .psn = (qp->qp_num * 7 + 3) & 0xffffff, .lid = 0, .gid = {}};
  ibv_port_attr port{};
  const verbs_context* ops = verbs_get_ctx(context_.get());
  EXPECT_NE(ops, nullptr);
  EXPECT_NE(ops->query_port, nullptr);
  EXPECT_EQ(ops->query_port(context_.get(), 1, &port, sizeof port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  address.lid = port.lid;
  EXPECT_EQ(verbs().query_gid(context_.get(), 1, 0, &address.gid), 0);
  return address;
}

void Hca::connect(ibv_qp* qp, const Address& remote, const ConnectSpec& spec) const {
  ASSERT_EQ(to_init(qp, spec.access), 0);
  ASSERT_EQ(to_rtr(qp, remote, spec), 0);
  ASSERT_EQ(to_rts(qp, address_of(qp).psn, spec), 0);
}

int to_init(ibv_qp* qp, int access) {
  ibv_qp_attr attr{.qp_state = IBV_QPS_INIT,
                   .qp_access_flags = static_cast<unsigned>(access),
                   .pkey_index = 0,
                   .port_num = 1};
  return verbs().modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_rtr(ibv_qp* qp, const Address& remote, const ConnectSpec& spec) {
  ibv_qp_attr attr{.qp_state = IBV_QPS_RTR,
                   .path_mtu = spec.mtu,
                   .rq_psn = remote.psn,
                   .dest_qp_num = remote.qpn,
                   .ah_attr = {.grh = {.dgid = remote.gid, .sgid_index = 0, .hop_limit = 64},
                               .dlid = remote.lid,
                               .is_global = 1,
                               .port_num = 1},
                   .max_dest_rd_atomic = spec.reads_in_flight,
                   .min_rnr_timer = spec.rnr_timer};
  return verbs().modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_rts(ibv_qp* qp, uint32_t psn, const ConnectSpec& spec) {
  ibv_qp_attr attr{.qp_state = IBV_QPS_RTS,
                   .sq_psn = psn,
                   .max_rd_atomic = spec.reads_in_flight,
                   .timeout = spec.ack_timeout,
                   .retry_cnt = spec.retry_count,
                   .rnr_retry = spec.rnr_retry};
  return verbs().modify_qp(qp, &attr,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int to_state(ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attr{.qp_state = state};
  return verbs().modify_qp(qp, &attr, IBV_QP_STATE);
}

namespace {
// Without its pieces.
ibv_send_wr request_of(const SendSpec& spec) {
  ibv_send_wr wr{.wr_id = spec.id,
                 .opcode = spec.opcode,
                 .send_flags = spec.flags,
                 .imm_data = htobe32(spec.imm)};
  wr.wr.rdma.remote_addr = spec.remote.address;
  wr.wr.rdma.rkey = spec.remote.rkey;
  if (spec.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || spec.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    wr.wr.atomic = {spec.remote.address, spec.compare_add, spec.swap, spec.remote.rkey};
  return wr;
}
}  // namespace

int post(ibv_qp* qp, const SendSpec& spec) { return post_list(qp, {spec}); }

int post_list(ibv_qp* qp, const std::vector<SendSpec>& specs) {
  std::vector<std::vector<ibv_sge>> sges;
  std::vector<ibv_send_wr> wrs;
  for (const SendSpec& spec : specs) {
    sges.push_back(sges_of(spec.pieces));
    wrs.push_back(request_of(spec));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    wrs[i].sg_list = sges[i].data();
    wrs[i].num_sge = static_cast<int>(sges[i].size());
    wrs[i].next = i + 1 < specs.size() ? &wrs[i + 1] : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp, wrs.data(), &bad);
}

namespace {
template <class Queue>
int post_recv_by(int (*call)(Queue*, ibv_recv_wr*, ibv_recv_wr**), Queue* queue, uint64_t id,
                 const std::vector<Piece>& pieces) {
  std::vector<ibv_sge> sges = sges_of(pieces);
  ibv_recv_wr wr{.wr_id = id,
                 .next = nullptr,
                 .sg_list = sges.data(),
                 .num_sge = static_cast<int>(sges.size())};
  ibv_recv_wr* bad = nullptr;
  return call(queue, &wr, &bad);
}
}  // namespace

int post_recv(ibv_qp* qp, uint64_t id, const std::vector<Piece>& pieces) {
  return post_recv_by(&ibv_post_recv, qp, id, pieces);
}

int post_recv(ibv_srq* srq, uint64_t id, const std::vector<Piece>& pieces) {
  return post_recv_by(&ibv_post_srq_recv, srq, id, pieces);
}

ibv_async_event next_event(const Hca& hca) {
  pollfd p{.fd = hca.context()->async_fd, .events = POLLIN, .revents = 0};
  ibv_async_event event{};
  event.event_type = IBV_EVENT_CLIENT_REREGISTER;
  EXPECT_EQ(::poll(&p, 1, 20000), 1) << "no event came";
  if ((p.revents & POLLIN) == 0) return event;
  EXPECT_EQ(verbs().get_async_event(hca.context(), &event), 0);
  verbs().ack_async_event(&event);
  return event;
}

bool wait_step(Nanoseconds deadline, uint64_t turn) {
  // Two tests on two cores: whoever waits must let the other run.
  if (turn % 64 == 63) sched_yield();
  return turn % 1024 != 1023 || now_ns() < deadline;
}

ibv_wc wait_completion(ibv_cq* cq, Nanoseconds limit) {
  ibv_wc wc{};
  const Nanoseconds deadline = now_ns() + limit;
  for (uint64_t turn = 0;; ++turn) {
    const int n = ibv_poll_cq(cq, 1, &wc);
    if (n == 1) return wc;
    if (n < 0 || !wait_step(deadline, turn)) {
      ADD_FAILURE() << (n < 0 ? "poll_cq failed" : "no completion came in time");
      wc.status = IBV_WC_GENERAL_ERR;
      return wc;
    }
  }
}

ibv_wc expect_completion(ibv_cq* cq, uint64_t id, ibv_wc_status status) {
  const ibv_wc wc = wait_completion(cq);
  EXPECT_EQ(wc.wr_id, id);
  EXPECT_EQ(wc.status, status) << "of request " << id;
  return wc;
}

bool is_empty(ibv_cq* cq) {
  ibv_wc wc{};
  return ibv_poll_cq(cq, 1, &wc) == 0;
}

}  // namespace noria::test
