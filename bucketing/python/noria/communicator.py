"""Communicators: who takes part, and what they do together outside of a reducer's steps."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_int32, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional, Sequence

from noria._library import Dtype, Op, StreamKind, check, lib, unsigned
from noria._structs import CommConfig, StreamStruct, UniqueId
from noria.errors import ArgumentError


class Memory(NamedTuple):
    """Elements at an address. Who makes one keeps the memory alive until the call, or its work, is
    done."""

    address: int
    count: int
    dtype: Dtype


_FORMATS = {
    ("b", 1): Dtype.INT8,
    ("B", 1): Dtype.UINT8,
    ("c", 1): Dtype.UINT8,
    ("i", 4): Dtype.INT32,
    ("l", 4): Dtype.INT32,
    ("I", 4): Dtype.UINT32,
    ("L", 4): Dtype.UINT32,
    ("l", 8): Dtype.INT64,
    ("q", 8): Dtype.INT64,
    ("L", 8): Dtype.UINT64,
    ("Q", 8): Dtype.UINT64,
    ("e", 2): Dtype.FLOAT16,
    ("f", 4): Dtype.FLOAT32,
    ("d", 8): Dtype.FLOAT64,
}


def memory_of(data: Any) -> Memory:
    """Where the elements of an array are: an ``array.array``, a NumPy array, a ctypes array, any
    writable contiguous object with the buffer protocol, or a ``Memory`` as it is."""
    if isinstance(data, Memory):
        return data
    view = memoryview(data)
    dtype = _FORMATS.get((view.format.lstrip("@=<"), view.itemsize))
    if dtype is None:
        raise ArgumentError(f"elements of format {view.format!r} are none of noria.Dtype")
    if view.readonly or not view.c_contiguous:
        raise ArgumentError("the array must be writable and contiguous")
    count = view.nbytes // view.itemsize
    if count == 0:
        return Memory(0, 0, dtype)
    start = ctypes.c_char.from_buffer(
        view.cast("B") if view.format != "B" or view.ndim != 1 else view
    )
    return Memory(ctypes.addressof(start), count, dtype)


def unique_id() -> bytes:
    """Where a communicator's ranks will meet: called in the process that becomes rank 0, and
    carried to the others by whatever means there are."""
    identity = UniqueId()
    check(lib.noria_get_unique_id(byref(identity)))
    return bytes(identity)


class Stream(NamedTuple):
    """A CUDA stream: its handle, as ``torch.cuda.Stream.cuda_stream`` is, and the device's number.
    What a call works on is ready, and its result is there, in this stream's order."""

    handle: int
    device: int


def stream_struct(stream: Optional[Stream]) -> Optional[StreamStruct]:
    """None, which is the host, stays None."""
    if stream is None:
        return None
    handle = unsigned("stream.handle", stream.handle, 64)
    return StreamStruct(kind=StreamKind.CUDA, handle=handle, device=stream.device)


class Work:
    """A collective under way. Its arrays stay alive until it is done, held or not."""

    def __init__(self, handle: c_void_p, keep: tuple, dropped: list):
        self._handle = handle
        weakref.finalize(self, _drop, handle, keep, dropped)

    def is_done(self) -> bool:
        """Whether the result is there. A failure raises."""
        status = lib.noria_work_test(self._handle)
        check(status)
        return status == 0

    def wait(self, timeout_ms: int = 0) -> None:
        """Waits for the result, at most ``timeout_ms`` (0: within the collective's own bound). A
        TimedOutError of this bound leaves the work under way."""
        check(lib.noria_work_wait(self._handle, unsigned("timeout_ms", timeout_ms, 32)))


def _drop(handle: c_void_p, keep: tuple, dropped: list) -> None:
    """Nobody holds the work any more, but the library may still write to what ``keep`` holds."""
    if lib.noria_work_test(handle) > 0:
        dropped.append((handle, keep))
    else:
        lib.noria_work_release(handle)


def _release_done(dropped: list) -> None:
    # Each is taken out first, for the collector may append to the list meanwhile.
    for _ in range(len(dropped)):
        _drop(*dropped.pop(0), dropped)


def _destroy(handle: c_void_p, dropped: list) -> None:
    lib.noria_comm_destroy(handle)  # which aborts what is under way
    _release_done(dropped)


