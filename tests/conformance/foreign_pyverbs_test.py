"""The semantics of reliable connections, asked by pyverbs (rdma-core's Python bindings).

Run as `noria_soft /usr/bin/python3 foreign_pyverbs_test.py`. Two queue pairs of this process are
connected to each other; whatever is asserted here holds on hardware too.
"""
import importlib.util
import sys
import time
import unittest

if importlib.util.find_spec("pyverbs") is None:
    print("pyverbs is not installed (packages.txt)")
    sys.exit(77)  # skipped

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
BYTES = 8192
ALL_ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Side:
    """A queue pair with its completion queue and one memory region."""

    def __init__(self, context, access=ALL_ACCESS, channel=None):
        self.context = context
        self.pd = PD(context)
        self.cq = CQ(context, 64, None, channel, 0)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        self.mr = MR(self.pd, BYTES, access)

    def close(self):
        for each in (self.qp, self.cq, self.mr, self.pd):
            each.close()

    def attributes(self, other):
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags = ALL_ACCESS
        attr.dest_qp_num = other.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 1
        attr.timeout = 14
        attr.retry_cnt = 7
        attr.rnr_retry = 1
        route = GlobalRoute(dgid=self.context.query_gid(PORT, 0), sgid_index=0)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
        return attr

    def send(self, opcode, length, wr_id=1, offset=0, rkey=None, address=None):
        sge = SGE(self.mr.buf + offset, length, self.mr.lkey)
        wr = SendWR(wr_id, num_sge=1, sg=[sge], opcode=opcode, send_flags=e.IBV_SEND_SIGNALED)
        if rkey is not None:
            wr.set_wr_rdma(rkey, address)
        self.qp.post_send(wr)

    def receive(self, length, wr_id=1):
        self.qp.post_recv(RecvWR(wr_id, num_sge=1, sg=[SGE(self.mr.buf, length, self.mr.lkey)]))

    def completion(self):
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            count, completions = self.cq.poll(1)
            if count == 1:
                return completions[0]
        raise AssertionError("no completion came")

    def state(self):
        return self.qp.query(e.IBV_QP_STATE)[0].qp_state


class Connected(unittest.TestCase):
    def setUp(self):
        self.context = Context(name=get_device_list()[0].name.decode())
        self.channel = CompChannel(self.context)
        self.a, self.b = Side(self.context), Side(self.context, channel=self.channel)
        self.connect()

    def connect(self):
        for own, other in ((self.a, self.b), (self.b, self.a)):
            own.qp.to_rts(own.attributes(other))

    def tearDown(self):
        self.a.close()
        self.b.close()
        self.channel.close()
        self.context.close()

    def expect(self, side, status, wr_id=1):
        completion = side.completion()
        self.assertEqual((completion.wr_id, completion.status), (wr_id, status))
        return completion


class QueuePairLife(Connected):
    def test_states_follow_each_other(self):
        self.assertEqual(self.a.state(), e.IBV_QPS_RTS)
        attr = QPAttr(qp_state=e.IBV_QPS_ERR)
        self.a.qp.modify(attr, e.IBV_QP_STATE)
        self.assertEqual(self.a.state(), e.IBV_QPS_ERR)
        attr.qp_state = e.IBV_QPS_RESET
        self.a.qp.modify(attr, e.IBV_QP_STATE)
        self.assertEqual(self.a.state(), e.IBV_QPS_RESET)

    def test_a_state_cannot_be_skipped(self):
        self.a.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        for state in (e.IBV_QPS_RTR, e.IBV_QPS_RTS):
            with self.assertRaises(PyverbsRDMAError):
                self.a.qp.modify(QPAttr(qp_state=state), e.IBV_QP_STATE)
        self.assertEqual(self.a.state(), e.IBV_QPS_RESET)

    def test_reset_and_reuse(self):
        for side in (self.a, self.b):
            side.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.connect()
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=self.b.mr.rkey, address=self.b.mr.buf)
        self.expect(self.a, e.IBV_WC_SUCCESS)

    def test_what_is_queued_is_flushed(self):
        self.b.receive(64, wr_id=7)
        self.b.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self.expect(self.b, e.IBV_WC_WR_FLUSH_ERR, wr_id=7)


