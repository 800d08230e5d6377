"""The reducer: gradients in one by one, averages out, bitwise the same on all ranks."""

from __future__ import annotations

import weakref
from ctypes import byref, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from noria._library import Dtype, Op, ReducerConfig, StepReportStruct, TensorDesc, check, lib
from noria.communicator import Communicator


class StepReport(NamedTuple):
    """What a step cost; times in nanoseconds."""

    step: int
    buckets: int
    bytes: int
    step_ns: int
    communication_ns: int
    exposed_ns: int


class Reducer:
    """Averages a fixed list of gradients, step by step, while a backward pass produces them.

    ``arena=True``: gradients are written straight into noria's memory (see ``view``).
    ``bucket_bytes`` and ``first_bucket_bytes``: 0 is 25 MiB and 1 MiB.

    Threads: ``grad_ready`` any, several at once; the rest one at a time.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        arena: bool = False,
        bucket_bytes: int = 0,
        first_bucket_bytes: int = 0,
        op: Op = Op.AVG,
        step_timeout_ms: int = 0,
    ):
        config = ReducerConfig(
            arena=int(arena),
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
            op=op,
            step_timeout_ms=step_timeout_ms,
        )
        handle = c_void_p()
        check(lib.noria_reducer_create(communicator.handle, byref(config), byref(handle)))
        self.communicator = communicator
        self.handle = handle
        self._destroy = weakref.finalize(self, lib.noria_reducer_destroy, handle)
        self._report = StepReportStruct()

    def add(self, name: str, numel: int, dtype: Dtype = Dtype.FLOAT32) -> int:
        """Registers a tensor, in the order of the framework's registration; returns its id, which
        counts from 0."""
        desc = TensorDesc(name=name.encode(), numel=numel, dtype=dtype)
        number = c_uint32()
        check(lib.noria_reducer_add(self.handle, byref(desc), byref(number)))
        return number.value

    def seal(self) -> None:
        """Fixes the plan. Every rank calls it; where they registered different things, all of them
        raise MismatchError with the first difference."""
        check(lib.noria_reducer_seal(self.handle))

    def view(self, tensor: int) -> tuple[int, int]:
        """Arena mode: address and bytes of a tensor's gradient, until the reducer is closed."""
        address, size = c_void_p(), c_uint64()
        check(lib.noria_reducer_view(self.handle, tensor, byref(address), byref(size)))
        return address.value or 0, size.value

    def step_begin(self) -> None:
        """Opens a step. Every rank does, in the same order as its collectives."""
        check(lib.noria_step_begin(self.handle, 0))

    def grad_ready(self, tensor: int, address: int = 0) -> None:
        """The gradient is complete. Copy mode: it is at ``address``, where the average will be
        written as well, and stays there until ``step_end`` is over. Arena mode: in its view."""
        check(lib.noria_grad_ready(self.handle, tensor, address, None))

    def step_end(self) -> StepReport:
        """Waits for the averages. What any rank did wrong raises on all of them, in this step, with
        the same text."""
        report = self._report
        check(lib.noria_step_end(self.handle, None, byref(report)))
        return StepReport(
            report.step,
            report.buckets,
            report.bytes,
            report.step_ns,
            report.communication_ns,
            report.exposed_ns,
        )

    def reset(self) -> None:
        """After a failed step, on every rank: back to between steps."""
        check(lib.noria_reducer_reset(self.handle))

    def close(self) -> None:
        """Gives the reducer back; it happens by itself when nobody holds it any more."""
        self._destroy()
        self.handle = c_void_p()
