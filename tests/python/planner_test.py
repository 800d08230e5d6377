"""DDP's plan is PyTorch's own planner's, on random lists of tensors.

PyTorch emits buckets that reached their limit in order, and what never did in the order of a hash
table: the former are compared in order, the latter as a set.
"""

import random
import subprocess
import sys

import torch
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size as assign

LISTS = 10_000
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}


def random_list(rng):
    dtypes = rng.sample(sorted(DTYPES), rng.randint(1, len(DTYPES)))
    count = rng.randint(1, 40)
    numels = [0 if rng.random() < 0.1 else rng.randrange(300) for _ in range(count)]
    tensors = [(rng.choice(dtypes), numel) for numel in numels]
    order = list(range(count))[::-1]
    if rng.random() < 0.5:
        rng.shuffle(order)  # as gradients may arrive
    return tensors, order, [1 + rng.randrange(1000), 1 + rng.randrange(4000)]


def of_torch(tensors, order, limits):
    """Buckets that closed, in order, and those that did not."""
    made = [torch.empty(tensors[i][1], dtype=DTYPES[tensors[i][0]]) for i in order]
    assigned = assign(made, limits, [False] * len(made), order)
    buckets = assigned[0] if isinstance(assigned, tuple) else assigned
    return split(tensors, buckets, limits)


def split(tensors, buckets, limits):
    closed, left, seen = [], set(), set()
    for bucket in buckets:
        dtype = tensors[bucket[0]][0]
        element = torch.empty(0, dtype=DTYPES[dtype]).element_size()
        size = sum(tensors[i][1] for i in bucket) * element
        if size >= limits[1 if dtype in seen else 0]:
            closed.append(tuple(bucket))
        else:
            left.add(tuple(bucket))
        seen.add(dtype)
    return closed, left


def main():
    rng = random.Random(20261130)
    lists = [random_list(rng) for _ in range(LISTS)]
    text = "".join(
        f"{limits[0]} {limits[1]} {len(tensors)} "
        + " ".join(f"{dtype} {numel}" for dtype, numel in tensors)
        + " "
        + " ".join(map(str, order))
        + "\n"
        for tensors, order, limits in lists
    )
    planner = subprocess.run(
        [sys.argv[1]], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    answers = planner.stdout.splitlines()
    assert len(answers) == LISTS, f"{len(answers)} plans of {LISTS} lists"
    for number, ((tensors, order, limits), answer) in enumerate(zip(lists, answers)):
        buckets = [[int(i) for i in bucket.split(",")] for bucket in answer.split(";")]
        ours = split(tensors, buckets, limits)
        theirs = of_torch(tensors, order, limits)
        assert ours == theirs, (
            f"list {number}: {tensors} in order {order} with {limits}: {ours}, PyTorch {theirs}"
        )
    print(f"{LISTS} lists are planned as PyTorch {torch.__version__} plans them")


if __name__ == "__main__":
    main()
