// Verbs as a test sees them: a library loaded by name, and handles that expect every close to
// succeed.
//
// The library is the one NORIA_IBVERBS names: the software HCA's, or libibverbs.so.1 of a machine
// that has a device. It is loaded with dlopen and dlvsym, as noria and NCCL do, never linked.
// Everything here runs in the children of a Crew.
//
// Threads: one at a time, but for verbs() after its first call.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/verbs_extensions.hpp"
#include "tests/support/crew.hpp"
#include "tests/support/pattern.hpp"

namespace noria::test {

// The library's functions, under their names without the prefix.
struct Verbs {
#define NORIA_TEST_VERBS(X)      \
  X(get_device_list, "1.1")      \
  X(free_device_list, "1.1")     \
  X(open_device, "1.1")          \
  X(close_device, "1.1")         \
  X(query_device, "1.1")         \
  X(query_gid, "1.1")            \
  X(get_async_event, "1.1")      \
  X(ack_async_event, "1.1")      \
  X(alloc_pd, "1.1")             \
  X(dealloc_pd, "1.1")           \
  X(reg_mr, "1.1")               \
  X(reg_dmabuf_mr, "1.12")       \
  X(dereg_mr, "1.1")             \
  X(create_comp_channel, "1.0")  \
  X(destroy_comp_channel, "1.0") \
  X(create_cq, "1.1")            \
  X(destroy_cq, "1.1")           \
  X(get_cq_event, "1.1")         \
  X(ack_cq_events, "1.1")        \
  X(create_srq, "1.1")           \
  X(modify_srq, "1.1")           \
  X(query_srq, "1.1")            \
  X(destroy_srq, "1.1")          \
  X(create_qp, "1.1")            \
  X(query_qp, "1.1")             \
  X(modify_qp, "1.1")            \
  X(query_ece, "1.10")           \
  X(set_ece, "1.10")             \
  X(destroy_qp, "1.1")
#define NORIA_TEST_VERBS_MEMBER(name, version) decltype(&::ibv_##name) name = nullptr;
  NORIA_TEST_VERBS(NORIA_TEST_VERBS_MEMBER)
#undef NORIA_TEST_VERBS_MEMBER
  // The software HCA's own; null with another library. Only tests named soft_ call them.
  IbvNoriaAlloc noria_alloc = nullptr;
  IbvNoriaFree noria_free = nullptr;
  IbvNoriaStats noria_stats = nullptr;
  IbvNoriaDescribe noria_describe = nullptr;
  IbvNoriaTurn noria_turn = nullptr;
};
const Verbs& verbs();

// Handles whose destruction is expected to succeed.
template <class T>
struct Closer {
  void operator()(T* object) const;
};
template <class T>
using Owned = std::unique_ptr<T, Closer<T>>;

// The process's own, or of the library's own allocator where it has one: what peers map.
enum class Memory { plain, mapped };

// Zeroed memory, registered.
class Buffer {
 public:
  Buffer(ibv_pd* pd, size_t bytes, Memory memory, int access);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  ibv_mr* mr() const { return mr_.get(); }
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }
  // Deregisters and returns what dereg_mr answered.
  int deregister();

 private:
  ibv_context* context_;
  uint8_t* data_ = nullptr;
  size_t bytes_;
  Memory memory_;
  Owned<ibv_mr> mr_;
};

constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// What one side must know of the other to connect.
struct Address {
  uint32_t qpn, psn;
  uint16_t lid;
  ibv_gid gid;
};
struct Region {
  uint64_t address;
  uint32_t rkey;
};

struct ConnectSpec {
  uint8_t ack_timeout = 14;  // 4.096 us * 2^n
  uint8_t retry_count = 7;
  uint8_t rnr_retry = 7;  // for ever
  uint8_t rnr_timer = 1;  // 10 us
  uint8_t reads_in_flight = 16;
  ibv_mtu mtu = IBV_MTU_4096;
  int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
};

struct QpSpec {
  uint32_t send_depth = 64;
  uint32_t recv_depth = 64;
  uint32_t sges = 4;
  uint32_t inline_bytes = 64;
  bool signal_all = false;
  ibv_srq* srq = nullptr;
};

// An open device with one protection domain.
class Hca {
 public:
  explicit Hca(int device = 0);  // as the library lists them

  ibv_context* context() const { return context_.get(); }
  ibv_pd* pd() const { return pd_.get(); }
  Owned<ibv_cq> make_cq(int depth = 1024, ibv_comp_channel* channel = nullptr) const;
  Owned<ibv_comp_channel> make_channel() const;
  Owned<ibv_qp> make_qp(ibv_cq* send, ibv_cq* recv, const QpSpec& spec = {}) const;
  Owned<ibv_qp> make_qp(ibv_cq* cq, const QpSpec& spec = {}) const { return make_qp(cq, cq, spec); }
  Owned<ibv_srq> make_srq(uint32_t max_wr) const;
  std::unique_ptr<Buffer> make_buffer(size_t bytes, Memory memory = Memory::plain,
                                      int access = kAllAccess) const;

  Address address_of(ibv_qp* qp) const;
  void connect(ibv_qp* qp, const Address& remote, const ConnectSpec& spec = {}) const;
  void connect(ibv_qp* qp, Wire& wire, const ConnectSpec& spec = {}) const {
    connect(qp, wire.exchange(address_of(qp)), spec);
    wire.meet();  // both are ready to receive
  }

 private:
  Owned<ibv_context> context_;
  Owned<ibv_pd> pd_;
};

int to_init(ibv_qp* qp, int access);
int to_rtr(ibv_qp* qp, const Address& remote, const ConnectSpec& spec);
int to_rts(ibv_qp* qp, uint32_t psn, const ConnectSpec& spec);
int to_state(ibv_qp* qp, ibv_qp_state state);

// A work request's pieces with room for its scatter list.
struct Piece {
  const Buffer* buffer;
  uint64_t offset;
  uint32_t bytes;
};
struct SendSpec {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  uint64_t id = 0;
  std::vector<Piece> pieces{};
  Region remote{};
  unsigned flags = IBV_SEND_SIGNALED;
  uint32_t imm = 0;                    // host order
  uint64_t compare_add = 0, swap = 0;  // of an atomic
};
int post(ibv_qp* qp, const SendSpec& spec);
int post_list(ibv_qp* qp, const std::vector<SendSpec>& specs);  // in one call
int post_recv(ibv_qp* qp, uint64_t id, const std::vector<Piece>& pieces);
int post_recv(ibv_srq* srq, uint64_t id, const std::vector<Piece>& pieces);

// The next asynchronous event, acknowledged; or a failed test after 20 seconds and an event that
// this device has not.
ibv_async_event next_event(const Hca& hca);
// The next completion, or a failed test after `limit` and a completion of status GENERAL_ERR.
ibv_wc wait_completion(ibv_cq* cq, Nanoseconds limit = 20_s);
// As above, and the test fails where its status is not `status`.
ibv_wc expect_completion(ibv_cq* cq, uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS);
bool is_empty(ibv_cq* cq);

// Waits until `done` holds; the test fails after 20 seconds.
template <class Predicate>
void wait_until(Predicate done, const char* what);
bool wait_step(Nanoseconds deadline, uint64_t turn);

template <class Predicate>
void wait_until(Predicate done, const char* what) {
  const Nanoseconds deadline = now_ns() + 20_s;
  for (uint64_t turn = 0; !done(); ++turn) {
    if (!wait_step(deadline, turn)) {
      ADD_FAILURE() << "nothing came of: " << what;
      return;
    }
  }
}

}  // namespace noria::test
