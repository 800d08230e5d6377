"""libnoria.so: where it is, its version, its constants and its functions with their types.

Loaded once, when the package is imported. Looked for in this order:

1. ``NORIA_LIBRARY``, a path; if it does not load, nothing else is tried.
2. beside this file, where ``cmake --install`` leaves a link to it.
3. wherever the dynamic loader looks (ldconfig, LD_LIBRARY_PATH).
"""

from __future__ import annotations

import ctypes
import enum
import operator
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from noria._structs import (
    BucketInfoStruct,
    CommConfig,
    CommInfoStruct,
    CounterInfoStruct,
    HookBucket,
    ParamInfoStruct,
    ReducerConfig,
    ShardInfoStruct,
    ShardRangeStruct,
    StepInfoStruct,
    StepReportStruct,
    StreamStruct,
    TensorDesc,
    UniqueId,
)
from noria.errors import ArgumentError, LibraryError, error_of

_MAJOR, _MINOR = 0, 1  # of the header that _structs was written from
_SONAME = "libnoria.so.0"


class Dtype(enum.IntEnum):
    """Types of elements. Integers of 8 bits and unsigned ones are broadcast, but not reduced."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return (1, 1, 4, 4, 8, 8, 2, 4, 8, 2)[self]


class Op(enum.IntEnum):
    """What a reduction does. AVG divides after the sum, and is not defined for integers."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class Plan(enum.IntEnum):
    """How tensors are cut into buckets: as DDP does, whole and closed at a cap; none larger than
    its cap, with a small last one; or at edges that the times of the first step choose."""

    DDP = 0
    STRICT = 1
    PLANNED = 2


class Order(enum.IntEnum):
    """By what buckets are filled: the reverse of registration, or rank 0's order in the first
    step."""

    REVERSE = 0
    ARRIVAL = 1


class Average(enum.IntEnum):
    """When an average divides: after the sum, before it, or both, which suits float16."""

    POST = 0
    PRE = 1
    SPLIT_SQRT = 2


class Unused(enum.IntEnum):
    """What becomes of a tensor that took no part in a step on this rank: MissingError; zeros; or
    zeros, and no result where no rank used it."""

    ERROR = 0
    ZERO = 1
    KEEP = 2


class StreamKind(enum.IntEnum):
    """Whose queue of work a stream is."""

    HOST = 0
    CUDA = 1


class HookMoment(enum.IntEnum):
    """When a hook sees a bucket: before it is sent, or after it is reduced."""

    BEFORE = 0
    AFTER = 1


# ---- functions -----------------------------------------------------------------------------------

_HANDLE = c_void_p
# A function of the caller's: bucket, room for why, its size, user.
HookFunction = ctypes.CFUNCTYPE(c_int32, POINTER(HookBucket), c_void_p, c_size_t, c_void_p)
_STREAM = POINTER(StreamStruct)  # None: memory of the host
_BUFFERS = [c_void_p, c_void_p]  # in and out
_ASYNC = [_STREAM, POINTER(_HANDLE)]  # NULL for the work: the call blocks

_STATUS_FUNCTIONS = {
    "noria_get_unique_id": [POINTER(UniqueId)],
    "noria_comm_create": [POINTER(CommConfig), POINTER(_HANDLE)],
    "noria_comm_rank": [_HANDLE, POINTER(c_int32)],
    "noria_comm_size": [_HANDLE, POINTER(c_int32)],
    "noria_comm_abort": [_HANDLE, c_char_p],
    "noria_comm_status": [_HANDLE],
    "noria_comm_split": [_HANDLE, c_int32, c_int32, POINTER(_HANDLE)],
    "noria_all_reduce": [_HANDLE, *_BUFFERS, c_uint64, c_int32, c_int32, *_ASYNC],
    "noria_broadcast": [_HANDLE, *_BUFFERS, c_uint64, c_int32, c_int32, *_ASYNC],
    "noria_reduce_scatter_v": [_HANDLE, *_BUFFERS, POINTER(c_uint64), c_int32, c_int32, *_ASYNC],
    "noria_all_gather_v": [_HANDLE, *_BUFFERS, POINTER(c_uint64), c_int32, *_ASYNC],
    "noria_barrier": [_HANDLE, *_ASYNC],
    "noria_work_test": [_HANDLE],
    "noria_work_wait": [_HANDLE, c_uint32],
    "noria_reducer_create": [_HANDLE, POINTER(ReducerConfig), POINTER(_HANDLE)],
    "noria_reducer_add": [_HANDLE, POINTER(TensorDesc), POINTER(c_uint32)],
    "noria_reducer_set_hook": [_HANDLE, c_uint32, HookFunction, c_void_p],
    "noria_reducer_seal": [_HANDLE],
    "noria_reducer_view": [_HANDLE, c_uint32, POINTER(c_void_p), POINTER(c_uint64)],
    "noria_reducer_save_plan": [_HANDLE, c_char_p],
    "noria_reducer_load_plan": [_HANDLE, c_char_p],
    "noria_step_begin": [_HANDLE, c_uint32],
    "noria_grad_ready": [_HANDLE, c_uint32, c_void_p, _STREAM],
    "noria_grad_unused": [_HANDLE, POINTER(c_uint32), c_uint32],
    "noria_grad_result": [_HANDLE, c_uint32, _STREAM, c_uint32, POINTER(c_void_p)],
    "noria_step_end": [_HANDLE, _STREAM, POINTER(StepReportStruct)],
    "noria_step_join": [_HANDLE, _STREAM, POINTER(StepReportStruct), POINTER(c_uint32)],
    "noria_reducer_reset": [_HANDLE],
    "noria_reducer_shard": [_HANDLE, c_uint32, POINTER(ShardInfoStruct)],
    "noria_reducer_shard_ranges": [
        _HANDLE,
        POINTER(ShardRangeStruct),
        c_uint32,
        POINTER(c_uint32),
    ],
    "noria_reducer_layout": [_HANDLE, c_uint32, POINTER(c_uint64), POINTER(c_uint64)],
    "noria_reducer_all_gather": [_HANDLE, c_void_p, c_uint64],
    "noria_reducer_all_gather_as": [_HANDLE, c_void_p, c_uint64, c_int32],
    "noria_observe_param": [c_uint32, POINTER(ParamInfoStruct)],
    "noria_observe_counter": [c_uint32, POINTER(CounterInfoStruct)],
    "noria_observe_comm": [_HANDLE, POINTER(CommInfoStruct)],
    "noria_observe_step": [_HANDLE, POINTER(StepInfoStruct)],
    "noria_observe_buckets": [_HANDLE, POINTER(BucketInfoStruct), c_uint32, POINTER(c_uint32)],
}
_VOID_FUNCTIONS = {
    "noria_comm_destroy": [_HANDLE],
    "noria_work_release": [_HANDLE],
    "noria_reducer_destroy": [_HANDLE],
}


