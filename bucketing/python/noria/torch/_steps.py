"""The steps of a model: which gradients of a backward pass were given to the reducer, and when the
pass is over.

A step begins with the first gradient of a synchronised backward pass and ends when autograd has
finished that pass, before ``backward()`` returns. What the library finds wrong with it is raised
from ``backward()``, on every rank.

Threads: the one that runs the backward pass.
"""

from __future__ import annotations

import functools
import weakref
from typing import Callable, NamedTuple, Optional

import torch
from torch.autograd import Variable

from noria import ArgumentError, NoriaError, Op, Reducer, StateError, StepReport, Stream
from noria._library import last_error, lib
from noria._structs import StreamStruct
from noria.communicator import stream_struct
from noria.errors import error_of
from noria.torch._tensors import bytes_at, device_of, memory_of, stream_of


class Slot(NamedTuple):
    """A parameter, and how its gradient must lie in memory to be the same bytes on every rank."""

    name: str
    parameter: torch.nn.Parameter
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(
            self.shape, self.strides, dtype=self.dtype, device=self.device
        )

    def is_as_registered(self) -> bool:
        p = self.parameter
        return (
            p.requires_grad
            and p.shape == self.shape
            and p.dtype is self.dtype
            and p.device == self.device
        )


def slot_of(name: str, parameter: torch.nn.Parameter) -> Slot:
    """Keeps the parameter's strides if it fills its memory without gaps, as channels_last does."""
    strides = tuple(parameter.stride())
    expected = 1
    for stride, size in sorted(zip(strides, parameter.size())):
        if size == 1:
            continue
        if stride != expected:
            strides = torch.empty(parameter.size(), device="meta").stride()
            break
        expected *= size
    return Slot(name, parameter, parameter.size(), strides, parameter.dtype, parameter.device)


