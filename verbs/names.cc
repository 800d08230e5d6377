#include "verbs/names.hpp"

namespace noria::verbs {

const char* to_string(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS: return "success";
    case IBV_WC_LOC_LEN_ERR: return "local length error";
    case IBV_WC_LOC_QP_OP_ERR: return "local queue pair operation error";
    case IBV_WC_LOC_EEC_OP_ERR: return "local end-to-end context operation error";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_WR_FLUSH_ERR: return "flushed";
    case IBV_WC_MW_BIND_ERR: return "memory window bind error";
    case IBV_WC_BAD_RESP_ERR: return "bad response";
    case IBV_WC_LOC_ACCESS_ERR: return "local access error";
    case IBV_WC_REM_INV_REQ_ERR: return "remote invalid request";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_REM_OP_ERR: return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR: return "transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "receiver-not-ready retries exceeded";
    case IBV_WC_LOC_RDD_VIOL_ERR: return "local reliable-datagram domain violation";
    case IBV_WC_REM_INV_RD_REQ_ERR: return "remote invalid reliable-datagram request";
    case IBV_WC_REM_ABORT_ERR: return "aborted by the remote side";
    case IBV_WC_INV_EECN_ERR: return "invalid end-to-end context number";
    case IBV_WC_INV_EEC_STATE_ERR: return "invalid end-to-end context state";
    case IBV_WC_FATAL_ERR: return "fatal device error";
    case IBV_WC_RESP_TIMEOUT_ERR: return "response timed out";
    case IBV_WC_GENERAL_ERR: return "general error";
    case IBV_WC_TM_ERR: return "tag matching error";
    case IBV_WC_TM_RNDV_INCOMPLETE: return "tag matching rendezvous incomplete";
  }
  return "unknown completion status";
}

const char* advice(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return "the peer stopped answering: is its process alive, its port active, the path up?";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "the peer posted no receives in time: is its process stuck?";
    case IBV_WC_REM_ACCESS_ERR:
      return "the peer's memory was deregistered or the range is outside of it: did the peer free "
             "it too early?";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return "our own memory was deregistered while it was in use: was a Region dropped too early?";
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return "a message did not fit where it should land: do both sides run the same build?";
    case IBV_WC_WR_FLUSH_ERR: return "an earlier failure emptied the queue: look for the first one";
    case IBV_WC_FATAL_ERR: return "the device failed: see the kernel log";
    default: return "see the kernel log and the counters of the port on both sides";
  }
}

const char* to_string(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP: return "nop";
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "init";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    case IBV_PORT_ACTIVE_DEFER: return "active, deferred";
  }
  return "unknown port state";
}

const char* to_string(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR: return "completion queue overrun";
    case IBV_EVENT_QP_FATAL: return "queue pair failed";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request at queue pair";
    case IBV_EVENT_QP_ACCESS_ERR: return "access violation at queue pair";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port down";
    case IBV_EVENT_LID_CHANGE: return "lid changed";
    case IBV_EVENT_GID_CHANGE: return "gid table changed";
    case IBV_EVENT_PKEY_CHANGE: return "partition key table changed";
    case IBV_EVENT_SM_CHANGE: return "subnet manager changed";
    case IBV_EVENT_CLIENT_REREGISTER: return "subnet manager asks for registration";
    case IBV_EVENT_PATH_MIG: return "path migrated";
    case IBV_EVENT_PATH_MIG_ERR: return "path migration failed";
    case IBV_EVENT_DEVICE_FATAL: return "device failed";
    default: return "other asynchronous event";
  }
}

}  // namespace noria::verbs
