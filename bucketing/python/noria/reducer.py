"""The reducer: gradients in one by one, averages out, bitwise the same on all ranks."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple, Optional, Sequence

from noria._library import (
    Average,
    Dtype,
    HookFunction,
    HookMoment,
    Op,
    Order,
    Plan,
    StreamKind,
    Unused,
    array_of,
    check,
    lib,
    tuple_of,
    unsigned,
)
from noria._structs import (
    ReducerConfig,
    ShardInfoStruct,
    ShardRangeStruct,
    StepReportStruct,
    TensorDesc,
)
from noria.communicator import Communicator, Stream, memory_of, stream_struct
from noria.errors import ArgumentError, HookError


class StepReport(NamedTuple):
    """What a step cost; times in nanoseconds."""

    step: int
    buckets: int
    bytes: int
    step_ns: int
    communication_ns: int
    exposed_ns: int
    order_wait_ns: int  # how long a gradient waits for one that is sent before it
    plan_version: int  # plans given up for a better one


class TensorPart(NamedTuple):
    """What a bucket holds of a tensor: ``bytes`` at ``offset`` of its data, from element ``first``
    on, which is 0 but where the tensor is split."""

    tensor: int
    first: int
    offset: int
    bytes: int


class Bucket(NamedTuple):
    """A bucket as a hook sees it. ``data`` may be read and written until the hook returns, as by
    ``torch.frombuffer(bucket.data, dtype=...)`` or ``numpy.frombuffer``."""

    index: int
    step: int
    dtype: Dtype
    offset: int  # bytes, in the layout
    data: memoryview
    tensors: tuple[TensorPart, ...]


class Shard(NamedTuple):
    """What this rank keeps of a bucket. ``gradient`` is the address of the shard's reduction after
    ``step_end``, until the reducer is closed; the rest is in bytes."""

    dtype: Dtype
    bucket_offset: int  # in the layout
    bucket_bytes: int
    offset: int  # in the bucket
    bytes: int
    gradient: int


class ShardRange(NamedTuple):
    """The ``count`` elements of a tensor, from ``first`` on, that lie in this rank's shard of a
    bucket; ``gradient`` as in Shard."""

    bucket: int
    tensor: int
    dtype: Dtype
    first: int
    count: int
    offset: int  # bytes, in the layout
    gradient: int


def _bucket_of(shown) -> Bucket:
    parts = zip(
        *(
            values[: shown.tensors]
            for values in (
                shown.tensor_ids,
                shown.tensor_firsts,
                shown.tensor_offsets,
                shown.tensor_bytes,
            )
        )
    )
    data = memoryview((ctypes.c_char * shown.bytes).from_address(shown.data)).cast("B")
    return Bucket(
        shown.bucket,
        shown.step,
        Dtype(shown.dtype),
        shown.offset,
        data,
        tuple(TensorPart(*part) for part in parts),
    )


def _words_of(failure: BaseException) -> bytes:
    """Never raises: an exception on the way out of a callback would count as none at all."""
    name = type(failure).__name__
    try:
        return f"{name}: {failure}".encode("utf-8", "backslashreplace")
    except Exception:
        return f"{name}: its text could not be made".encode("utf-8", "backslashreplace")


class Reducer:
    """Averages a fixed list of gradients, step by step, while a backward pass produces them.

    ``arena=True``: gradients are written straight into noria's memory (see ``view``).
    ``bucket_bytes``, ``first_bucket_bytes`` and, of a strict plan, ``last_bucket_bytes``: 0 is 25
    MiB, 1 MiB and 1 MiB.
    ``wire_dtype``: BFLOAT16 or FLOAT16 halve what float32 gradients put on the wire, rounded.
    ``static_graph``: how often each tensor fires, and which never do, is learned in the first step
    and must then stay.
    ``check_finite``: an infinity, or what is no number, fails the step on all ranks by name.
    ``on_device``: gradients lie on the communicator's device, and are given in the order of a
    ``stream``. With one for ``step_end``, whose later work sees the averages, the host waits for the
    other ranks' hosts but for no device.
    ``shard``: each rank keeps the reduction of its shard of each bucket only, for optimizers whose
    state is shared out (see ``shard_ranges`` and ``all_gather``); half the bytes on the wire.
    ``max_in_flight``: without an arena, of how many buckets copies are held at once; 0 is all, and
    on a device 2.

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
        plan: Plan = Plan.DDP,
        order: Order = Order.REVERSE,
        last_bucket_bytes: int = 0,
        average: Average = Average.POST,
        wire_dtype: Optional[Dtype] = None,
        unused: Unused = Unused.ERROR,
        static_graph: bool = False,
        check_finite: bool = False,
        on_device: bool = False,
        shard: bool = False,
        max_in_flight: int = 0,
    ):
        if wire_dtype == Dtype.INT8:  # whose number is the header's for none
            raise ArgumentError("wire_dtype is INT8: gradients travel as BFLOAT16 or FLOAT16")
        config = ReducerConfig(
            arena=int(arena),
            bucket_bytes=unsigned("bucket_bytes", bucket_bytes, 64),
            first_bucket_bytes=unsigned("first_bucket_bytes", first_bucket_bytes, 64),
            op=op,
            step_timeout_ms=unsigned("step_timeout_ms", step_timeout_ms, 32),
            plan=plan,
            order=order,
            last_bucket_bytes=unsigned("last_bucket_bytes", last_bucket_bytes, 64),
            average=average,
            wire_dtype=wire_dtype or 0,
            unused=unused,
            static_graph=int(static_graph),
            nonfinite=int(check_finite),
            shard=int(shard),
            device_kind=StreamKind.CUDA if on_device else StreamKind.HOST,
            max_in_flight=unsigned("max_in_flight", max_in_flight, 32),
        )
        handle = c_void_p()
        check(lib.noria_reducer_create(communicator.handle, byref(config), byref(handle)))
        self.communicator = communicator
        self.handle = handle
        self._destroy = weakref.finalize(self, lib.noria_reducer_destroy, handle)
        self._report = StepReportStruct()
        self._hooks: dict[HookMoment, HookFunction] = {}  # what C calls must live
        self._hook_failures: list[BaseException] = []  # of this rank, in this step
        self._gathered: Any = None  # what the device may hold registered, see all_gather()

    def add(
        self,
        name: str,
        numel: int,
        dtype: Dtype = Dtype.FLOAT32,
        *,
        expected_fires: int = 0,
        shape: Sequence[int] = (),
        strides: Sequence[int] = (),
    ) -> int:
        """Registers a tensor, in the order of the framework's registration; returns its id, which
        counts from 0. ``expected_fires``: how often it is ready in a step, 0 is once. ``shape`` and
        ``strides``, in elements: to be refused here where they leave gaps."""
        if len(shape) != len(strides):
            raise ArgumentError(f"{name} has {len(shape)} dimensions and {len(strides)} strides")
        if "\0" in name:
            raise ArgumentError(f"the name {name!r} holds a NUL, where C's would end")
        desc = TensorDesc(
            name=name.encode(),
            numel=unsigned("numel", numel, 64),
            dtype=dtype,
            expected_fires=unsigned("expected_fires", expected_fires, 32),
        )
        if shape:
            desc.ndim = len(shape)
            desc.shape = (c_int64 * len(shape))(*shape)
            desc.strides = (c_int64 * len(strides))(*strides)
        number = c_uint32()
        check(lib.noria_reducer_add(self.handle, byref(desc), byref(number)))
        return number.value

    def seal(self) -> None:
        """Fixes the plan. Every rank calls it; where they registered different things, all of them
        raise MismatchError with the first difference."""
        check(lib.noria_reducer_seal(self.handle))

    def set_hook(self, moment: HookMoment, hook: Optional[Callable[[Bucket], None]]) -> None:
        """Before ``seal``, on every rank: ``hook`` sees each bucket whole, before it is sent or
        after it is reduced, and may change what is in it. It runs in ``grad_ready``, for several
        buckets at once where several threads give, or in ``step_end``, and must call nothing of
        noria's. What it raises becomes HookError on all ranks, in this step. None takes it back."""

        failures = self._hook_failures  # not self, which would then hold itself

        def call(shown, why, capacity, _user):
            try:
                hook(_bucket_of(shown.contents))
            except BaseException as failure:
                failures.append(failure)
                text = _words_of(failure)[: capacity - 1]
                ctypes.memmove(why, text + b"\0", len(text) + 1)
                return 1
            return 0

        function = HookFunction(call) if hook is not None else HookFunction()
        check(lib.noria_reducer_set_hook(self.handle, moment, function, None))
        self._hooks[moment] = function

    def load_plan(self, path: str) -> None:
        """Before ``seal``, with the same file on every rank: uses a plan of an earlier run."""
        check(lib.noria_reducer_load_plan(self.handle, path.encode()))

    def save_plan(self, path: str) -> None:
        """Writes the plan in use, as text."""
        check(lib.noria_reducer_save_plan(self.handle, path.encode()))

    def view(self, tensor: int) -> tuple[int, int]:
        """Arena mode: address and bytes of a tensor's gradient, until the reducer is closed."""
        address, size = c_void_p(), c_uint64()
        tensor = unsigned("tensor", tensor, 32)
        check(lib.noria_reducer_view(self.handle, tensor, byref(address), byref(size)))
        return address.value or 0, size.value

    def layout(self, tensor: int) -> tuple[int, int]:
        """Where the tensor's gradient lies, and how large the whole is, in bytes."""
        offset, total = c_uint64(), c_uint64()
        tensor = unsigned("tensor", tensor, 32)
        check(lib.noria_reducer_layout(self.handle, tensor, byref(offset), byref(total)))
        return offset.value, total.value

    def shard(self, bucket: int) -> Shard:
        """With ``shard=True``, what this rank keeps of a bucket. ``Order.ARRIVAL`` gives buckets
        other numbers once, as ``plan_version`` says; where shards lie stays."""
        info = ShardInfoStruct()
        bucket = unsigned("bucket", bucket, 32)
        check(lib.noria_reducer_shard(self.handle, bucket, byref(info)))
        return tuple_of(Shard, info)

    def shard_ranges(self) -> list[ShardRange]:
        """With ``shard=True``, what this rank keeps of each tensor: its part of the optimizer's
        work, in order of offsets within each bucket."""
        found = array_of(lib.noria_reducer_shard_ranges, self.handle, ShardRangeStruct)
        return [tuple_of(ShardRange, one) for one in found]

    def all_gather(self, data: Any, dtype: Optional[Dtype] = None) -> None:
        """Gives this rank's shards of ``data``, which is laid out as the gradients, and gets all
        others'. Every rank calls it, between steps. ``data`` is an array, as of a communicator's
        collectives, or a ``Memory``; the whole of ``layout``. ``dtype``: of its elements, where
        that is another than the gradients'; places and sizes change with the elements' size.
        The memory stays registered until a call with other memory, or ``close``: an array is held
        so long, and what is behind a ``Memory`` is to be kept by who made it."""
        memory = memory_of(data)
        # Both are held while the call may fail, which does not tell which of them is registered.
        self._gathered = (self._gathered, data)
        arguments = (self.handle, memory.address, memory.count * Dtype(memory.dtype).size)
        if dtype is None:
            check(lib.noria_reducer_all_gather(*arguments))
        else:
            check(lib.noria_reducer_all_gather_as(*arguments, dtype))
        self._gathered = data

    def step_begin(self, *, accumulate: bool = False) -> None:
        """Opens a step. Every rank does, in the same order as its collectives. One that only
        accumulates sends nothing: what is given in it comes out of the next one that does not."""
        check(lib.noria_step_begin(self.handle, int(accumulate)))

    def grad_ready(self, tensor: int, address: int = 0, stream: Optional[Stream] = None) -> None:
        """The gradient is complete. Copy mode: it is at ``address``, where the average will be
        written as well, and stays there until ``step_end`` is over. Arena mode: in its view.
        ``stream``: once the stream is here; what it does afterwards may not touch it."""
        tensor = unsigned("tensor", tensor, 32)
        check(lib.noria_grad_ready(self.handle, tensor, address, stream_struct(stream)))

    def grad_unused(self, tensors: Sequence[int]) -> None:
        """No gradient of these tensors will come in this step, so that nobody waits for them."""
        numbers = [unsigned("tensor", tensor, 32) for tensor in tensors]
        check(lib.noria_grad_unused(self.handle, (c_uint32 * len(numbers))(*numbers), len(numbers)))

    def grad_result(
        self, tensor: int, timeout_ms: int = 0, stream: Optional[Stream] = None
    ) -> Optional[int]:
        """The address of a tensor's result: in an open step as soon as its bucket is there, and
        after the step until the next one; for the work that ``stream`` does afterwards. None with
        ``Unused.KEEP`` where no rank used it."""
        address = c_void_p()
        tensor, timeout_ms = unsigned("tensor", tensor, 32), unsigned("timeout_ms", timeout_ms, 32)
        queue = stream_struct(stream)
        check(lib.noria_grad_result(self.handle, tensor, queue, timeout_ms, byref(address)))
        return address.value

    def step_end(self, stream: Optional[Stream] = None) -> StepReport:
        """Waits for the averages, or lets ``stream`` wait for them. What any rank did wrong raises
        on all of them, in this step, with the same text."""
        queue = stream_struct(stream)
        self._check_step(lib.noria_step_end(self.handle, queue, byref(self._report)))
        return self._last_report()

    def _check_step(self, status: int) -> None:
        """As check(), with what a hook of this rank raised in the step as the cause."""
        failures = self._hook_failures[:1]
        self._hook_failures.clear()
        try:
            check(status)
        except HookError as error:
            raise error from (failures[0] if failures else None)

    def step_join(self, stream: Optional[Stream] = None) -> tuple[bool, StepReport]:
        """In place of a step, on a rank that has no more inputs while others have: gives nothing to
        theirs. True once all ranks have joined, which all learn in the same step."""
        all_joined = c_uint32()
        self._check_step(
            lib.noria_step_join(
                self.handle, stream_struct(stream), byref(self._report), byref(all_joined)
            )
        )
        return bool(all_joined.value), self._last_report()

    def _last_report(self) -> StepReport:
        return tuple_of(StepReport, self._report)

    def reset(self) -> None:
        """After a failed step, on every rank: back to between steps."""
        status = lib.noria_reducer_reset(self.handle)
        self._hook_failures.clear()  # of the step that is given up
        check(status)

    def close(self) -> None:
        """Gives the reducer back; it happens by itself when nobody holds it any more."""
        self._destroy()
        self.handle = c_void_p()
        self._gathered = None