class Steps:
    """Gives gradients to a sealed reducer from autograd's hooks, and ends a step with its pass."""

    def __init__(self, reducer: Reducer, slots: list[Slot], *, arena: bool, keep_unused: bool):
        self._reducer = reducer
        self._handle = reducer.handle
        self._slots = slots
        self._keep_unused = keep_unused
        self._device = device_of(slots[0].parameter)  # of all of them
        self._streams: dict[Stream, StreamStruct] = {}
        self._views = (
            [self._view_of(i, slot) for i, slot in enumerate(slots)] if arena else None
        )
        self._is_armed = True  # the last forward pass asked for synchronised gradients
        self._is_open = False
        # The end of the pass under way. Only autograd holds it, so it is gone with a pass that
        # raised, which never calls it.
        self._queued_end: Callable[[], Optional[functools.partial]] = _no_end
        self._given = bytearray(len(slots))
        # Had a gradient in a pass that was not synchronised, since the last one that was.
        self._accumulated = bytearray(len(slots))
        # What the library reads and writes must outlive the step, whatever is done to .grad. On a
        # device with the stream that it was given by.
        self._held: list[Optional[torch.Tensor]] = [None] * len(slots)
        self._given_by: list[Optional[Stream]] = [None] * len(slots)
        self._staged: list[tuple[torch.Tensor, torch.Tensor]] = []
        # On a device: what an unused parameter gives, and gets its average in.
        self._zeros: dict[int, torch.Tensor] = {}
        # What an unused parameter's gradient was, in case that no rank uses it.
        self._kept: dict[int, torch.Tensor] = {}
        self._first_error: Optional[NoriaError] = None
        self._refused: Optional[ArgumentError] = None  # a gradient that was not given
        self.last_report: Optional[StepReport] = None
        self.copied = 0  # arena: gradients that did not lie in their view
        self._hooks = [_hook(slot.parameter, self._hook_of(i)) for i, slot in enumerate(slots)]

    # ---- before the backward pass ----------------------------------------------------------------

    def arm(self, is_synchronised: bool) -> None:
        """A forward pass begins, whose gradients are to be averaged or only accumulated."""
        if _is_in_backward():  # a recomputation: the pass that is under way goes on
            return
        if self._is_open:
            raise StateError(
                "the backward pass before did not end, so its step is still open: call reset() on "
                "every rank. (Checkpoint parts of the module, not its DataParallel.)"
            )
        self._is_armed = is_synchronised

    def on_output(self, _gradient: torch.Tensor) -> None:
        """The hook of the model's outputs. It runs in the outermost pass, where a parameter's may
        run in one inside it (re-entrant checkpoints), at whose end the step is not over."""
        if self._is_armed:
            self._queue_end()

    def _queue_end(self) -> None:
        if self._queued_end() is None:
            end = functools.partial(self._end_of_backward)
            Variable._execution_engine.queue_callback(end)
            self._queued_end = weakref.ref(end)

    # ---- gradients -------------------------------------------------------------------------------

    def _hook_of(self, index: int) -> Callable[..., None]:
        def on_gradient(*_arguments) -> None:
            self._on_gradient(index)

        return on_gradient

    def _on_gradient(self, index: int) -> None:
        gradient = self._slots[index].parameter.grad
        if gradient is None:
            return
        if not self._is_armed:
            self._accumulated[index] = 1
            return
        self._queue_end()
        if not self._is_open:
            self._reducer.step_begin()
            self._is_open = True
        self._give(index, gradient)

    def _give(self, index: int, gradient: torch.Tensor) -> None:
        self._given[index] = 1
        try:
            address = self._place(index, gradient)
        except RuntimeError as error:
            self._refuse(index, str(error))
            return
        status = lib.noria_grad_ready(self._handle, index, address, self._producer(index))
        # Not raised here: the step must come to its end on this rank as on the others, where it
        # fails on all of them with the same text.
        if status < 0 and self._first_error is None:
            self._first_error = error_of(status, last_error())

    def _producer(self, index: int) -> Optional[StreamStruct]:
        """The stream on which autograd has queued this gradient: what is current in its hook."""
        if self._device is None:
            return None
        stream = self._given_by[index] = stream_of(self._device)
        struct = self._streams.get(stream)
        if struct is None:
            struct = self._streams[stream] = stream_struct(stream)
        return struct

    def _refuse(self, index: int, why: str) -> None:
        # Nor is this: the library misses the gradient, and says so on the other ranks.
        if self._refused is None:
            name = self._slots[index].name
            self._refused = ArgumentError(f"the gradient of parameter {name} is refused: {why}")

    def _place(self, index: int, gradient: torch.Tensor) -> int:
        slot = self._slots[index]
        if gradient.layout is not torch.strided:
            raise RuntimeError("it is sparse; give the module's layer or function sparse=False")
        if self._views is not None:
            view = self._views[index]
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient.detach())
                slot.parameter.grad = view
                self.copied += 1
            return 0
        is_lazy = gradient.is_conj() or gradient.is_neg()  # other bytes than its values
        if is_lazy or gradient.stride() != slot.strides or gradient.dtype is not slot.dtype:
            staged = slot.empty()
            staged.copy_(gradient.detach())
            self._staged.append((gradient, staged))
            gradient = staged
        self._held[index] = gradient
        return gradient.data_ptr()

    # ---- the end of the backward pass ------------------------------------------------------------

    def _end_of_backward(self) -> None:
        self._queued_end = _no_end
        if not self._is_open:
            return  # no parameter had a gradient, as in torch.autograd.grad()
        try:
            left_out = self._give_the_rest()
            self._end_step()
            used = self._used_by_some(left_out) if self._keep_unused else None
            if self._refused is not None or self._first_error is not None:
                raise self._refused or self._first_error
            self._take_results(left_out, used)
        finally:
            self._clear()

    def _end_step(self) -> None:
        try:
            consumer = stream_of(self._device)
            self.last_report = self._reducer.step_end(consumer)
        except NoriaError as error:
            # That a gradient is missing is what the others know; why, this rank.
            raise self._refused or error from None
        if consumer is not None:
            self._outlive(consumer)

    def _outlive(self, consumer: Stream) -> None:
        """The host lets go of gradients before the device is through with them. The allocator gives
        memory out again in the order of the stream that it was asked on, which may not wait for the
        results as the consumer does."""
        for gradient, stream in zip(self._held, self._given_by):
            if gradient is not None and stream != consumer:
                gradient.record_stream(torch.cuda.current_stream(self._device))

    def _give_the_rest(self) -> list[int]:
        """The gradients of passes before this one that were not synchronised, where this one left
        them out. Returns those that have none, for which the reducer has its policy."""
        left_out = []
        index = self._given.find(0)
        while index >= 0:
            gradient = self._slots[index].parameter.grad
            # Where parameters may be unused, one that is not zeroed between steps is the sum of
            # these steps, as DDP has it, and must stay the same on all ranks.
            if gradient is not None and (self._accumulated[index] or self._keep_unused):
                if not self._accumulated[index]:
                    self._kept[index] = gradient.detach().clone()
                self._give(index, gradient)
            else:
                left_out.append(index)
                if self._device is not None and self._keep_unused and self._views is None:
                    self._zeros[index] = self._slots[index].empty().zero_()
                    self._give(index, self._zeros[index])
            index = self._given.find(0, index + 1)
        return left_out

    def _used_by_some(self, left_out: list[int]) -> list[int]:
        """Of each parameter whether any rank used it, in this pass or in one that it accumulated:
        the reducer cannot tell, for it is given gradients that were there before as well."""
        used = torch.ones(len(self._slots), dtype=torch.int32)
        for index in [*left_out, *self._kept]:
            used[index] = 0
        if self._refused is not None:  # no gradient is missing here, so that others must be told
            used[0] = 2
        self._reducer.communicator.all_reduce(memory_of(used), Op.MAX)
        if used[0] == 2 and self._refused is None:
            raise ArgumentError("another rank refused a gradient of this step, and says which")
        return used.tolist()

    def _take_results(self, left_out: list[int], used: Optional[list[int]]) -> None:
        for gradient, staged in self._staged:
            gradient.detach().copy_(staged)
        for index, before in self._kept.items():
            if used is not None and not used[index]:
                self._slots[index].parameter.grad.detach().copy_(before)
        for index in left_out:
            if used is not None and not used[index]:
                continue
            if index in self._zeros:
                self._slots[index].parameter.grad = self._zeros[index]
                continue
            address = self._reducer.grad_result(index, stream=stream_of(self._device))
            # Used by no rank: none, so that no optimizer moves it by momentum or decay.
            if address is not None:
                self._slots[index].parameter.grad = self._result(index, address)

    def _result(self, index: int, address: int) -> torch.Tensor:
        if self._views is not None:
            return self._views[index]
        result = self._slots[index].empty()
        result.copy_(self._tensor_at(address, self._slots[index]))
        return result

    def _tensor_at(self, address: int, slot: Slot) -> torch.Tensor:
        size = slot.parameter.numel() * slot.parameter.element_size()
        if size == 0:
            return slot.empty()
        flat = bytes_at(address, size, self._device, self._reducer).view(slot.dtype)
        return flat.as_strided(slot.shape, slot.strides)

    def _view_of(self, index: int, slot: Slot) -> torch.Tensor:
        # The reducer hangs on each view, which lies in its memory.
        return self._tensor_at(self._reducer.view(index)[0], slot)

    def _clear(self) -> None:
        self._is_open = False
        self._first_error = None
        self._refused = None
        self._given = bytearray(len(self._slots))
        self._accumulated = bytearray(len(self._slots))
        self._held = [None] * len(self._slots)
        self._given_by = [None] * len(self._slots)
        self._staged = []
        self._zeros = {}
        self._kept = {}

    # ---- failures, and the end -------------------------------------------------------------------

    def reset(self) -> None:
        """After a failed step, or a backward pass that raised: back to between steps, on every
        rank."""
        self._clear()
        self._reducer.reset()

    def close(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _no_end() -> None:
    """In place of a reference to an end that is queued."""


class _Hook:
    """A hook on a parameter's accumulation. Before PyTorch 2.1 it hangs on the node of the graph
    that accumulates, which lives as long as somebody holds it."""

    def __init__(self, handle, node=None):
        self._handle, self._node = handle, node

    def remove(self) -> None:
        self._handle.remove()
        self._node = None


def _hook(parameter: torch.nn.Parameter, function: Callable[..., None]) -> _Hook:
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return _Hook(parameter.register_post_accumulate_grad_hook(function))
    with torch.enable_grad():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return _Hook(node.register_hook(function), node)


def _is_in_backward() -> bool:
    task = getattr(torch._C, "_current_graph_task_id", None)  # since PyTorch 2.0
    return task is not None and task() != -1
