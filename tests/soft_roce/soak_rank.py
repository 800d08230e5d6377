"""One rank of soak.py's job, on its guest: 1 MiB all-reduces until the time is over, each result
looked at. After an error both ranks meet again, on the next port: an error is the same on both.

    soak_rank.py RANK ROOT_HOST SECONDS

Writes lines: "step N right|WRONG|error TEXT", and "use RSS_KIB DESCRIPTORS THREADS" after each
communicator's first steps and at its end. Exit: 0 the time is over, 1 a result was wrong.
"""

from __future__ import annotations

import array
import os
import sys
import time

import noria

_FLOATS = 262144  # 1 MiB
_PERIOD = 64      # of the data, by which a step's is made from one pattern
_WARM_STEPS = 3


def _say(*words) -> None:
    print(*words, flush=True)


def _usage() -> str:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return (f"{status['VmRSS'].split()[0]} {len(os.listdir('/proc/self/fd'))} "
            f"{status['Threads'].strip()}")


def _data(step: int, *ranks: int) -> array.array:
    """What these ranks bring to a step, added up: small whole numbers, so that sums are exact; of
    rank, step and place."""
    scale = sum(rank + 1 for rank in ranks)
    return array.array("f", [scale * ((step + place) % _PERIOD) for place in range(_PERIOD)]
                       * (_FLOATS // _PERIOD))


def _run(rank: int, comm: noria.Communicator, step: int, until: float) -> int:
    """Steps with one communicator; the number of the next. All ranks end at the step at which rank
    0 says so, by the last element."""
    memory = array.array("f", bytes(4 * _FLOATS))
    for done in range(10**9):
        memory[:] = _data(step, rank)
        # Rank 1 knows no time: rank 0 adds a half to the last element where it goes on.
        if rank == 0 and time.monotonic() < until:
            memory[_FLOATS - 1] += 0.5
        comm.all_reduce(memory)
        goes_on = memory[_FLOATS - 1] % 1 == 0.5
        if goes_on:
            memory[_FLOATS - 1] -= 0.5
        if memory != _data(step, 0, 1):
            _say("step", step, "WRONG")
            sys.exit(1)
        _say("step", step, "right")
        step += 1
        if done == _WARM_STEPS or not goes_on:
            _say("use", _usage())
        if not goes_on:
            return -1
    return step


def main(rank: int, root: str, seconds: float) -> int:
    until = time.monotonic() + seconds
    step = meeting = 0
    while time.monotonic() < until:
        os.environ["NORIA_ROOT"] = f"{root}:{21000 + meeting}"
        try:
            comm = noria.Communicator()
        except noria.NoriaError as error:
            _say("meeting", meeting, "error", error)
            meeting += 1
            continue
        try:
            step = _run(rank, comm, step, until)
        except noria.NoriaError as error:
            _say("step", step, "error", error)
        finally:
            comm.close()
        if step < 0:
            return 0
        # The other rank may have seen this step through.
        meeting += 1
        step = 1000 * meeting
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
