"""noria for PyTorch: gradients averaged between ranks while the backward pass runs.

    model = noria.torch.DataParallel(model)      # in place of DistributedDataParallel
    loss = loss_of(model(inputs)); loss.backward(); optimizer.step()

or below DistributedDataParallel, which goes on to plan the buckets::

    ddp.register_comm_hook(noria.torch.HookState(), noria.torch.allreduce_hook)

PyTorch 1.13 and later; gradients in the host's memory, or on a CUDA device.
"""

from noria.torch._data_parallel import DataParallel
from noria.torch._hook import HookState, allreduce_hook
from noria.torch._tensors import broadcast_tensors, communicator, memory_of, stream_of
