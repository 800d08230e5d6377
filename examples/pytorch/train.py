"""Trains a small CNN on several ranks, with noria in place of DistributedDataParallel.

    torchrun --nproc_per_node 2 train.py

with the package on the way: ``cmake --install build --prefix /opt/noria``, then
``export PYTHONPATH=/opt/noria/share/noria/python``. On a machine without an RDMA device noria takes
its software HCA. (Debian 12's torchrun wants ``--redirects=9:3 --tee=9:3`` as well.)
Where PyTorch sees GPUs, each rank trains on one of its own, and NCCL carries the buckets.

The task needs no download: to tell which of the quarters of an image holds a bright square.
"""

from __future__ import annotations

import argparse
import os

import noria
import noria.torch
import torch
from torch import nn
from torch.nn import functional as F


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 4),
    )


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.rand(size, 1, 16, 16, generator=generator)
    quarters = torch.randint(4, (size,), generator=generator)
    places = torch.randint(6, (size, 2), generator=generator)
    for image, quarter, (row, column) in zip(images, quarters.tolist(), places.tolist()):
        row, column = row + quarter // 2 * 8, column + quarter % 2 * 8
        image[0, row : row + 3, column : column + 3] += 1
    return images, quarters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="images a rank and step (16)")
    parser.add_argument("--checkpoint", help="where rank 0 writes the trained parameters")
    options = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    # The one line that differs from a script for one process. Ranks and where they meet come from
    # the launcher's variables; parameters come from rank 0.
    net = noria.torch.DataParallel(model().to(device))

    rank, size = net.comm.rank, net.comm.size
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)  # each rank sees data of its own
    for step in range(options.steps):
        images, quarters = batch(options.batch, generator)
        loss = F.cross_entropy(net(images.to(device)), quarters.to(device))
        optimizer.zero_grad()
        loss.backward()  # gradients are averaged while it runs
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            exposed_ms = net.last_step.exposed_ns / 1e6
            print(f"step {step:3}: loss {loss:.3f}, exposed communication {exposed_ms:.2f} ms")

    net.eval()
    net.sync_buffers()  # rank 0's running means on all ranks
    with torch.no_grad():
        images, quarters = batch(512, generator)
        right = (net(images.to(device)).argmax(1).cpu() == quarters).float().mean().reshape(1)
    net.comm.all_reduce(noria.torch.memory_of(right), noria.Op.AVG)
    if rank == 0:
        print(f"{right.item():.1%} right of {512 * size} images")
        if options.checkpoint:
            torch.save(net.state_dict(), options.checkpoint)  # loads into a plain model() as well
    if options.steps >= 60 and right.item() < 0.9:
        raise SystemExit("it did not learn what it should have")


if __name__ == "__main__":
    main()
