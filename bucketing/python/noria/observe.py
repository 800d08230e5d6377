"""What noria says of itself, as ``noria/observe.h`` has it: parameters, counters, communicators, and
where a step's time went. Nothing here changes anything.

Times are in nanoseconds; points in time are of CLOCK_MONOTONIC, as ``time.monotonic_ns()`` is.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, NamedTuple

from noria._library import Dtype, array_of, check, lib, tuple_of
from noria._structs import (
    BucketInfoStruct,
    CommInfoStruct,
    CounterInfoStruct,
    ParamInfoStruct,
    StepInfoStruct,
)
from noria.communicator import Communicator
from noria.errors import ArgumentError
from noria.reducer import Reducer


class Parameter(NamedTuple):
    """A variable NORIA_..., with the value that this process's environment gives it."""

    name: str
    value: str
    default_value: str
    is_default: bool
    accepts: str
    sentence: str
    nccl_name: str  # NCCL's variable, which is taken where this one is unset; or empty
    source: str  # "default", or the variable that gave the value


class Counter(NamedTuple):
    """What was decided, and how often, in this process since it started."""

    name: str
    value: int
    unit: str
    sentence: str


class CommunicatorInfo(NamedTuple):
    """By what a communicator works, and what it moved since it was made."""

    rank: int
    size: int
    reads: int  # 0: by messages; 1: by one-sided reads; 2: by reads from an arena, else messages
    sent_bytes: int
    received_bytes: int
    device: str
    notice: str  # what needs saying of the choice of device; may be empty
    gpu: str  # empty: of the host
    nccl: int  # 0: none; 1: noria's own; 2: the caller's; 3: the caller's, which was freed
    nccl_version: int


class StepInfo(NamedTuple):
    """Where a step's time went on this rank: begin + compute + exposed is the end, and backlog +
    tail + finish is what was exposed."""

    step: int
    buckets: int
    bytes: int
    wire_bytes: int
    begin_ns: int
    last_gradient_ns: int
    end_ns: int
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    backlog_ns: int  # until all buckets but one were done
    tail_ns: int  # then that last bucket
    finish_ns: int  # then the ranks' verdict, and results copied out
    order_wait_ns: int  # how long a gradient waits for one that is sent before it


class BucketInfo(NamedTuple):
    """A bucket of a step's plan, and its times in it; 0 in one without bytes."""

    bucket: int
    tensors: int
    dtype: Dtype
    bytes: int
    first_ns: int  # first gradient given
    ready_ns: int  # last gradient given
    queued_ns: int  # first piece complete
    start_ns: int  # first piece on the wire
    end_ns: int  # last piece reduced and gathered
    wire_ns: int  # with at least one piece under way


def _table(function: Any, struct: Any) -> list:
    rows: list = []
    while True:
        row = struct()
        try:
            check(function(len(rows), byref(row)))
        except ArgumentError:
            if not rows:
                raise  # not the table's end: the environment holds a bad value
            return rows
        rows.append(row)


def parameters() -> list[Parameter]:
    """All parameters; ArgumentError names a variable with a bad value."""
    rows = (tuple_of(Parameter, row) for row in _table(lib.noria_observe_param, ParamInfoStruct))
    return [row._replace(is_default=bool(row.is_default)) for row in rows]


def counters() -> list[Counter]:
    """All counters."""
    return [tuple_of(Counter, row) for row in _table(lib.noria_observe_counter, CounterInfoStruct)]


def communicator(comm: Communicator) -> CommunicatorInfo:
    """A communicator with no collective under way."""
    info = CommInfoStruct()
    check(lib.noria_observe_comm(comm.handle, byref(info)))
    return tuple_of(CommunicatorInfo, info)


def step(reducer: Reducer) -> StepInfo:
    """The last step that succeeded; StateError before the first."""
    info = StepInfoStruct()
    check(lib.noria_observe_step(reducer.handle, byref(info)))
    return tuple_of(StepInfo, info)


def buckets(reducer: Reducer) -> list[BucketInfo]:
    """The buckets of the last step that succeeded, in launch order; before any, their times are
    0."""
    found = array_of(lib.noria_observe_buckets, reducer.handle, BucketInfoStruct)
    return [tuple_of(BucketInfo, one) for one in found]
