"""Gradients on a device, by way of Python: streams of the stand-in for CUDA's driver, two ranks that
are threads, each with a device of its own.

PyTorch knows nothing of these devices. So its tensors are host memory here, and what noria.torch asks
it of devices is answered by the test; what noria.torch then asks of the library is asked of it.
"""

import copy
import ctypes
import os
import threading
import unittest
from array import array
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from unittest import mock

import noria
import torch
from noria.torch import DataParallel, _data_parallel, _steps

_BOUND_S = 40
torch.set_num_threads(1)

cuda = ctypes.CDLL(os.environ["NORIA_CUDA"])
# noria::standin::memory_of(unsigned long)
_memory_of = getattr(cuda, "_ZN5noria7standin9memory_ofEm")
_memory_of.argtypes, _memory_of.restype = [c_uint64], c_void_p
# std::vector<std::string> noria::standin::violations()
_violations = getattr(cuda, "_ZN5noria7standin10violationsB5cxx11Ev")
_violations.argtypes, _violations.restype = [c_void_p], None
for name, argtypes in {
    "cuInit": [c_uint],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuStreamCreateWithPriority": [POINTER(c_void_p), c_uint, c_int],
    "cuStreamSynchronize": [c_void_p],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
}.items():
    getattr(cuda, name).argtypes = argtypes


def call(name: str, *arguments) -> None:
    status = getattr(cuda, name)(*arguments)
    assert status == 0, f"{name}() answered {status}"


def violations() -> list[str]:
    """What the stand-in saw that no stream and no event orders, in words."""
    begin_end_room = (c_uint64 * 3)()  # how C++ hands out a vector: where the caller says
    _violations(begin_end_room)
    begin, end, _ = begin_end_room
    size = 32  # of a string: where its text is, its length, and room for a short one
    return [
        ctypes.string_at(*(c_uint64 * 2).from_address(string)).decode()
        for string in range(begin, end, size)
    ]


class Device:
    """A device, current on this thread, with a stream that blocks with no other."""

    def __init__(self, number: int):
        call("cuInit", 0)
        context, stream = c_void_p(), c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(context), number)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreateWithPriority", byref(stream), 1, 0)
        self.number = number
        self.stream = noria.Stream(stream.value, number)

        self.addresses: dict[int, int] = {}  # on the device, of tensors by their host's

    def empty(self, shape: torch.Size) -> torch.Tensor:
        """A tensor of float32 whose memory is the device's, as the stand-in shows it to the host."""
        address, count = c_uint64(), max(1, shape.numel())
        call("cuMemAlloc_v2", byref(address), 4 * count)
        host = _memory_of(address.value)
        self.addresses[host] = address.value
        array = (ctypes.c_float * count).from_address(host)
        return torch.frombuffer(array, dtype=torch.float32)[: shape.numel()].view(shape)

    def holding(self, values: list[float]) -> int:
        """The address of these numbers of float32, which are there in the stream's order."""
        address, host = c_uint64(), array("f", values)
        call("cuMemAlloc_v2", byref(address), 4 * len(values))
        call(
            "cuMemcpyHtoDAsync_v2",
            address,
            host.buffer_info()[0],
            4 * len(values),
            self.stream.handle,
        )
        return address.value

    def read(self, address: int, count: int) -> list[float]:
        """What the stream finds there."""
        host = array("f", [0] * count)
        call(
            "cuMemcpyDtoHAsync_v2", host.buffer_info()[0], address, 4 * count, self.stream.handle
        )
        self.synchronize()
        return host.tolist()

    def synchronize(self) -> None:
        call("cuStreamSynchronize", self.stream.handle)


class Uses(torch.nn.Module):
    """Uses some of its layers."""

    def __init__(self, layers: torch.nn.ModuleList, used: list[int]):
        super().__init__()
        self.layers, self.used = layers, used

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return sum(self.layers[i](inputs) for i in self.used)


