#!/usr/bin/env python3
"""The transport against perftest between the two guests, in turn, and two rails against one.

    tests/soft_roce/figures.py [--sizes 65536,262144,1048576] [--rounds 5] [--seconds 1]

Both with 64 messages under way from one hot buffer into another. Emulated processors: the ratios
tell something, the rates do not. Exit: 0, 3 this machine runs no guests, 4 a program failed.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys

sys.dont_write_bytecode = True
from bed import Bed, JobFailed, exit_status

_SIZES = [65536, 262144, 1048576]
_PILOT_RATE = 40e6  # bytes a second, for how many messages make a second


def _pair(bed: Bed, port: int, server: str, client: str) -> str:
    """What the client wrote."""
    jobs = [bed.start_server(0, server, port), bed.start(1, client)]
    if any(Bed.wait_all(jobs, 60)):
        raise JobFailed("\n".join(job.output() for job in jobs))
    return jobs[1].output()


def _perftest(bed: Bed, size: int, messages: int) -> float:
    """Bytes a second."""
    command = f"ib_send_bw -d rxe0 -x 1 -F -t 64 -r 128 -s {size} -n {messages}"
    row = re.search(rf"^ *{size} .*$", _pair(bed, 18515, command, f"{command} $PEER"), re.M)
    return float(row[0].split()[3]) * 2**20


def _transport(bed: Bed, size: int, messages: int, rails: int) -> float:
    flags = f"--bytes {size} --messages {messages} --rails {rails}"
    return float(_pair(bed, 18516, f"transport_bw --serve {flags}",
                       f"transport_bw $PEER {flags}")) * size


def _measure(bed: Bed, sizes: list[int], rounds: int, seconds: float) -> None:
    print("| bytes | ib_send_bw | transport | ratio | two rails | two rails / one |\n"
          "|---:|---:|---:|---:|---:|---:|")
    for size in sizes:
        messages = max(64, int(_PILOT_RATE * seconds / size))
        rows = []
        for _ in range(rounds):
            one = _transport(bed, size, messages, 1)
            rows.append((_perftest(bed, size, messages), one, _transport(bed, size, messages, 2)))
        median = statistics.median
        perftest, one, two = (median(column) * 1e-6 for column in zip(*rows))
        print(f"| {size} | {perftest:.1f} MB/s | {one:.1f} MB/s "
              f"| {median(r[1] / r[0] for r in rows):.2f} | {two:.1f} MB/s "
              f"| {median(r[2] / r[1] for r in rows):.2f} |", flush=True)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests/soft_roce/figures.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=_SIZES, metavar="BYTES,...",
                        type=lambda text: [int(word) for word in text.split(",")],
                        help="of messages (64 KiB, 256 KiB and 1 MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is taken (5)")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement, about (1)")
    options = parser.parse_args(words)
    if options.rounds < 1 or not 0 < options.seconds < math.inf or min(options.sizes) < 1:
        parser.error("--sizes, --rounds and --seconds are above 0")

    def body() -> int:
        with Bed() as bed:
            _measure(bed, options.sizes, options.rounds, options.seconds)
        return 0

    return exit_status("figures", body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
