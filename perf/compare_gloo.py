#!/usr/bin/env python3
"""Times noria against Gloo, as PyTorch has it, on this machine and in turn.

    PYTHONPATH=bucketing/python NORIA_LIBRARY=build/lib/libnoria.so python3 perf/compare_gloo.py

All-reduces through torch.distributed and through noria.Communicator, from the same tensors in the
same processes; 8 bytes beside perftest's ib_send_lat on the same software HCA; and a training step
of a CNN under DistributedDataParallel over Gloo and under noria.torch.DataParallel, with what its
communication adds to a step without any. Prints a table for perf/RESULTS.md.

Exit: 0, 2 usage, 3 a program is missing or failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import mmap
import multiprocessing
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Optional

import noria
import noria.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

_TOOLS = Path(noria.library_path()).resolve().parents[1] / "bin"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_BOUND_S = 600
_MAPPED_BYTES = 1 << 20  # below, barriers would be most of it
# What becomes of .grad between steps.
DROPPED, VIEWS = "dropped", "views of buckets"


def size_of(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KM]?)", text)
    if not match or int(match[1]) * _UNITS[match[2]] % 4:
        raise argparse.ArgumentTypeError(f"{text!r}: bytes as 8, 64K or 25M, whole floats")
    return int(match[1]) * _UNITS[match[2]]


# ---- all-reduce ----------------------------------------------------------------------------------


def mean_us(call: Callable[[], object], calls: int, comm: noria.Communicator) -> float:
    """Of one call; both ranks begin together."""
    comm.barrier()
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begin) / calls / 1e3


def calls_in(seconds: float, call: Callable[[], object], comm: noria.Communicator) -> int:
    """How many calls take that long, agreed on by the ranks."""
    mean_us(call, 5, comm)
    calls = torch.tensor([max(5, int(seconds * 1e6 / mean_us(call, 10, comm)))])
    comm.broadcast(noria.torch.memory_of(calls))
    return int(calls.item())


def mapped_of(comm: noria.Communicator, shared: list[mmap.mmap]) -> Callable[[], object]:
    """The fewest passes over memory, by PyTorch's own loops: each rank adds its part of all ranks'
    tensors, then copies the other parts. Here all ranks map all tensors, as no caller's are."""
    parts = [torch.frombuffer(memory, dtype=torch.float32).chunk(comm.size) for memory in shared]
    mine = parts[comm.rank]

    def reduce() -> None:
        for other in range(comm.size):
            if other != comm.rank:
                torch.add(mine[comm.rank], parts[other][comm.rank], out=mine[comm.rank])
        comm.barrier()
        for other in range(comm.size):
            if other != comm.rank:
                mine[other].copy_(parts[other][other])
        comm.barrier()

    return reduce


def all_reduce_rounds(
    comm: noria.Communicator, size: int, shared: list[mmap.mmap], options
) -> dict[str, list[float]]:
    tensor = torch.ones(size // 4)
    contenders = {
        "Gloo": lambda: dist.all_reduce(tensor),
        "noria": lambda: comm.all_reduce(noria.torch.memory_of(tensor), noria.Op.AVG),
    }
    if shared:
        contenders["mapped"] = mapped_of(comm, shared)
    calls = {who: calls_in(options.seconds, call, comm) for who, call in contenders.items()}
    times: dict[str, list[float]] = {who: [] for who in contenders}
    for _ in range(options.rounds):
        tensor.fill_(0)  # Gloo's sums must not run into infinities
        for who, call in contenders.items():
            times[who].append(mean_us(call, calls[who], comm))
    return times


# ---- a training step -----------------------------------------------------------------------------


def cnn() -> nn.Module:
    """3.6 million parameters in 14 tensors, most of them in the head, as in VGG."""
    channels = [3, 16, 32, 64]
    layers: list[nn.Module] = []
    for before, after in zip(channels, channels[1:]):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 1536),
        nn.ReLU(),
        nn.Linear(1536, 1280),
        nn.ReLU(),
        nn.Linear(1280, 10),
    )


def step_rounds(comm: noria.Communicator, options) -> dict[tuple[str, str, bool], list[float]]:
    """By who, what becomes of gradients between steps, and whether they are synchronised."""
    torch.manual_seed(comm.rank)
    inputs, targets = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    models = {
        (who, kept): wrap(cnn(), gradient_as_bucket_view=kept == VIEWS)
        for kept in (DROPPED, VIEWS)
        for who, wrap in (("Gloo", DistributedDataParallel), ("noria", noria.torch.DataParallel))
    }

    def step(who: str, kept: str, is_synchronised: bool) -> None:
        model = models[who, kept]
        model.zero_grad(set_to_none=kept == DROPPED)
        with contextlib.nullcontext() if is_synchronised else model.no_sync():
            F.cross_entropy(model(inputs), targets).backward()

    for (
        who,
        kept,
    ) in models:  # DDP makes its buckets in the first step, and rebuilds them in the next
        for _ in range(3):
            step(who, kept, True)
    steps = calls_in(options.seconds, lambda: step("noria", DROPPED, True), comm)
    times: dict[tuple[str, str, bool], list[float]] = {}
    for _ in range(options.rounds):
        for who, kept in models:
            for is_synchronised in (False, True):
                call = functools.partial(step, who, kept, is_synchronised)
                call()
                times.setdefault((who, kept, is_synchronised), []).append(
                    mean_us(call, steps, comm)
                )
    return times


