"""A communication hook for DistributedDataParallel: it plans the buckets, noria averages them."""

# Without `from __future__ import annotations`: DDP compares the annotations of a hook as they are.
import queue
import threading
from typing import Any, Optional

import torch
import torch.distributed as dist

from noria import Communicator, Op
from noria.torch._tensors import communicator, device_of, memory_of, stream_of


class HookState:
    """What ``allreduce_hook`` needs of a model: give each DistributedDataParallel its own, on every
    rank.

    ``comm``: None makes one of all ranks of the default process group. For a model on a CUDA device
    that is its ``device``, or that of the ``comm``.
    """

    def __init__(self, comm: Optional[Communicator] = None, *, device: Optional[int] = None):
        self.comm = communicator(device=device) if comm is None else comm
        self._stream: Optional[torch.cuda.Stream] = None  # made with the first bucket on a device
        self._under_way: queue.SimpleQueue = queue.SimpleQueue()
        # DDP wants a future and has nobody who would wait for the work behind it.
        threading.Thread(
            target=_complete, args=(self._under_way,), name="noria-hook", daemon=True
        ).start()

    def __del__(self):
        under_way = getattr(self, "_under_way", None)
        if under_way is not None:
            under_way.put(None)


def allreduce_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket in place. For ``DistributedDataParallel.register_comm_hook``."""
    buffer = bucket.buffer()
    memory = memory_of(buffer)
    device = device_of(buffer)
    if device is not None:
        return _on_device(state, buffer, device)
    future: torch.futures.Future = torch.futures.Future()
    result = future.then(_result_of)
    if bucket.is_last():
        # Nothing is left of the backward pass to run beside it, and who waits himself is fastest.
        state.comm.all_reduce(memory, Op.AVG)
        future.set_result(buffer)
    else:
        work = state.comm.all_reduce(memory, Op.AVG, wait=False)
        state._under_way.put((work, future, buffer))
    return result


def _on_device(
    state: HookState, buffer: torch.Tensor, device: int
) -> torch.futures.Future[torch.Tensor]:
    # On a stream of its own, since the one that computes must not wait. A future of a device takes
    # an event of that stream for its result, for which DDP lets others wait.
    if state._stream is None:
        state._stream = torch.cuda.Stream(device)
    state._stream.wait_stream(torch.cuda.current_stream(device))
    future: torch.futures.Future = torch.futures.Future(devices=[buffer.device])
    with torch.cuda.stream(state._stream):
        state.comm.all_reduce(memory_of(buffer), Op.AVG, stream=stream_of(device))
        future.set_result(buffer)
    return future


def _complete(under_way: queue.SimpleQueue) -> None:
    while True:
        item = under_way.get()
        if item is None:
            return
        work, future, buffer = item
        outcome: Any = buffer
        try:
            work.wait()
        except Exception as error:  # handed to who waits for the future
            outcome = error
        future.set_result(outcome)


def _result_of(future: torch.futures.Future) -> torch.Tensor:
    # Raised in here it becomes the failure of the future that DDP waits for.
    outcome = future.value()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
