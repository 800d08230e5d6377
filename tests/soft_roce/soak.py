#!/usr/bin/env python3
"""All-reduces of 1 MiB between the two guests for as long as asked, while packets are lost and
cables come loose: each step's result is right, or an error in words on both ranks; and what a
process holds (memory, descriptors, threads) does not grow.

    tests/soft_roce/soak.py [--seconds 600] [--flap-every 20] [--loss 1]

Exit: 0 so it was, 1 it was not, 3 this machine runs no guests, 4 a guest died or took too long.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
import time

sys.dont_write_bytecode = True
from bed import RAILS, Bed, exit_status

# How long a cable is out, in turn: queue pairs try for half a second here (NORIA_ACK_TIMEOUT), so
# that one kind of flap is outlasted and the other an error.
_FLAPS_S = [0.2, 1]
_LATE_S = 90  # beyond the time asked for: the last step, or the last meeting
# What later communicators may hold beyond the first: the allocator's rest, never a descriptor.
_MEMORY_SLACK_KIB = 4096


@dataclasses.dataclass
class Report:
    right: int = 0
    errors: int = 0
    flaps: int = 0
    uses: list[list[list[int]]] = dataclasses.field(default_factory=lambda: [[], []])  # by rank
    faults: list[str] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        held = "; ".join(f"rank {rank}: {uses[0]} at first, {uses[-1]} at last" if uses else
                         f"rank {rank}: not known" for rank, uses in enumerate(self.uses))
        return (f"{self.right} results right, {self.errors} errors in words, {self.flaps} flaps\n"
                f"KiB, descriptors, threads: {held}\n" + "\n".join(self.faults))


def _take(report: Report, rank: int, output: str) -> None:
    for line in output.splitlines():
        report.lines.append(f"rank {rank}: {line}")
        if re.fullmatch(r"step \d+ right", line):
            report.right += 1
        elif re.match(r"(step|meeting) \d+ error .*rank \d", line):
            report.errors += 1
        elif line.startswith("use "):
            report.uses[rank].append([int(word) for word in line.split()[1:]])
        elif not line.startswith("noria: "):
            report.faults.append(f"rank {rank}: {line}")


def _judge(report: Report) -> None:
    for rank, uses in enumerate(report.uses):
        if len(uses) < 2:
            report.faults.append(f"rank {rank} did not say at its end what it holds")
            continue
        (memory, *counts), (memory_at_last, *counts_at_last) = uses[0], uses[-1]
        if memory_at_last > memory + _MEMORY_SLACK_KIB or counts_at_last != counts:
            report.faults.append(f"rank {rank} held {uses[0]} at first and {uses[-1]} at last "
                                 "(KiB, descriptors, threads)")


def soak(bed: Bed, seconds: float, flap_every_s: float, loss_percent: float = 1) -> Report:
    """Leaves the loss on; raises JobFailed where the ranks do not end."""
    for host in range(2):
        bed.run(host, "for eth in eth0 eth1; do tc qdisc add dev $eth root netem loss "
                      f"{loss_percent}%; done")
    environment = {"OMPI_COMM_WORLD_SIZE": "2", "NORIA_TIMEOUT_MS": "20000",
                   "NORIA_START_TIMEOUT_MS": "15000", "NORIA_ACK_TIMEOUT": "14",
                   "PYTHONPATH": "bucketing/python", "PYTHONDONTWRITEBYTECODE": "1",
                   "NORIA_LIBRARY": "build/lib/libnoria.so"}
    command = "python3 tests/soft_roce/soak_rank.py"
    jobs = [bed.start(host, f"{command} {host} {Bed.address(0)} {seconds}",
                      environment | {"OMPI_COMM_WORLD_RANK": str(host)}) for host in range(2)]
    report = Report()
    until = time.monotonic() + seconds
    while time.monotonic() + flap_every_s < until:
        time.sleep(flap_every_s - max(_FLAPS_S))
        # Each cable in turn.
        host, rail = report.flaps % 2, report.flaps // 2 % RAILS
        bed.set_link(host, rail, False)
        time.sleep(_FLAPS_S[report.flaps % len(_FLAPS_S)])
        bed.set_link(host, rail, True)
        report.flaps += 1
    for rank, status in enumerate(Bed.wait_all(jobs, until + _LATE_S - time.monotonic())):
        _take(report, rank, jobs[rank].output())
        if status != 0:
            report.faults.append(f"rank {rank} ended with status {status}")
    _judge(report)
    return report


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/soft_roce/soak.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long (600)")
    parser.add_argument("--flap-every", type=float, default=20, metavar="S",
                        help="seconds from one flap to the next (20)")
    parser.add_argument("--loss", type=float, default=1, help="packets lost, in percent (1)")
    options = parser.parse_args(words)
    if not (max(_FLAPS_S) < options.flap_every < math.inf and 0 < options.seconds < math.inf
            and 0 <= options.loss < 100):
        parser.error(f"--flap-every is above {max(_FLAPS_S)}, --seconds above 0, --loss from 0 to "
                     "below 100")

    def body() -> int:
        with Bed() as bed:
            report = soak(bed, options.seconds, options.flap_every, options.loss)
        print(report)
        return 1 if report.faults else 0

    return exit_status("soak", body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