def run_ranks(test: unittest.TestCase, function) -> list:
    """What ``function(communicator, device)`` returned on each of two ranks."""
    identity, results, failures = noria.unique_id(), [None, None], []

    def rank(number: int) -> None:
        try:
            device = Device(number)
            comm = noria.Communicator(number, 2, identity, device=number)
            results[number] = function(comm, device)
            comm.close()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=rank, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_BOUND_S)
        test.assertFalse(thread.is_alive(), f"a rank said nothing in {_BOUND_S} s")
    if failures:
        raise failures[0]
    # Expect, of every test: nothing was read or written too early.
    test.assertEqual(violations(), [])
    return results


class Binding(unittest.TestCase):
    def test_A_collective_comes_in_the_order_of_a_stream(self):
        def rank(comm, device):
            address = device.holding([1.0 + comm.rank, 10.0])
            memory = noria.Memory(address, 2, noria.Dtype.FLOAT32)
            comm.all_reduce(memory, stream=device.stream)
            comm.all_reduce(memory, noria.Op.AVG, wait=False, stream=device.stream).wait()
            return device.read(address, 2)

        # Expect: the sums of both ranks, of which an average changes nothing.
        self.assertEqual(run_ranks(self, rank), [[3, 20], [3, 20]])

    def test_A_step_averages_what_streams_bring(self):
        def rank(comm, device):
            reducer = noria.Reducer(comm, on_device=True, max_in_flight=1)
            ids = [reducer.add(f"t{i}", 3, shape=(1, 3), strides=(3, 1)) for i in range(2)]
            reducer.seal()
            reducer.step_begin()
            addresses = [device.holding([comm.rank + i, 4, 8 * comm.rank]) for i in ids]
            for i, address in zip(ids, addresses):
                reducer.grad_ready(i, address, device.stream)
            reducer.step_end(device.stream)
            return [device.read(address, 3) for address in addresses]

        # Expect: averages, where the gradients were.
        averages = [[0.5, 4, 4], [1.5, 4, 4]]
        self.assertEqual(run_ranks(self, rank), [averages, averages])

    def test_A_shape_with_gaps_is_refused_by_name(self):
        def rank(comm, _device):
            reducer = noria.Reducer(comm, on_device=True)
            with self.assertRaisesRegex(noria.ArgumentError, "weight"):
                reducer.add("weight", 3, shape=(1, 3), strides=(6, 2))
            with self.assertRaisesRegex(noria.ArgumentError, "1 dimensions and 2 strides"):
                reducer.add("weight", 3, shape=(3,), strides=(3, 1))

        run_ranks(self, rank)

    def test_A_stream_of_another_device_is_refused(self):
        def rank(comm, device):
            other = noria.Stream(device.stream.handle, 1 - device.number)
            memory = noria.Memory(device.holding([1.0]), 1, noria.Dtype.FLOAT32)
            with self.assertRaises(noria.ArgumentError):
                comm.all_reduce(memory, stream=other)

        run_ranks(self, rank)