class Data(Connected):
    def test_a_write_lands_where_it_should_and_nowhere_else(self):
        self.a.mr.write("x" * 100, 100)
        self.b.mr.write("." * 200, 200)
        self.a.send(e.IBV_WR_RDMA_WRITE, 100, rkey=self.b.mr.rkey, address=self.b.mr.buf + 50)
        self.expect(self.a, e.IBV_WC_SUCCESS)
        self.assertEqual(self.b.mr.read(200, 0), b"." * 50 + b"x" * 100 + b"." * 50)

    def test_a_read_fetches(self):
        self.b.mr.write("y" * 100, 100)
        self.a.send(e.IBV_WR_RDMA_READ, 100, rkey=self.b.mr.rkey, address=self.b.mr.buf)
        self.expect(self.a, e.IBV_WC_SUCCESS)
        self.assertEqual(self.a.mr.read(100, 0), b"y" * 100)

    def test_a_send_meets_a_receive(self):
        self.b.receive(100, wr_id=9)
        self.a.mr.write("z" * 60, 60)
        self.a.send(e.IBV_WR_SEND, 60)
        self.expect(self.a, e.IBV_WC_SUCCESS)
        completion = self.expect(self.b, e.IBV_WC_SUCCESS, wr_id=9)
        self.assertEqual(completion.byte_len, 60)
        self.assertEqual(completion.opcode, e.IBV_WC_RECV)
        self.assertEqual(self.b.mr.read(60, 0), b"z" * 60)


class Errors(Connected):
    def expect_broken(self, status):
        self.expect(self.a, status)
        self.assertEqual(self.a.state(), e.IBV_QPS_ERR)
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, 2, rkey=self.b.mr.rkey, address=self.b.mr.buf)
        self.expect(self.a, e.IBV_WC_WR_FLUSH_ERR, wr_id=2)

    def test_one_byte_past_the_remote_region(self):
        address = self.b.mr.buf + BYTES - 63
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=self.b.mr.rkey, address=address)
        self.expect_broken(e.IBV_WC_REM_ACCESS_ERR)

    def test_one_byte_past_the_local_region(self):
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, offset=BYTES - 63, rkey=self.b.mr.rkey,
                    address=self.b.mr.buf)
        self.expect_broken(e.IBV_WC_LOC_PROT_ERR)

    def test_an_unknown_key(self):
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=self.b.mr.rkey ^ 0xff, address=self.b.mr.buf)
        self.expect_broken(e.IBV_WC_REM_ACCESS_ERR)

    def test_the_key_of_a_region_that_is_gone(self):
        region = MR(self.b.pd, BYTES, ALL_ACCESS)
        rkey, address = region.rkey, region.buf
        region.close()
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=rkey, address=address)
        self.expect_broken(e.IBV_WC_REM_ACCESS_ERR)

    def test_the_key_of_another_protection_domain(self):
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=self.a.mr.rkey, address=self.a.mr.buf)
        self.expect_broken(e.IBV_WC_REM_ACCESS_ERR)

    def test_a_region_that_may_not_be_written(self):
        region = MR(self.b.pd, BYTES, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)
        self.a.send(e.IBV_WR_RDMA_WRITE, 64, rkey=region.rkey, address=region.buf)
        self.expect_broken(e.IBV_WC_REM_ACCESS_ERR)
        region.close()

    def test_a_message_longer_than_its_receive(self):
        self.b.receive(32, wr_id=5)
        self.a.send(e.IBV_WR_SEND, 64)
        self.expect(self.b, e.IBV_WC_LOC_LEN_ERR, wr_id=5)
        self.expect(self.a, e.IBV_WC_REM_INV_REQ_ERR)

    def test_no_receive_until_the_retries_are_used_up(self):
        self.a.send(e.IBV_WR_SEND, 64)
        self.expect_broken(e.IBV_WC_RNR_RETRY_EXC_ERR)


class Events(Connected):
    def test_an_armed_queue_tells_its_channel(self):
        self.b.receive(64)
        self.b.cq.req_notify()
        self.a.send(e.IBV_WR_SEND, 64)
        self.channel.get_cq_event(self.b.cq)
        self.b.cq.ack_events(1)
        self.expect(self.b, e.IBV_WC_SUCCESS)


if __name__ == "__main__":
    unittest.main()
