// A verbs program that links to no verbs library: it loads the one that NCCL_IBVERBS_LIB names, and
// asks for each function under the version at which NCCL asks for it. Between two queue pairs of
// its own it moves one message and compares every byte.
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#undef ibv_query_port
#undef ibv_reg_mr

enum { kBytes = 100000 };

static void* library;

static void fail(const char* what) {
  fprintf(stderr, "dlvsym_client: %s\n", what);
  exit(1);
}

static void* load(const char* name, const char* version) {
  void* function = dlvsym(library, name, version);
  if (function == NULL) {
    fprintf(stderr, "dlvsym_client: %s@%s: %s\n", name, version, dlerror());
    exit(1);
  }
  return function;
}

// A pointer to the function of that name and version.
#define LOAD(name, version)                     \
  __extension__({                               \
    void* found = load(#name, version);         \
    __typeof__(&(name)) function;               \
    memcpy(&function, &found, sizeof function); \
    function;                                   \
  })

static struct ibv_qp* make_qp(struct ibv_pd* pd, struct ibv_cq* cq) {
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
  init.cap.max_send_wr = init.cap.max_recv_wr = 16;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  struct ibv_qp* qp = LOAD(ibv_create_qp, "IBVERBS_1.1")(pd, &init);
  if (qp == NULL) fail("ibv_create_qp");
  return qp;
}

static void connect_qp(struct ibv_qp* qp, uint32_t far_qpn, union ibv_gid gid, uint16_t lid) {
  __typeof__(&ibv_modify_qp) modify = LOAD(ibv_modify_qp, "IBVERBS_1.1");
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = far_qpn,
                            .max_dest_rd_atomic = 1,
                            .min_rnr_timer = 12};
  rtr.ah_attr.is_global = 1;
  rtr.ah_attr.grh.dgid = gid;
  rtr.ah_attr.grh.hop_limit = 255;
  rtr.ah_attr.dlid = lid;
  rtr.ah_attr.port_num = 1;
  struct ibv_qp_attr rts = {
      .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  if (modify(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
    fail("ibv_modify_qp to INIT");
  if (modify(qp, &rtr,
             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    fail("ibv_modify_qp to RTR");
  if (modify(qp, &rts,
             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                 IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    fail("ibv_modify_qp to RTS");
}

static void write_and_wait(struct ibv_qp* qp, struct ibv_cq* cq, struct ibv_mr* from,
                           struct ibv_mr* to) {
  struct ibv_sge sge = {(uint64_t)(uintptr_t)from->addr, kBytes, from->lkey};
  struct ibv_send_wr wr = {.wr_id = 7,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)to->addr;
  wr.wr.rdma.rkey = to->rkey;
  struct ibv_send_wr* bad = NULL;
  if (ibv_post_send(qp, &wr, &bad) != 0) fail("ibv_post_send");
  struct ibv_wc wc;
  int found = 0;
  for (const time_t limit = time(NULL) + 20; found == 0;) {
    found = ibv_poll_cq(cq, 1, &wc);
    if (time(NULL) > limit) fail("no completion came");
  }
  if (found != 1 || wc.status != IBV_WC_SUCCESS || wc.wr_id != 7) fail("a bad completion came");
}

// What NCCL asks for beyond what is called here.
static void load_the_rest(void) {
  static const char* const names[][2] = {
      {"ibv_get_async_event", "IBVERBS_1.1"}, {"ibv_ack_async_event", "IBVERBS_1.1"},
      {"ibv_event_type_str", "IBVERBS_1.1"},  {"ibv_query_qp", "IBVERBS_1.1"},
      {"ibv_reg_mr_iova2", "IBVERBS_1.8"},    {"ibv_reg_dmabuf_mr", "IBVERBS_1.12"},
      {"ibv_query_ece", "IBVERBS_1.10"},      {"ibv_set_ece", "IBVERBS_1.10"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) load(names[i][0], names[i][1]);
}

int main(void) {
  const char* path = getenv("NCCL_IBVERBS_LIB");
  library = path != NULL ? dlopen(path, RTLD_NOW) : NULL;
  if (library == NULL) fail(path != NULL ? dlerror() : "NCCL_IBVERBS_LIB is not set");
  load_the_rest();
  if (LOAD(ibv_fork_init, "IBVERBS_1.1")() != 0) fail("ibv_fork_init");

  int count = 0;
  struct ibv_device** devices = LOAD(ibv_get_device_list, "IBVERBS_1.1")(&count);
  if (devices == NULL || count < 1) fail("ibv_get_device_list");
  if (LOAD(ibv_get_device_name, "IBVERBS_1.1")(devices[0])[0] == '\0') fail("a device has no name");
  struct ibv_context* context = LOAD(ibv_open_device, "IBVERBS_1.1")(devices[0]);
  if (context == NULL) fail("ibv_open_device");
  LOAD(ibv_free_device_list, "IBVERBS_1.1")(devices);
  struct ibv_device_attr limits;
  if (LOAD(ibv_query_device, "IBVERBS_1.1")(context, &limits) != 0) fail("ibv_query_device");
  struct ibv_port_attr port;
  memset(&port, 0, sizeof port);
  if (LOAD(ibv_query_port, "IBVERBS_1.1")(context, 1, (struct _compat_ibv_port_attr*)&port) != 0 ||
      port.state != IBV_PORT_ACTIVE)
    fail("ibv_query_port");
  union ibv_gid gid;
  if (LOAD(ibv_query_gid, "IBVERBS_1.1")(context, 1, 0, &gid) != 0) fail("ibv_query_gid");

  struct ibv_pd* pd = LOAD(ibv_alloc_pd, "IBVERBS_1.1")(context);
  struct ibv_cq* cq = LOAD(ibv_create_cq, "IBVERBS_1.1")(context, 64, NULL, NULL, 0);
  if (pd == NULL || cq == NULL) fail("ibv_alloc_pd or ibv_create_cq");
  static unsigned char from[kBytes], to[kBytes];
  for (size_t i = 0; i < kBytes; ++i) from[i] = (unsigned char)(i * 31 + i / 256);
  __typeof__(&ibv_reg_mr) reg = LOAD(ibv_reg_mr, "IBVERBS_1.1");
  struct ibv_mr* source = reg(pd, from, kBytes, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_mr* target = reg(pd, to, kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (source == NULL || target == NULL) fail("ibv_reg_mr");

  struct ibv_qp *near = make_qp(pd, cq), *far = make_qp(pd, cq);
  connect_qp(near, far->qp_num, gid, port.lid);
  connect_qp(far, near->qp_num, gid, port.lid);
  write_and_wait(near, cq, source, target);
  if (memcmp(from, to, kBytes) != 0) fail("what arrived is not what was sent");

  __typeof__(&ibv_destroy_qp) destroy_qp = LOAD(ibv_destroy_qp, "IBVERBS_1.1");
  __typeof__(&ibv_dereg_mr) dereg = LOAD(ibv_dereg_mr, "IBVERBS_1.1");
  if (destroy_qp(near) != 0 || destroy_qp(far) != 0 || dereg(source) != 0 || dereg(target) != 0 ||
      LOAD(ibv_destroy_cq, "IBVERBS_1.1")(cq) != 0 ||
      LOAD(ibv_dealloc_pd, "IBVERBS_1.1")(pd) != 0 ||
      LOAD(ibv_close_device, "IBVERBS_1.1")(context) != 0)
    fail("an object could not be closed");
  return 0;
}
