"""Tensors as noria sees them, and the communicator that a process group's ranks share."""

from __future__ import annotations

import ctypes
from typing import Any, Iterable, Optional

import torch
import torch.distributed as dist

from noria import ArgumentError, Communicator, Dtype, Memory, Stream, unique_id

# Elements of noria's in one of torch's.
DTYPES: dict[torch.dtype, tuple[Dtype, int]] = {
    torch.float16: (Dtype.FLOAT16, 1),
    torch.bfloat16: (Dtype.BFLOAT16, 1),
    torch.float32: (Dtype.FLOAT32, 1),
    torch.float64: (Dtype.FLOAT64, 1),
    torch.complex64: (Dtype.FLOAT32, 2),
    torch.complex128: (Dtype.FLOAT64, 2),
    torch.int32: (Dtype.INT32, 1),
    torch.int64: (Dtype.INT64, 1),
    torch.uint8: (Dtype.UINT8, 1),
    torch.int8: (Dtype.INT8, 1),
}

_PACK_BYTES = 25 << 20  # tensors travel together up to this, so that small ones share a message


def device_of(tensor: torch.Tensor) -> Optional[int]:
    """The number of a tensor's CUDA device; None in the host's memory."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(
            f"a tensor on {tensor.device}: noria takes tensors in the host's memory and on CUDA "
            "devices"
        )
    return None if tensor.device.type == "cpu" else tensor.device.index


def stream_of(device: Optional[int]) -> Optional[Stream]:
    """The device's stream that this thread queues work on now; None for the host."""
    return None if device is None else Stream(torch.cuda.current_stream(device).cuda_stream, device)


def bytes_at(address: int, size: int, device: Optional[int], owner: Any) -> torch.Tensor:
    """Memory of noria's as a tensor of bytes, which keeps ``owner`` alive."""
    if device is None:
        array = type("HostBytes", (ctypes.c_char * size,), {}).from_address(address)
        array.owner = owner
        return torch.frombuffer(array, dtype=torch.uint8)
    array = type("DeviceBytes", (), {})()
    array.owner = owner
    array.__cuda_array_interface__ = {
        "shape": (size,),
        "typestr": "|u1",
        "data": (address, False),
        "version": 2,
    }
    return torch.as_tensor(array, device=torch.device("cuda", device))


def memory_of(tensor: torch.Tensor) -> Memory:
    """Where a contiguous tensor is, for ``noria.Communicator``'s calls, which want the stream of
    one on a device (``stream_of``)."""
    device_of(tensor)
    if not tensor.is_contiguous():
        raise ArgumentError(
            f"a tensor with strides {tuple(tensor.stride())}: noria takes contiguous ones"
        )
    if tensor.dtype not in DTYPES:
        raise ArgumentError(f"{tensor.dtype} is none of noria's types")
    dtype, elements = DTYPES[tensor.dtype]
    return Memory(tensor.data_ptr(), tensor.numel() * elements, dtype)


def communicator(
    process_group: Optional[dist.ProcessGroup] = None, **options: Optional[int]
) -> Communicator:
    """A communicator of the ranks of ``process_group`` (None: all), or, where torch.distributed is
    not in use, of those that the launcher's variables tell. Every rank of them calls it.

    ``options``: ``device``, ``start_timeout_ms`` and others, as of ``noria.Communicator``.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Communicator(**options)
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    identity = unique_id() if rank == 0 else bytes(128)
    box = torch.tensor(list(identity), dtype=torch.uint8)
    if dist.get_backend(process_group) == "nccl":
        box = box.cuda()
    root = 0 if process_group is None else dist.get_process_group_ranks(process_group)[0]
    dist.broadcast(box, root, group=process_group)
    return Communicator(rank, size, bytes(box.tolist()), **options)


def broadcast_tensors(comm: Communicator, tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Gives the values of ``root`` to all ranks, whatever the types; every rank gives tensors of
    the same sizes in the same order."""
    if comm.size == 1:
        return
    pack: list[torch.Tensor] = []
    pack_bytes, pack_device = 0, None
    for tensor in tensors:
        size, device = tensor.numel() * tensor.element_size(), device_of(tensor)
        if pack and (pack_bytes + size > _PACK_BYTES or device != pack_device):
            _broadcast_pack(comm, pack, pack_device, root)
            pack, pack_bytes = [], 0
        pack.append(tensor)
        pack_bytes, pack_device = pack_bytes + size, device
    if pack:
        _broadcast_pack(comm, pack, pack_device, root)


@torch.no_grad()
def _broadcast_pack(
    comm: Communicator, tensors: list[torch.Tensor], device: Optional[int], root: int
) -> None:
    # As bytes: then a pack may hold several types, and those that noria has no number for.
    pieces = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    packed = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    comm.broadcast(memory_of(packed), root, stream=stream_of(device))
    for tensor, piece in zip(tensors, packed.split([piece.numel() for piece in pieces])):
        values = piece.clone() if piece.storage_offset() % tensor.element_size() else piece
        tensor.detach().copy_(values.view(tensor.dtype).view(tensor.shape))