class Communicator:
    """The ranks that work together.

    Without arguments rank, size and rank 0's address come from the launcher's variables. Every rank
    calls it; it returns when all have come, or raises MissingError with the ranks that did not.

    ``device``: the number of the CUDA device on which this rank's arrays lie, for calls that are
    given a ``stream``; they go through NCCL. ``nccl_comm``: the address of an ncclComm_t of these
    ranks, which stays the caller's; 0 makes one.

    With a ``stream``, arrays are on that device and a call returns when it is queued, ``wait`` or
    not: they stay as they are until the stream is past it.

    Threads: one at a time, but for ``abort`` and ``check``.
    """

    def __init__(
        self,
        rank: int = -1,
        size: int = -1,
        unique_id: Optional[bytes] = None,
        *,
        start_timeout_ms: int = 0,
        collective_timeout_ms: int = 0,
        device: Optional[int] = None,
        nccl_comm: int = 0,
    ):
        config = CommConfig(
            rank=rank,
            size=size,
            start_timeout_ms=unsigned("start_timeout_ms", start_timeout_ms, 32),
            collective_timeout_ms=unsigned("collective_timeout_ms", collective_timeout_ms, 32),
            device_kind=StreamKind.HOST if device is None else StreamKind.CUDA,
            device=0 if device is None else unsigned("device", device, 31),
            nccl_comm=unsigned("nccl_comm", nccl_comm, 64),
        )
        if unique_id is not None:
            if len(unique_id) != ctypes.sizeof(UniqueId):
                raise ArgumentError(f"a unique id has 128 bytes, and this one {len(unique_id)}")
            config.id = ctypes.pointer(UniqueId.from_buffer_copy(unique_id))
        handle = c_void_p()
        check(lib.noria_comm_create(byref(config), byref(handle)))
        self._adopt(handle)

    def _adopt(self, handle: c_void_p) -> None:
        self.handle = handle
        self._dropped: list = []  # works under way that nobody holds, with their arrays
        self._destroy = weakref.finalize(self, _destroy, handle, self._dropped)
        number = c_int32()
        check(lib.noria_comm_rank(handle, byref(number)))
        self.rank: int = number.value
        check(lib.noria_comm_size(handle, byref(number)))
        self.size: int = number.value

    def all_reduce(
        self,
        data: Any,
        op: Op = Op.SUM,
        *,
        out: Any = None,
        wait: bool = True,
        stream: Optional[Stream] = None,
    ) -> Optional[Work]:
        """Reduces ``data`` of all ranks into ``out``, or in place. With ``wait=False`` it returns
        the work at once."""
        source = memory_of(data)
        target = source if out is None else memory_of(out)
        if (target.count, target.dtype) != (source.count, source.dtype):
            raise ArgumentError("data and out differ in count or type")
        return self._start(
            lib.noria_all_reduce,
            (data, out),
            wait,
            stream,
            source.address,
            target.address,
            source.count,
            source.dtype,
            op,
        )

    def reduce_scatter(
        self,
        data: Any,
        out: Any,
        op: Op = Op.SUM,
        *,
        counts: Optional[Sequence[int]] = None,
        wait: bool = True,
        stream: Optional[Stream] = None,
    ) -> Optional[Work]:
        """Leaves the reduction of ``data`` in blocks: this rank's goes to ``out``. ``counts``: the
        elements of each rank's block, where they differ."""
        source, target = memory_of(data), memory_of(out)
        blocks = self._blocks(source, target, counts)
        return self._start(
            lib.noria_reduce_scatter_v,
            (data, out),
            wait,
            stream,
            source.address,
            target.address,
            blocks,
            source.dtype,
            op,
        )

    def all_gather(
        self,
        data: Any,
        out: Any,
        *,
        counts: Optional[Sequence[int]] = None,
        wait: bool = True,
        stream: Optional[Stream] = None,
    ) -> Optional[Work]:
        """Puts the blocks of all ranks behind each other into ``out``; ``data`` is this rank's."""
        source, target = memory_of(data), memory_of(out)
        blocks = self._blocks(target, source, counts)
        return self._start(
            lib.noria_all_gather_v,
            (data, out),
            wait,
            stream,
            source.address,
            target.address,
            blocks,
            source.dtype,
        )

    def _blocks(self, whole: Memory, block: Memory, counts: Optional[Sequence[int]]) -> Any:
        blocks = [block.count] * self.size if counts is None else list(counts)
        if len(blocks) != self.size or any(count < 0 for count in blocks):
            raise ArgumentError(f"counts are {blocks}: one for each of {self.size} ranks")
        if (sum(blocks), blocks[self.rank]) != (whole.count, block.count):
            raise ArgumentError(
                f"arrays of {whole.count} and {block.count} elements do not hold all blocks, which "
                f"are {blocks}, and that of rank {self.rank}"
            )
        if whole.dtype != block.dtype:
            raise ArgumentError("data and out differ in type")
        return (c_uint64 * self.size)(*blocks)

    def broadcast(
        self,
        data: Any,
        root: int = 0,
        *,
        wait: bool = True,
        stream: Optional[Stream] = None,
    ) -> Optional[Work]:
        """Gives ``data`` of ``root`` to all ranks, in place."""
        memory = memory_of(data)
        return self._start(
            lib.noria_broadcast,
            (data,),
            wait,
            stream,
            memory.address,
            memory.address,
            memory.count,
            memory.dtype,
            root,
        )

    def _start(
        self, function: Any, keep: tuple, wait: bool, stream: Optional[Stream], *arguments: Any
    ) -> Optional[Work]:
        """Calls a collective; ``keep`` is what it works on, alive until the work is done."""
        work = None if wait else c_void_p()
        queue = stream_struct(stream)
        check(function(self.handle, *arguments, queue, None if work is None else byref(work)))
        _release_done(self._dropped)
        return None if work is None else Work(work, keep, self._dropped)

    def barrier(self) -> None:
        """Returns when all ranks have called it, which says nothing of their streams."""
        check(lib.noria_barrier(self.handle, None, None))

    def split(self, color: Optional[int], key: int = 0) -> Optional[Communicator]:
        """A communicator of the ranks that give the same color, in order of key and of rank; None
        for one that gives none. Every rank calls it."""
        handle = c_void_p()
        check(lib.noria_comm_split(self.handle, -1 if color is None else color, key, byref(handle)))
        if not handle:
            return None
        child = Communicator.__new__(Communicator)
        child._adopt(handle)
        return child

    def abort(self, why: str = "") -> None:
        """Fails everything under way on every rank, with this text. Threads: any."""
        check(lib.noria_comm_abort(self.handle, why.encode()))

    def check(self) -> None:
        """Raises the failure of a communicator that has failed, which is for good. Threads: any."""
        check(lib.noria_comm_status(self.handle))

    def close(self) -> None:
        """Ends the communicator on this rank; happens by itself when nobody holds it any more."""
        self._destroy()
        self.handle = c_void_p()
