"""noria on the kernel's Soft-RoCE: two guests with two rails each, booted once for all tests.

What the software HCA cannot show: another library, another host, packets that are lost, late or too
long, cables that are pulled. Where this machine runs no guests it is one skip, with the reason.
"""

from __future__ import annotations

import re
import sys
import time
import unittest

sys.dont_write_bytecode = True
from bed import RAILS, Bed, Job, JobFailed, Unavailable
from soak import soak

_HOSTS = range(2)
# Of the plugin's queue pairs where a cable is pulled: 67 ms a try, half a second in all.
_IMPATIENT = {"NORIA_ACK_TIMEOUT": "14"}
# Between the cut and the errors of both sides: retries of a queue pair by the ring's default take
# 4 s, the control plane's keep-alive 9 s; the rest is for a machine that is busy.
_FAILURE_BOUND_S = 40


class SoftRoceTest(unittest.TestCase):
    bed: Bed

    def tearDown(self) -> None:
        try:
            self.restore()
        except JobFailed:  # the next test begins on guests that are well
            self.bed.close()
            SoftRoceTest.bed = Bed()
            raise

    def restore(self) -> None:
        self.bed.kill_jobs()  # of a test that failed
        for host in _HOSTS:
            for rail in range(RAILS):
                self.bed.set_link(host, rail, True)
            self.each_rail(host,
                           "tc qdisc del dev $eth root 2>/dev/null; ip link set $eth mtu 4200")
        self.bed.await_rails()

    # ---- helpers ----

    def each_rail(self, host: int, command: str) -> None:
        self.bed.run(host, f"for eth in eth0 eth1; do {command}; done")

    def start_ring(self, arguments: str, *environments: dict[str, str]) -> list[Job]:
        """all_reduce_perf as two ranks; one environment for both, or one for each."""
        root = {"NORIA_ROOT": f"{Bed.address(0)}:20000", "OMPI_COMM_WORLD_SIZE": "2",
                "NORIA_TIMEOUT_MS": "30000", "NORIA_START_TIMEOUT_MS": "30000"}
        return [self.bed.start(host, f"all_reduce_perf -c 1 {arguments}",
                               root | {"OMPI_COMM_WORLD_RANK": str(host)}
                               | (environments[host % len(environments)] if environments else {}))
                for host in _HOSTS]

    def start_net(self, arguments: str, environment: dict[str, str] | None = None,
                  device: str = "rxe0") -> list[Job]:
        """net_perf over the built plugin: the server on guest 1, its client on guest 2."""
        server = self.bed.start_server(0, f"net_perf -d {device}", 18515, environment)
        return [server, self.bed.start(1, f"net_perf -d {device} $PEER {arguments}", environment)]

    def expect_success(self, jobs: list[Job], bound_s: float = 60) -> None:
        statuses = Bed.wait_all(jobs, bound_s)
        self.assertEqual(statuses, [0] * len(jobs), "\n".join(job.output() for job in jobs))

    def expect_failures(self, jobs: list[Job], *words: str) -> None:
        """Both end with an error of one line, which matches the expression for its side."""
        statuses = Bed.wait_all(jobs, _FAILURE_BOUND_S)
        for status, job, expected in zip(statuses, jobs, words):
            self.assertIn(status, (3, 4), job.output())
            self.assertRegex(job.output(), expected)

    def packets(self, host: int) -> list[int]:
        """Sent by each rail until now."""
        return [int(re.search(r"sent_pkts (\d+)", self.bed.run(
            host, f"rdma statistic show link rxe{rail}/1"))[1]) for rail in range(RAILS)]

    def await_traffic(self, host: int, rail: int, jobs: list[Job]) -> None:
        """Until the rail has sent a hundred packets more."""
        before, deadline = self.packets(host)[rail], time.monotonic() + 30
        while self.packets(host)[rail] - before < 100:
            self.assertLess(time.monotonic(), deadline, "\n".join(job.output() for job in jobs))

    # ---- the bed itself ----

    def test_Both_rails_of_both_hosts_are_active_with_the_full_mtu(self) -> None:
        for host in _HOSTS:
            said = self.bed.run(host, "ibv_devinfo")
            self.assertEqual(said.count("PORT_ACTIVE"), RAILS, said)
            self.assertEqual(len(re.findall(r"active_mtu:\s+4096", said)), RAILS, said)

    def test_Jobs_that_begin_while_others_end_are_all_run(self) -> None:
        jobs = [self.bed.start(0, "true") for _ in range(100)]
        self.expect_success(jobs)

    def test_What_a_failed_test_leaves_is_ended_before_the_next(self) -> None:
        for _ in range(2):
            self.bed.start_server(0, "net_perf -d rxe0", 18515)
            self.bed.kill_jobs()

    def test_A_server_that_ends_before_it_listens_is_told_with_what_it_said(self) -> None:
        with self.assertRaisesRegex(JobFailed, "(?s)exit 3.*port 18515.*no device"):
            self.bed.start_server(0, "echo no device; exit 3", 18515)

    def test_perftest_goes_from_host_to_host(self) -> None:
        for rail in range(RAILS):
            command = f"ib_send_bw -d rxe{rail} -x 1 -s 65536 -n 100 -F"
            server = self.bed.start_server(0, command, 18515)
            self.expect_success([server, self.bed.start(1, f"{command} $PEER")])

    # ---- transport, ring, plugin ----

    def test_The_transport_keeps_its_promises(self) -> None:
        # Both ends on one host, as the suite has them; another shape on each.
        shapes = [{}, {"NORIA_HCA": "rxe0", "NORIA_QPS_PER_CONNECTION": "2"}]
        command = "build/tests/transport_conformance --gtest_brief=1"
        self.expect_success([self.bed.start(host, command, {"NORIA_SOCKET_IFNAME": "lo"} | shape)
                             for host, shape in zip(_HOSTS, shapes)], 150)

    def test_The_ring_adds_right_over_both_rails(self) -> None:
        before = [self.packets(host) for host in _HOSTS]
        self.expect_success(self.start_ring("-b 8 -e 8M -f 32 -n 2 -w 1"))
        for host in _HOSTS:
            for rail, sent in enumerate(self.packets(host)):
                self.assertGreater(sent - before[host][rail], 500, f"guest {host + 1} rail {rail}")

    def test_The_ring_adds_right_where_it_reads(self) -> None:
        by_reads = {"NORIA_RING_FETCH": "read"}
        self.expect_success(self.start_ring("-b 8 -e 1M -f 32 -n 2 -w 1", by_reads))

    def test_The_plugin_carries_messages_by_its_oldest_and_newest_table(self) -> None:
        for arguments in ["-s 1M -n 20 --abi 6", "-s 64K -n 50 -q 4", "--test lat -n 50"]:
            self.expect_success(self.start_net(arguments))

    def test_The_plugin_carries_messages_longer_than_a_work_request_of_rxe_may_be(self) -> None:
        self.assertIn("max_msg_sz:\t\t0x800000", self.bed.run(0, "ibv_devinfo -v -d rxe0"))
        self.expect_success(self.start_net("-s 9M -n 1 -t 1"))

    # ---- a network that is not kind ----

    def test_Loss_and_jitter_change_no_result(self) -> None:
        for host in _HOSTS:
            # With a rate netem keeps the order: a queue pair takes reordering for loss.
            self.each_rail(host, "tc qdisc add dev $eth root netem loss 1% delay 10ms 10ms "
                                 "rate 1gbit limit 10000")
        self.expect_success(self.start_ring("-b 8 -e 256K -f 32 -n 1 -w 0"), 90)
        self.expect_success(self.start_net("-s 64K -n 10", {"NORIA_ACK_TIMEOUT": "17"}), 90)

    def test_Any_mtu_will_do_also_one_for_each_side(self) -> None:
        for mtus, rdma_mtus in [((1500, 1500), (1024, 1024)), ((2200, 4200), (2048, 4096))]:
            for host in _HOSTS:
                self.each_rail(host, f"ip link set $eth mtu {mtus[host]}")
                said = self.bed.run(host, "ibv_devinfo -d rxe0")
                self.assertRegex(said, rf"active_mtu:\s+{rdma_mtus[host]}")
            self.expect_success(self.start_ring("-b 1M -e 1M -n 1 -w 0"))
            self.expect_success(self.start_net("-s 1M -n 4"))

    def test_IPv6_serves_for_data_and_control(self) -> None:
        both = {"NORIA_ADDR_FAMILY": "AF_INET6", "NORIA_SOCKET_FAMILY": "AF_INET6",
                "NORIA_ADDR_RANGE": "fd77::/16"}
        for host in _HOSTS:
            job = self.bed.start(host, "noria_info", both)
            self.assertEqual(job.wait(), 0)
            self.assertIn(Bed.address(host, 1, 6), job.output())
        root = {"NORIA_ROOT": f"[{Bed.address(0, 0, 6)}]:20000"}
        self.expect_success(self.start_ring("-b 1M -e 1M -n 1 -w 0", both | root))
        self.expect_success(self.start_net("-s 1M -n 4", both))

    def test_A_gid_index_that_is_none_is_refused_by_name(self) -> None:
        jobs = self.start_ring("-b 8 -e 8", {"NORIA_GID_INDEX": "77"})
        self.expect_failures(jobs, "NORIA_GID_INDEX.*77", "NORIA_GID_INDEX.*77")

    def test_Gids_of_unlike_families_are_an_error_on_both_sides(self) -> None:
        jobs = self.start_ring("-b 8 -e 8", {"NORIA_GID_INDEX": "1"}, {"NORIA_GID_INDEX": "0"})
        refused = "could not set up queue pairs"
        self.expect_failures(jobs, refused, refused)
        # Expect: whoever refused names both addresses.
        said = "".join(job.output() for job in jobs)
        self.assertRegex(said, "finds no path to its peer.*(fe80.*::ffff:10.77|::ffff:10.77.*fe80)")

    # ---- cables ----

    def test_A_flap_that_retries_outlast_is_no_error(self) -> None:
        jobs = self.start_ring("-b 1M -e 1M -n 40 -w 0")
        self.await_traffic(0, 1, jobs)
        for host in _HOSTS:
            self.bed.set_link(host, 1, False)
            time.sleep(1)  # how long the cable is out; queue pairs try for 3.8 s
            self.bed.set_link(host, 1, True)
        self.expect_success(jobs)

    def test_A_rail_that_is_cut_under_load_ends_the_ring_with_its_cause_on_both_sides(self) -> None:
        jobs = self.start_ring("-b 1M -e 1M -n 100000 -w 0")
        self.await_traffic(0, 1, jobs)
        self.bed.set_link(1, 1, False)
        cause = r"rank \d.*rxe1 port 1.*(transport retries exceeded|port is down)"
        self.expect_failures(jobs, cause, cause)

    def test_A_host_that_is_cut_off_under_load_ends_the_ring_on_both_sides(self) -> None:
        jobs = self.start_ring("-b 1M -e 1M -n 100000 -w 0")
        self.await_traffic(0, 0, jobs)
        for rail in range(RAILS):
            self.bed.set_link(1, rail, False)
        cause = r"rank \d.*(transport retries exceeded|port is down|is out of reach)"
        self.expect_failures(jobs, cause, cause)

    def test_A_rail_that_is_cut_under_load_ends_the_plugins_connection_on_both_sides(self) -> None:
        jobs = self.start_net("-s 64K -D 600", _IMPATIENT, "rxe1")
        self.await_traffic(1, 1, jobs)
        self.bed.set_link(0, 1, False)
        # The server's own, or what the client told it.
        self.expect_failures(jobs, "port is down|the peer gave up|transport retries exceeded",
                             r"rxe1 port 1.*transport retries exceeded")

    def test_A_minute_of_flaps_and_loss_changes_no_result_and_leaves_nothing_behind(self) -> None:
        report = soak(self.bed, seconds=60, flap_every_s=20)
        self.assertEqual(report.faults, [], "\n".join(report.lines))
        self.assertGreater(report.right, 0, "\n".join(report.lines))


def main() -> int:
    start = time.monotonic()
    try:
        SoftRoceTest.bed = Bed()
    except Unavailable as error:
        # As googletest says it, so that ./check counts it and shows why.
        print(f"soft_roce_test.py: Skipped\n{error}\n\n[  SKIPPED ] SoftRoceTest.All "
              f"({1000 * (time.monotonic() - start):.0f} ms)")
        return 0
    try:
        print(f"two guests, by {SoftRoceTest.bed.accelerator}, after "
              f"{time.monotonic() - start:.1f} s", flush=True)
        return 0 if unittest.main(exit=False, verbosity=2).result.wasSuccessful() else 1
    finally:
        SoftRoceTest.bed.close()


if __name__ == "__main__":
    sys.exit(main())