# ---- ranks ---------------------------------------------------------------------------------------


def run_rank(rank: int, options, store: str, identity: bytes, shared, answers) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=_BOUND_S),
    )
    comm = noria.Communicator(rank, options.ranks, identity)
    results: dict = {"device": "", "sizes": {}}
    for size in options.sizes:
        results["sizes"][size] = all_reduce_rounds(comm, size, shared[size], options)
    results["step"] = step_rounds(comm, options)
    answers.send(results)


def run_ranks(options) -> dict:
    """What rank 0 measured. The ranks are forked before anything of noria exists but the id."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    identity = noria.unique_id()
    shared = {
        size: [mmap.mmap(-1, size) for _ in range(options.ranks if size >= _MAPPED_BYTES else 0)]
        for size in options.sizes
    }
    with tempfile.TemporaryDirectory() as directory:
        ranks = [
            context.Process(
                target=run_rank, args=(r, options, f"{directory}/store", identity, shared, there)
            )
            for r in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        there.close()
        try:
            answers = [here.recv() for _ in ranks if here.poll(_BOUND_S)]
        except EOFError:
            answers = []
        finally:
            for process in ranks:
                process.join(10 if process.exitcode is None else 0)
                if process.is_alive():
                    process.kill()
                    process.join()
    if len(answers) != options.ranks:
        sys.exit(failure("a rank failed; its words are above"))
    return answers[0]


def failure(text: str) -> int:
    print(f"compare_gloo: {text}", file=sys.stderr)
    return 3


def send_latency_us(rounds: int) -> Optional[float]:
    """perftest's one-way time of 8 bytes over the same software HCA; None where it is missing."""
    soft = _TOOLS / "noria_soft"
    if not soft.exists() or not any(
        os.access(f"{folder}/ib_send_lat", os.X_OK) for folder in os.get_exec_path()
    ):
        return None
    times = []
    for _ in range(rounds):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [str(soft), "ib_send_lat", "-s", "8", "-n", "100000", "-F", "-p", port]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(50):
                client = subprocess.run(
                    [*command, "127.0.0.1"], capture_output=True, text=True, timeout=60
                )
                row = re.search(r"^\s*8\s+\d+\s+(.*)$", client.stdout, re.MULTILINE)
                if row:
                    times.append(float(row[1].split()[2]))  # t_typical
                    break
                time.sleep(0.1)  # the server does not listen yet
        finally:
            server.terminate()
            server.wait()
    return statistics.median(times) if times else None


# ---- the report ----------------------------------------------------------------------------------


def ratio(slower: list[float], faster: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slower, faster))


def processor() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        if match:
            return match[1]
    return platform.machine()


def report(options, results: dict, latency: Optional[float]) -> str:
    median = statistics.median
    lines = [
        "## All-reduce and a training step against Gloo under PyTorch",
        "",
        f"{options.ranks} ranks, f32, in place, PyTorch {torch.__version__}; medians of "
        f"{options.rounds} rounds in turn, each about {options.seconds:g} s. "
        f"{datetime.date.today()}, {os.cpu_count()} cores, {processor()}.",
        "",
        "    python3 perf/compare_gloo.py",
        "",
        "| bytes | Gloo us | noria us | mapped us | Gloo / noria | noria / mapped |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for size, times in results["sizes"].items():
        is_mapped = "mapped" in times
        mapped = f"{median(times['mapped']):.1f}" if is_mapped else ""
        above = f"{ratio(times['noria'], times['mapped']):.2f} x" if is_mapped else ""
        lines.append(
            f"| {size} | {median(times['Gloo']):.1f} | {median(times['noria']):.1f} | {mapped} | "
            f"{ratio(times['Gloo'], times['noria']):.1f} x | {above} |"
        )
    lines += [
        "",
        "Mapped: each rank adds its part of all tensors and copies the others, by PyTorch's loops",
        "in memory that all of them map: the passes over memory that no all-reduce can leave out.",
    ]
    if latency is not None and 8 in results["sizes"]:
        ours = median(results["sizes"][8]["noria"])
        lines += ["", f"8 bytes take {ours / latency:.2f} x the {latency:.2f} us of ib_send_lat."]
    lines += [
        "",
        "One training step of a CNN, 14.2 MB of gradients; communication is what a synchronised",
        "step takes beyond one of no_sync().",
        "",
        "| gradients | who | step alone ms | synchronised ms | communication ms | noria / Gloo |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kept in (DROPPED, VIEWS):
        added = {}
        for who in ("Gloo", "noria"):
            alone, together = (results["step"][who, kept, kind] for kind in (False, True))
            added[who] = median(b - a for a, b in zip(alone, together))
            part = f"{added['noria'] / added['Gloo']:.2f}" if who == "noria" else ""
            lines.append(
                f"| {kept} | {who} | {median(alone) / 1e3:.2f} | {median(together) / 1e3:.2f} | "
                f"{added[who] / 1e3:.2f} | {part} |"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes",
        type=lambda text: [size_of(part) for part in text.split(",")],
        default=[size_of(text) for text in ("8", "4K", "64K", "1M", "25M")],
        help="bytes (8,4K,64K,1M,25M)",
    )
    parser.add_argument("--ranks", type=int, default=2, choices=range(2, 17), metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run (1)")
    options = parser.parse_args()
    os.environ.setdefault("NORIA_SOFT", "1")
    print(report(options, run_ranks(options), send_latency_us(min(options.rounds, 3))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
