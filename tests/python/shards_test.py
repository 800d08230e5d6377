"""Sharded reducers, and what is observed of them, without any framework."""

import ctypes
import gc
import os
import subprocess
import sys
import unittest
import weakref
from array import array

import noria
from ranks import run_ranks

SIZES = (1000, 3, 0, 517)  # of the tensors
RATE = 0.5


def gradient(rank: int, step: int, tensor: int, element: int) -> float:
    """Whole numbers, of which sums, halves and products with RATE are exact."""
    return float((7 * rank + 5 * step + 3 * tensor + element) % 64)


def floats(address: int, count: int):
    return (ctypes.c_float * count).from_address(address)


def refusal(call) -> tuple:
    """What a call raises: its type's name and its text."""
    try:
        call()
    except noria.NoriaError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


class Shards:
    """A sharded reducer of the tensors in SIZES, and gradients of step after step."""

    def __init__(self, comm):
        self.rank = comm.rank
        self.reducer = noria.Reducer(comm, shard=True, first_bucket_bytes=1024, bucket_bytes=2048)
        self.ids = [self.reducer.add(f"tensor {i}", size) for i, size in enumerate(SIZES)]
        self.reducer.seal()

    def step(self, step: int) -> noria.StepReport:
        data = [
            (ctypes.c_float * size)(*(gradient(self.rank, step, i, e) for e in range(size)))
            for i, size in zip(self.ids, SIZES)
        ]
        self.reducer.step_begin()
        for i in reversed(self.ids):
            self.reducer.grad_ready(i, ctypes.addressof(data[i]))
        return self.reducer.step_end()


