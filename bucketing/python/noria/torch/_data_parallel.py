"""DataParallel: a module whose gradients are averaged over the ranks as they come."""

from __future__ import annotations

import contextlib
import numbers
import types
import weakref
import zlib
from array import array
from typing import Any, Iterator, Optional

import torch

from noria import (
    ArgumentError,
    Average,
    Communicator,
    MismatchError,
    Op,
    Order,
    Plan,
    Reducer,
    StateError,
    StepReport,
    Unused,
)
from noria.torch._steps import Slot, Steps, slot_of
from noria.torch._tensors import DTYPES, broadcast_tensors, communicator, device_of


class DataParallel(torch.nn.Module):
    """Trains ``module`` on every rank with the averages of all ranks' gradients.

    Made on every rank, from the same module. Parameters and buffers are taken from rank 0. From
    then on ``backward()`` leaves averages in ``.grad``, bitwise the same on all ranks, and raises
    what went wrong with a step on any of them, on all of them.

    Parameters lie all in the host's memory or all on one CUDA device, where averages come in the
    order of the stream that called ``backward()`` and the host waits for no device.

    ``comm``: None makes one (see ``communicator``); give each of several models its own. A model on
    a device needs one of that ``device``.
    ``bucket_cap_mb``: MiB at which a bucket closes; None is 25, after a first one of 1.
    ``broadcast_buffers``: rank 0's buffers are given to all before each synchronised forward pass
    in training mode. No pass in evaluation mode communicates; ``sync_buffers()`` does.
    ``find_unused_parameters``: a parameter may have no gradient, on some ranks or on all. Used by
    none, its ``.grad`` stays as it was. At least one parameter of each rank must have one.
    ``static_graph``: every step uses the same parameters, each as often as in the first; one whose
    gradient comes in several parts (a layer in several re-entrant checkpoints) needs it.
    ``plan``, ``order``: how gradients are cut into buckets, and by what these are filled.
    ``average``: when gradients are divided by the number of ranks. ``wire_dtype``: torch.bfloat16
    or torch.float16 halve what float32 gradients put on the wire, rounded.
    ``check_finite``: an infinity, or what is no number, raises from backward() on all ranks.
    ``gradient_as_bucket_view``: ``.grad`` lies in noria's memory, which saves a copy of all
    gradients; use ``zero_grad(set_to_none=False)``, or each is copied after all.

    ``state_dict()`` is the module's own; one of DistributedDataParallel loads as well. Neither the
    set of parameters nor ``requires_grad`` may change afterwards; forward() raises if it did.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        comm: Optional[Communicator] = None,
        *,
        bucket_cap_mb: Optional[float] = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        plan: Plan = Plan.DDP,
        order: Order = Order.REVERSE,
        average: Average = Average.POST,
        wire_dtype: Optional[torch.dtype] = None,
        check_finite: bool = False,
    ):
        super().__init__()
        self.module = module
        self.broadcast_buffers = broadcast_buffers
        slots = [slot_of(name, p) for name, p in module.named_parameters() if p.requires_grad]
        _check_module(module, slots)
        device = device_of(slots[0].parameter)
        self.comm = communicator(device=device) if comm is None else comm
        cap = 0 if bucket_cap_mb is None else _bytes_of(bucket_cap_mb)
        reducer = Reducer(
            self.comm,
            arena=gradient_as_bucket_view,
            bucket_bytes=cap,
            first_bucket_bytes=cap,
            plan=plan,
            order=order,
            average=average,
            wire_dtype=None if wire_dtype is None else DTYPES[wire_dtype][0],
            unused=Unused.KEEP if find_unused_parameters or static_graph else Unused.ERROR,
            static_graph=static_graph,
            check_finite=check_finite,
            on_device=device is not None,
        )
        for slot in slots:
            dtype, elements = DTYPES[slot.parameter.dtype]
            reducer.add(slot.name, slot.parameter.numel() * elements, dtype)
        reducer.seal()
        _check_agreement(self.comm, module, slots)
        broadcast_tensors(self.comm, [p for p in module.parameters()])
        self.sync_buffers()
        self._steps = Steps(
            reducer,
            slots,
            arena=gradient_as_bucket_view,
            keep_unused=find_unused_parameters and not static_graph,
        )
        self._slots = slots
        self._is_synchronised = True
        self._close = weakref.finalize(self, self._steps.close)
        self._register_state_dict_hook(_without_prefix)
        self._register_load_state_dict_pre_hook(_with_prefix, with_module=True)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        is_training = torch.is_grad_enabled()
        if is_training:
            self._check_parameters()
            self._steps.arm(self._is_synchronised)
            if self.training and self.broadcast_buffers and self._is_synchronised:
                self.sync_buffers()
        output = self.module(*inputs, **named_inputs)
        if is_training:
            for tensor in _tensors_in(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._steps.on_output)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes of forward passes within it only accumulate gradients. The next one
        outside averages the sums, of every parameter that had a gradient in any of them."""
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    def sync_buffers(self) -> None:
        """Gives rank 0's buffers to all ranks. Every rank calls it, between steps."""
        broadcast_tensors(self.comm, list(self.module.buffers()))

    def reset(self) -> None:
        """After a backward pass that raised, on every rank: the next one begins anew. Gradients are
        undefined until they are zeroed."""
        self._steps.reset()

    @property
    def last_step(self) -> Optional[StepReport]:
        """What the last synchronised backward pass cost; None before the first."""
        return self._steps.last_report

    @property
    def copied_gradients(self) -> int:
        """With ``gradient_as_bucket_view``: how many gradients, so far, did not lie in their view
        and were copied into it."""
        return self._steps.copied

    def close(self) -> None:
        """Takes the hooks off the parameters, which the module keeps with their gradients."""
        self._close()

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(
            "a noria.torch.DataParallel is neither copied nor pickled, for its hooks and its "
            "communicator are of this process: take its .module, or its state_dict()"
        )

    def _check_parameters(self) -> None:
        trained = [p for p in self.module.parameters() if p.requires_grad]
        is_same = len(trained) == len(self._slots) and all(
            p is slot.parameter and slot.is_as_registered() for p, slot in zip(trained, self._slots)
        )
        if not is_same:
            raise StateError(
                f"the {len(trained)} parameters that the module trains are not as they were when "
                f"its DataParallel was made, with {len(self._slots)} (replaced, added, frozen, "
                "thawed, resized, moved or of another type): make a new one"
            )


