"""Ranks of a test as forked processes, each with a bound on how long it may take."""

from __future__ import annotations

import multiprocessing
import traceback
import unittest
from typing import Any, Callable

import noria

_BOUND_S = 40


def _run(function: Callable, rank: int, size: int, identity: bytes, answers) -> None:
    try:
        comm = noria.Communicator(rank, size, identity)
        answers.send(("returned", function(comm)))
    except BaseException:
        answers.send(("raised", traceback.format_exc()))


def run_ranks(test: unittest.TestCase, size: int, function: Callable[[Any], Any]) -> list:
    """What ``function(communicator)`` returned on each rank; None of one that died. The calling
    process makes no communicator itself, for it is forked."""
    context = multiprocessing.get_context("fork")
    identity = noria.unique_id()
    processes, pipes = [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(function, rank, size, identity, there))
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
    results = []
    try:
        for rank, pipe in enumerate(pipes):
            test.assertTrue(pipe.poll(_BOUND_S), f"rank {rank} said nothing in {_BOUND_S} s")
            try:
                kind, value = pipe.recv()
            except EOFError:  # it was killed
                results.append(None)
                continue
            test.assertEqual(kind, "returned", f"rank {rank}: {value}")
            results.append(value)
        for process in processes:
            process.join(_BOUND_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    return results