class Module(unittest.TestCase):
    def run_ranks(self, rank) -> list:
        """``run_ranks()``, where PyTorch finds what lies on a device in the host's memory."""
        local = threading.local()  # the device of each rank's thread
        tensor_address = torch.Tensor.data_ptr

        def known(comm, device):
            local.device = device
            return rank(comm, device)

        def bytes_at(address, size, _device, owner):
            host = type("Bytes", (ctypes.c_char * size,), {}).from_address(_memory_of(address))
            host.owner = owner
            return torch.frombuffer(host, dtype=torch.uint8)

        def address_of(tensor):
            host = tensor_address(tensor)
            return local.device.addresses.get(host, host)

        with mock.patch.multiple(
            _steps,
            bytes_at=bytes_at,
            device_of=lambda _tensor: local.device.number,
            stream_of=lambda _device: local.device.stream,
        ), mock.patch.object(
            _data_parallel, "device_of", lambda _tensor: local.device.number
        ), mock.patch.object(
            _steps.Slot, "empty", lambda slot: local.device.empty(slot.shape)
        ), mock.patch.object(torch.Tensor, "data_ptr", address_of):
            return run_ranks(self, known)

    def test_An_unused_parameter_of_a_device_gets_the_others_average(self):
        modules = [torch.nn.ModuleList([torch.nn.Linear(2, 1) for _ in range(3)]) for _ in range(2)]

        def rank(comm, device):
            used = [0, 1] if comm.rank == 0 else [0]
            module = Uses(modules[comm.rank], used)
            for layer in used:  # gradients are added to what is there, on the device
                for parameter in module.layers[layer].parameters():
                    parameter.grad = device.empty(parameter.shape).zero_()
            model = DataParallel(module, comm, find_unused_parameters=True)
            model(torch.ones(1, 2)).sum().backward()
            device.synchronize()
            return [p.grad if p.grad is None else p.grad.clone() for p in module.parameters()]

        for weight, bias, half, half_bias, none, none_bias in self.run_ranks(rank):
            # Expect: what both use whole, what rank 0 uses halved, what nobody uses without.
            self.assertEqual((weight.tolist(), bias.tolist()), ([[1, 1]], [1]))
            self.assertEqual((half.tolist(), half_bias.tolist()), ([[0.5, 0.5]], [0.5]))
            self.assertEqual((none, none_bias), (None, None))

    def test_The_view_of_a_parameter_that_no_rank_used_stays_as_it_was(self):
        modules = [torch.nn.ModuleList([torch.nn.Linear(2, 1) for _ in range(3)]) for _ in range(2)]

        def rank(comm, device):
            module = Uses(modules[comm.rank], [0, 1, 2])
            model = DataParallel(
                module, comm, find_unused_parameters=True, gradient_as_bucket_view=True
            )
            model(torch.ones(1, 2)).sum().backward()
            device.synchronize()
            used, given, left_out = ([*layer.parameters()] for layer in module.layers)
            views = [p.grad for p in module.parameters()]
            for view in views:
                view.fill_(5.5 + comm.rank)
            for parameter in used:
                parameter.grad.zero_()
            for parameter in left_out:  # the wrapper gives a gradient that is there
                parameter.grad = None
            module.used = [0]
            model(torch.ones(1, 2)).sum().backward()
            device.synchronize()
            self.assertEqual([p.grad is None for p in (*given, *left_out)], [False] * 2 + [True] * 2)
            return [view.clone() for view in views]

        for number, views in enumerate(self.run_ranks(rank)):
            # Expect: each rank's own, but for what was used.
            for view in views[:2]:
                self.assertTrue(torch.equal(view, torch.ones_like(view)), view)
            for view in views[2:]:
                self.assertTrue(torch.equal(view, torch.full_like(view, 5.5 + number)), view)

    def test_A_module_is_averaged_in_the_order_of_the_current_stream(self):
        alone = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))

        def rank(comm, device):
            module = copy.deepcopy(alone)
            model = DataParallel(module, comm, gradient_as_bucket_view=True)
            averages = []
            for step in range(3):
                # PyTorch works on the host here, so that the device must stand still meanwhile.
                device.synchronize()
                model.zero_grad(set_to_none=False)
                model(torch.full((2, 4), 1.0 + comm.rank + step)).sum().backward()
                device.synchronize()
                averages.append([p.grad.clone() for p in module.parameters()])
            return averages

        first, second = self.run_ranks(rank)

        for step in range(3):
            alone.zero_grad()
            for rank_number in range(2):
                (alone(torch.full((2, 4), 1.0 + rank_number + step)).sum() / 2).backward()
            for ours, others, expected in zip(first[step], second[step], alone.parameters()):
                # Expect: what one process makes of both ranks' inputs; the same bits on both ranks.
                torch.testing.assert_close(ours, expected.grad)
                self.assertTrue(torch.equal(ours, others))


if __name__ == "__main__":
    unittest.main()