class Zero(unittest.TestCase):
    def test_Shards_that_are_updated_and_gathered_equal_full_averaging_bit_for_bit(self):
        def rank(comm):
            full = noria.Reducer(comm, arena=True)
            ids = [full.add(f"tensor {i}", size) for i, size in enumerate(SIZES)]
            full.seal()
            views = [floats(full.view(i)[0], size) for i, size in zip(ids, SIZES)]
            expected = [array("f", [1.0] * size) for size in SIZES]
            shards = Shards(comm)
            parameters = array("f", [1.0] * (shards.reducer.layout(0)[1] // 4))
            for step in range(3):
                full.step_begin()
                for i in ids:
                    for e in range(SIZES[i]):
                        views[i][e] = gradient(comm.rank, step, i, e)
                    full.grad_ready(i)
                full.step_end()
                for weights, average in zip(expected, views):
                    for e in range(len(weights)):
                        weights[e] -= RATE * average[e]

                shards.step(step)
                for part in shards.reducer.shard_ranges():
                    start, average = part.offset // 4, floats(part.gradient, part.count)
                    for e in range(part.count):
                        parameters[start + e] -= RATE * average[e]
                shards.reducer.all_gather(parameters)
            got = []
            for i, size in zip(ids, SIZES):
                start = shards.reducer.layout(i)[0] // 4
                got.append(parameters[start : start + size])
            owned = sum(part.count for part in shards.reducer.shard_ranges())
            return [list(g) for g in got], [list(e) for e in expected], owned

        first, second = run_ranks(self, 2, rank)

        # Expect: the same parameters on both ranks as with whole reductions, cut otherwise.
        self.assertEqual(first[0], first[1])
        self.assertEqual(second[0], first[1])
        # Expect: each element with one owner, and no rank with all.
        self.assertEqual(first[2] + second[2], sum(SIZES))
        self.assertTrue(0 < first[2] < sum(SIZES))

    def test_A_shard_is_a_part_of_its_bucket_and_holds_its_ranges(self):
        def rank(comm):
            shards = Shards(comm)
            reports = [shards.step(0)]
            found = [shards.reducer.shard(b) for b in range(reports[0].buckets)]
            inside = all(
                found[part.bucket].gradient
                <= part.gradient
                <= found[part.bucket].gradient + found[part.bucket].bytes - 4 * part.count
                and part.offset - found[part.bucket].bucket_offset - found[part.bucket].offset
                == part.gradient - found[part.bucket].gradient
                and part.dtype == found[part.bucket].dtype == noria.Dtype.FLOAT32
                for part in shards.reducer.shard_ranges()
            )
            return inside, [(s.bucket_bytes, s.offset, s.bytes) for s in found]

        (first_inside, first), (second_inside, second) = run_ranks(self, 2, rank)

        # Expect: ranges within the shards, and shards behind each other that fill the buckets.
        self.assertTrue(first_inside and second_inside)
        self.assertGreater(len(first), 1)
        for (whole, start, size), (_, next_start, next_size) in zip(first, second):
            self.assertEqual((start, next_start, size + next_size), (0, size, whole))

    def test_Parameters_of_another_type_are_gathered_too(self):
        def rank(comm):
            shards = Shards(comm)
            halves = array("H", [0] * (shards.reducer.layout(0)[1] // 4))
            memory = noria.Memory(halves.buffer_info()[0], len(halves), noria.Dtype.BFLOAT16)
            for part in shards.reducer.shard_ranges():
                for e in range(part.count):
                    halves[part.offset // 4 + e] = comm.rank + 1
            shards.reducer.all_gather(memory, noria.Dtype.BFLOAT16)
            starts = [shards.reducer.layout(i)[0] // 4 for i in shards.ids]
            shards.reducer.close()
            return [set(halves[s : s + size]) for s, size in zip(starts, SIZES)]

        first, second = run_ranks(self, 2, rank)

        # Expect: both ranks' shards on both, and nothing that is nobody's.
        self.assertEqual(first, second)
        self.assertEqual(set().union(*first), {1, 2})

    def test_Gathered_memory_is_held_until_other_memory_or_close(self):
        def rank(comm):
            shards = Shards(comm)
            total = shards.reducer.layout(0)[1]
            data = (ctypes.c_float * (total // 4))()
            alive, short = weakref.ref(data), array("f", [0])
            shards.reducer.all_gather(data)
            del data
            texts = [refusal(lambda: shards.reducer.all_gather(short))[0]]
            gc.collect()
            texts.append(alive() is not None)
            shards.reducer.all_gather((ctypes.c_float * (total // 4))())
            gc.collect()
            texts.append(alive() is None)
            shards.reducer.close()
            return texts

        # Expect: a refused call lets go of nothing, and one that succeeds of what was before.
        self.assertEqual(run_ranks(self, 2, rank), [["ArgumentError", True, True]] * 2)

    def test_What_is_not_there_is_refused(self):
        def rank(comm):
            whole = noria.Reducer(comm)
            whole.add("w", 4)
            early = refusal(lambda: whole.layout(0))
            whole.seal()
            shards = Shards(comm)
            return [
                early,
                refusal(whole.shard_ranges),
                refusal(lambda: whole.shard(0)),
                refusal(lambda: shards.reducer.shard(99)),
                refusal(lambda: shards.reducer.shard(-1)),
                refusal(lambda: shards.reducer.layout(99)),
                refusal(lambda: shards.reducer.all_gather(b"read only")),
                refusal(lambda: noria.Reducer(comm, shard=True, plan=noria.Plan.PLANNED)),
            ]

        (refusals,) = run_ranks(self, 1, rank)
        kinds = [kind for kind, _ in refusals]
        self.assertEqual(kinds, ["StateError"] * 3 + ["ArgumentError"] * 5, refusals)
        self.assertIn("bucket is -1", refusals[4][1])


class Observe(unittest.TestCase):
    def test_A_step_its_buckets_and_its_communicator_are_told(self):
        def rank(comm):
            shards = Shards(comm)
            none = refusal(lambda: noria.observe.step(shards.reducer))[0]
            report = shards.step(0)
            return (
                none,
                report,
                noria.observe.step(shards.reducer),
                noria.observe.buckets(shards.reducer),
                noria.observe.communicator(comm),
            )

        for number, result in enumerate(run_ranks(self, 2, rank)):
            none, report, step, buckets, communicator = result
            self.assertEqual(none, "StateError")
            # Expect: what the report says, and parts that make up the whole.
            self.assertEqual(
                (step.step, step.buckets, step.bytes, step.communication_ns, step.exposed_ns),
                (0, report.buckets, 4 * sum(SIZES), report.communication_ns, report.exposed_ns),
            )
            self.assertEqual(step.begin_ns + step.compute_ns + step.exposed_ns, step.end_ns)
            self.assertEqual(step.backlog_ns + step.tail_ns + step.finish_ns, step.exposed_ns)
            # Expect: every bucket, with times in order.
            self.assertEqual([b.bucket for b in buckets], list(range(report.buckets)))
            self.assertEqual({b.dtype for b in buckets}, {noria.Dtype.FLOAT32})
            self.assertGreaterEqual(sum(b.bytes for b in buckets), step.bytes)
            for b in buckets:
                self.assertTrue(b.first_ns <= b.ready_ns <= b.end_ns, b)
            # Expect: this rank, on the software HCA, of the host.
            self.assertEqual((communicator.rank, communicator.size), (number, 2))
            self.assertIn("software HCA", communicator.device)
            self.assertGreater(communicator.sent_bytes + communicator.received_bytes, 0)
            self.assertEqual((communicator.gpu, communicator.nccl), ("", 0))

    def test_Parameters_and_counters_are_told_to_the_last(self):
        parameters = {p.name: p for p in noria.observe.parameters()}
        soft = parameters["NORIA_SOFT"]

        # Expect: what the environment gives, whence, and each once.
        self.assertEqual((soft.value, soft.source, soft.is_default), ("1", "NORIA_SOFT", False))
        self.assertEqual(len(parameters), len(noria.observe.parameters()))
        self.assertTrue(all(p.sentence for p in parameters.values()))
        counters = noria.observe.counters()
        self.assertTrue(counters and all(c.sentence and c.value >= 0 for c in counters))

    def test_A_bad_value_of_the_environment_is_no_empty_table(self):
        result = subprocess.run(
            [sys.executable, "-c", "import noria; noria.observe.parameters()"],
            env={**os.environ, "NORIA_TIMEOUT_MS": "soon"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        self.assertIn("ArgumentError", result.stderr)
        self.assertIn("NORIA_TIMEOUT_MS", result.stderr)


if __name__ == "__main__":
    unittest.main()