def _bytes_of(mebibytes: float) -> int:
    is_number = isinstance(mebibytes, numbers.Real)
    if not is_number or not 1 <= mebibytes * (1 << 20) < 1 << 63:
        raise ArgumentError(
            f"bucket_cap_mb is {mebibytes!r}: it is a number of MiB, and a byte or more"
        )
    return int(mebibytes * (1 << 20))


def _check_module(module: torch.nn.Module, slots: list[Slot]) -> None:
    if not slots:
        raise ArgumentError(
            "no parameter of the module requires a gradient: there is nothing to do"
        )
    for slot in slots:
        if slot.device.type not in ("cpu", "cuda") or slot.device != slots[0].device:
            raise ArgumentError(
                f"parameter {slot.name} is on {slot.device}, and {slots[0].name} on "
                f"{slots[0].device}: all lie in the host's memory, or all on one CUDA device"
            )
        if slot.parameter.dtype not in DTYPES:
            raise ArgumentError(
                f"parameter {slot.name} is {slot.parameter.dtype}, which noria does not average"
            )
    for name, part in module.named_modules():
        if getattr(part, "sparse", False) and isinstance(
            part, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise ArgumentError(
                f"{name} has sparse gradients, which noria does not average: sparse=False"
            )


def _check_agreement(comm: Communicator, module: torch.nn.Module, slots: list[Slot]) -> None:
    """seal() has compared options, and of what is trained names, types and counts of elements. Here
    follow its shapes and strides, and all of what only takes rank 0's values, which travel as
    bytes; whoever disagrees, all ranks say so."""
    tensors = [
        f"parameter {s.name}, of shape {tuple(s.parameter.size())}, strides {s.strides}"
        for s in slots
    ]
    for kind, named in (
        ("frozen parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        tensors += [
            f"{kind} {name}, {tensor.dtype} of shape {tuple(tensor.size())}"
            for name, tensor in named
            if not tensor.requires_grad
        ]
    count = array("q", [len(tensors)])
    comm.all_reduce(count, Op.MAX)
    tensors += ["none"] * (count[0] - len(tensors))
    digests = [zlib.crc32(text.encode()) for text in tensors]
    extremes = array("q", [*digests, *(-digest for digest in digests)])
    comm.all_reduce(extremes, Op.MAX)
    for i, tensor in enumerate(tensors):
        if extremes[i] != -extremes[count[0] + i]:
            raise MismatchError(
                f"ranks differ in tensor {i} of the module, which on rank {comm.rank} is {tensor}; "
                "make the same module on every rank"
            )


def _tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """The tensors in containers and in the attributes of objects, whatever their classes."""
    rest, seen = [output], {}
    while rest:
        value = rest.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value  # held, so that no other object takes its id
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
        elif not isinstance(value, (type, torch.nn.Module, types.ModuleType)):
            rest.extend(getattr(value, "__dict__", {}).values())
            for kind in type(value).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                for name in (slots,) if isinstance(slots, str) else slots:
                    rest.append(getattr(value, name, None))


def _without_prefix(_self, state: dict, prefix: str, _metadata) -> None:
    """The keys are those of the module: what it is wrapped in does not concern a checkpoint."""
    inner = f"{prefix}module."
    for key in [key for key in state if key.startswith(inner)]:
        state[prefix + key[len(inner) :]] = state.pop(key)


def _with_prefix(model: DataParallel, state: dict, prefix: str, *_arguments) -> None:
    keys = [key for key in state if key.startswith(prefix)]
    inner = f"{prefix}module."
    is_ddps = all(key.startswith(inner) for key in keys) and not hasattr(model.module, "module")
    if not is_ddps:  # DistributedDataParallel writes the keys as they are needed here
        for key in keys:
            state[inner + key[len(prefix) :]] = state.pop(key)