def _candidates() -> list[str]:
    named = os.environ.get("NORIA_LIBRARY", "")
    if named:
        return [named]
    # The real file and not the link: the library looks for the software HCA beside itself.
    beside = os.path.realpath(os.path.join(os.path.dirname(__file__), _SONAME))
    return [beside, _SONAME] if os.path.exists(beside) else [_SONAME]


def _load() -> tuple[ctypes.CDLL, str]:
    reasons = []
    for path in _candidates():
        try:
            # CDLL lets go of the interpreter during each call, which the calls that block need.
            return ctypes.CDLL(path), path
        except OSError as error:
            reasons.append(str(error))
    raise LibraryError(
        f"libnoria.so could not be loaded ({'; '.join(reasons)}): build noria, then install it "
        "and run ldconfig, or set NORIA_LIBRARY to its path"
    )


def _bind(library: ctypes.CDLL, path: str) -> None:
    def bind(name: str, argtypes: list, restype) -> None:
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryError(
                f"{path} lacks {name}: it is no libnoria.so {_MAJOR}.{_MINOR}"
            ) from None
        function.argtypes, function.restype = argtypes, restype

    bind("noria_version", [], c_uint32)
    loaded = library.noria_version()
    if loaded // 100 != _MAJOR * 100 + _MINOR:
        raise LibraryError(
            f"{path} is noria {loaded // 10000}.{loaded // 100 % 100}.{loaded % 100}, and this "
            f"package is for {_MAJOR}.{_MINOR}: install the two together, or set NORIA_LIBRARY to "
            "the other library"
        )
    bind("noria_status_name", [c_int32], c_char_p)
    bind("noria_last_error", [c_char_p, c_size_t], c_size_t)
    for name, argtypes in _STATUS_FUNCTIONS.items():
        bind(name, argtypes, c_int32)
    for name, argtypes in _VOID_FUNCTIONS.items():
        bind(name, argtypes, None)


lib, _path = _load()
_bind(lib, _path)


def library_path() -> str:
    """The path, or the name, by which libnoria.so was loaded."""
    return _path


def version() -> tuple[int, int, int]:
    """Major, minor and patch version of the library that is loaded."""
    number = lib.noria_version()
    return number // 10000, number // 100 % 100, number % 100


def status_name(status: int) -> str:
    """The header's name of a status, as of a ``NoriaError.status``: ``"NORIA_E_PEER"``."""
    return lib.noria_status_name(status).decode()


def unsigned(name: str, value: Any, bits: int) -> int:
    """A number for an unsigned one of C's, into which ctypes would cut any other."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}, which is no integer") from None
    if not 0 <= number < 1 << bits:
        raise ArgumentError(f"{name} is {number}: it lies between 0 and {(1 << bits) - 1}")
    return number


def last_error() -> str:
    """The library's text for the last failure of this thread."""
    length = lib.noria_last_error(None, 0)
    text = ctypes.create_string_buffer(length + 1)
    lib.noria_last_error(text, length + 1)
    return text.value.decode("utf-8", "replace")


def check(status: int) -> None:
    """Raises what a failed status means. To be called by the thread that made the call."""
    if status < 0:
        raise error_of(status, last_error())


def array_of(function: Any, handle: c_void_p, struct: Any) -> list:
    """What a function gives that writes as many structs as there is room for, and tells how many
    there are."""
    count = c_uint32()
    check(function(handle, None, 0, byref(count)))
    # The first one's size tells the size of all.
    room = (struct * max(count.value, 1))(struct())
    check(function(handle, room, count.value, byref(count)))
    return room[: count.value]


def tuple_of(kind: Any, struct: Any) -> Any:
    """A NamedTuple of the struct's fields of the same names: texts as str, NULL as 0."""

    def value(name: str) -> Any:
        raw = getattr(struct, name)
        if isinstance(raw, bytes):
            return raw.decode("utf-8", "replace")
        return Dtype(raw) if name == "dtype" else raw or 0

    return kind(*map(value, kind._fields))
