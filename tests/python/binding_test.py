"""The module noria, without any framework: layouts, versions, statuses, collectives, steps."""

import ctypes
import gc
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import unittest
import weakref
from array import array
from pathlib import Path

import noria
from noria import _library, _structs, errors
from ranks import run_ranks

# Public functions that the package does not call, and why.
UNBOUND = {
    "noria_all_gather": "noria_all_gather_v takes blocks of one size too",
    "noria_reduce_scatter": "noria_reduce_scatter_v takes blocks of one size too",
}
SOURCE = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CC", "cc")


def import_with(library: str) -> subprocess.CompletedProcess:
    """What a process says that imports noria with NORIA_LIBRARY set to this."""
    return subprocess.run(
        [sys.executable, "-c", "import noria; print(noria.library_path())"],
        env={**os.environ, "NORIA_LIBRARY": library},
        capture_output=True,
        text=True,
        timeout=30,
    )


def compiled(source: str, directory: str, name: str, *flags: str) -> str:
    path = str(Path(directory) / name)
    Path(path + ".c").write_text(source)
    subprocess.run(
        [COMPILER, *flags, f"-I{SOURCE / 'include'}", "-o", path, path + ".c"],
        check=True,
        timeout=30,
    )
    return path


class Header(unittest.TestCase):
    def test_Structs_lie_in_memory_as_the_headers_say(self):
        lines = []
        for name, struct in _structs.STRUCTS.items():
            for field, *_ in struct._fields_:
                lines.append(
                    f'printf("{name} {field} %zu %zu\\n", offsetof({name}, {field}), '
                    f"sizeof((({name}*)0)->{field}));"
                )
        program = (
            "#include <noria/observe.h>\n#include <stdio.h>\nint main(void) { %s return 0; }"
            % " ".join(lines)
        )
        with tempfile.TemporaryDirectory() as directory:
            text = subprocess.run(
                [compiled(program, directory, "layout")], capture_output=True, text=True, timeout=30
            ).stdout

        # Expect: each field at the place and of the size that C gives it.
        ours = "".join(
            f"{name} {field} {getattr(struct, field).offset} {getattr(struct, field).size}\n"
            for name, struct in _structs.STRUCTS.items()
            for field, *_ in struct._fields_
        )
        self.assertEqual(text, ours)

    def test_Every_function_of_the_headers_is_called_or_listed_with_the_reason(self):
        declared = {}
        for header in sorted((SOURCE / "include/noria").glob("*.h")):
            text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
            for name, parameters in re.findall(r"NORIA_API[^;(]*?(\w+)\(([^;]*)\);", text):
                none = parameters.strip() in ("", "void")
                declared[name] = 0 if none else parameters.count(",") + 1
        package = "".join(f.read_text() for f in Path(noria.__file__).parent.rglob("*.py"))
        called = set(re.findall(r"\blib\.(noria_\w+)", package))

        # Expect: no function without a call, but for the listed ones, and none that is not there.
        self.assertGreater(len(declared), 40)
        self.assertEqual(sorted(called ^ UNBOUND.keys()), sorted(declared))
        for name in called:
            # Expect: as many types as the header has parameters.
            self.assertEqual(len(getattr(_library.lib, name).argtypes), declared[name], name)

    def test_Every_struct_of_the_headers_has_its_layout_here(self):
        headers = "".join(f.read_text() for f in (SOURCE / "include/noria").glob("*.h"))
        declared = re.findall(r"typedef struct \{[^}]*\} (\w+);", headers)

        # Expect: each, with as many fields as the header's.
        self.assertEqual(sorted(declared), sorted(_structs.STRUCTS))
        for text, name in re.findall(r"typedef struct \{([^}]*)\} (\w+);", headers):
            fields = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).count(";")
            self.assertEqual(len(_structs.STRUCTS[name]._fields_), fields, name)

    def test_Every_status_of_the_header_has_its_exception(self):
        header = (SOURCE / "include/noria/noria.h").read_text()
        for name, value in re.findall(r"(NORIA_E_\w+) = (-\d+)", header):
            # Expect: a class of its own, which says the number.
            error = errors.error_of(int(value), "text")
            self.assertIsNot(type(error), noria.NoriaError, name)
            self.assertEqual((error.status, str(error)), (int(value), "text"), name)
            self.assertEqual(noria.status_name(error.status), name)

        # A status of a later version.  Expect: an exception all the same, with its number.
        self.assertEqual(str(errors.error_of(-99, "text")), "status -99: text")

    def test_Numbers_of_types_and_operations_are_the_headers(self):
        headers = "".join(
            (SOURCE / "include/noria" / name).read_text() for name in ("comm.h", "bucketing.h")
        )
        for kind, prefix in (
            (noria.Dtype, ""),
            (noria.Op, ""),
            (noria.Plan, "PLAN_"),
            (noria.Order, "ORDER_"),
            (noria.Average, "AVERAGE_"),
            (noria.Unused, "UNUSED_"),
            (noria.HookMoment, "HOOK_"),
        ):
            for member in kind:
                self.assertRegex(headers, rf"NORIA_{prefix}{member.name} = {int(member)}\b")


class Loading(unittest.TestCase):
    def test_Package_and_library_have_the_same_version(self):
        self.assertEqual(".".join(map(str, noria.version())), noria.__version__)
        project = (SOURCE / "bucketing/python/pyproject.toml").read_text()
        self.assertIn(f'version = "{noria.__version__}"', project)

    def test_A_path_that_does_not_load_is_named(self):
        result = import_with("/nowhere/libnoria.so")

        # Expect: the path, and what to do.
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("/nowhere/libnoria.so", result.stderr)
        self.assertIn("set NORIA_LIBRARY", result.stderr)

    def test_A_library_of_another_version_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            other = compiled(
                "unsigned noria_version(void) { return 20300; }",
                directory,
                "libother.so",
                "-shared",
                "-fPIC",
            )
            result = import_with(other)

        # Expect: both versions, and the path.
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"{other} is noria 2.3.0, and this package is for 0.1", result.stderr)

    def test_A_library_that_is_not_noria_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            other = compiled("int nothing;", directory, "libother.so", "-shared", "-fPIC")
            result = import_with(other)

        # Expect: which function it lacks.
        self.assertIn(f"{other} lacks noria_version", result.stderr)

    def test_The_package_finds_the_library_that_lies_beside_it(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / "noria"
            copy.mkdir()
            for file in Path(noria.__file__).parent.glob("*.py"):
                (copy / file.name).write_text(file.read_text())
            (copy / "libnoria.so.0").symlink_to(os.path.realpath(noria.library_path()))
            environment = {k: v for k, v in os.environ.items() if k != "NORIA_LIBRARY"}
            result = subprocess.run(
                [sys.executable, "-c", "import noria; print(noria.library_path())"],
                env={**environment, "PYTHONPATH": directory},
                capture_output=True,
                text=True,
                timeout=30,
            )

        # Expect: the file behind the link, for the software HCA lies beside that.
        self.assertEqual(result.stdout.strip(), os.path.realpath(noria.library_path()))


class Arrays(unittest.TestCase):
    def test_Arrays_that_cannot_be_reduced_are_refused_with_the_reason(self):
        for data, reason in (
            (b"abc", "writable"),
            (array("u", "abc"), "format"),
            (memoryview(array("f", [1, 2, 3, 4]))[::2], "contiguous"),
        ):
            with self.assertRaisesRegex(noria.ArgumentError, reason):
                noria.communicator.memory_of(data)

    def test_A_unique_id_of_the_wrong_size_is_refused(self):
        with self.assertRaisesRegex(noria.ArgumentError, "128 bytes, and this one 3"):
            noria.Communicator(0, 2, b"abc")


class Collectives(unittest.TestCase):
    def test_All_reduce_sums_in_place_into_another_array_and_later(self):
        def rank(comm):
            data = array("f", [comm.rank + 1, 10 * comm.rank])
            comm.all_reduce(data)
            source, target = (ctypes.c_double * 3)(1, 2, comm.rank), (ctypes.c_double * 3)()
            comm.all_reduce(source, noria.Op.MAX, out=target)
            later = array("q", range(1000))
            work = comm.all_reduce(later, wait=False)
            work.wait()
            return list(data), list(source), list(target), later[999], work.is_done()

        results = run_ranks(self, 2, rank)

        # Expect: sums and maxima of both ranks, and the source as it was.
        for r, (data, source, target, later, is_done) in enumerate(results):
            self.assertEqual(data, [3, 10])
            self.assertEqual(source, [1, 2, r])
            self.assertEqual(target, [1, 2, 1])
            self.assertEqual((later, is_done), (2 * 999, True))

    def test_An_array_whose_work_was_dropped_lives_until_the_work_is_done(self):
        def rank(comm):
            data = (ctypes.c_float * 1000)()
            alive = weakref.ref(data)
            if comm.rank == 1:
                self.ready[0].recv()  # rank 0's is under way, and alone
            comm.all_reduce(data, wait=False)
            del data
            gc.collect()
            was_alive = alive() is not None
            if comm.rank == 0:
                self.ready[1].send(None)
            comm.barrier()  # the all-reduce lies before it
            comm.all_reduce(array("f", [0]), wait=False).wait()
            return was_alive or comm.rank == 1, alive() is None

        self.ready = multiprocessing.Pipe(duplex=False)
        # Expect: held while rank 1 had not come, and by nobody behind a later collective.
        self.assertEqual(run_ranks(self, 2, rank), [(True, True)] * 2)

    def test_A_close_lets_go_of_arrays_whose_work_was_dropped(self):
        def rank(comm):
            data = (ctypes.c_float * 1000)()
            alive = weakref.ref(data)
            if comm.rank == 0:
                comm.all_reduce(data, wait=False)
                del data
                comm.close()
                self.ready[1].send(None)
            else:
                self.ready[0].recv()
            return comm.rank == 1 or alive() is None

        self.ready = multiprocessing.Pipe(duplex=False)
        self.assertEqual(run_ranks(self, 2, rank), [True, True])

    def test_Broadcast_gives_the_roots_values_and_a_barrier_returns(self):
        def rank(comm):
            data = bytearray(b"rank %d" % comm.rank)
            comm.broadcast(data, root=1)
            comm.barrier()
            comm.check()
            return bytes(data)

        self.assertEqual(run_ranks(self, 2, rank), [b"rank 1", b"rank 1"])

    def test_Blocks_are_scattered_and_gathered(self):
        def rank(comm):
            block, whole = array("f", [0, 0]), array("f", [0] * 4)
            comm.reduce_scatter(array("f", [1, 2, 3, 4]), block)
            comm.all_gather(block, whole)
            counts = [1, 3]
            uneven, all_uneven = array("q", [comm.rank] * counts[comm.rank]), array("q", [9] * 4)
            comm.all_gather(uneven, all_uneven, counts=counts, wait=False).wait()
            comm.reduce_scatter(all_uneven, uneven, noria.Op.MAX, counts=counts)
            try:
                comm.all_gather(block, whole, counts=[1, 1])
            except noria.ArgumentError as error:
                return list(block), list(whole), list(all_uneven), list(uneven), str(error)

        first, second = run_ranks(self, 2, rank)

        # Expect: sums in blocks, all blocks on both ranks, and blocks that do not fit refused.
        self.assertEqual(first[:4], ([2, 4], [2, 4, 6, 8], [0, 1, 1, 1], [0]))
        self.assertEqual(second[:4], ([6, 8], [2, 4, 6, 8], [0, 1, 1, 1], [1, 1, 1]))
        self.assertIn("4 and 2 elements", first[4])

    def test_A_communicator_splits_by_color_and_key(self):
        def rank(comm):
            pair = comm.split(0, -comm.rank)
            alone = comm.split(None if comm.rank else 1)
            data = array("f", [comm.rank])
            pair.all_reduce(data)
            return pair.rank, list(data), alone and alone.size

        # Expect: both in the reverse order, and one rank that has no part in the other.
        self.assertEqual(run_ranks(self, 2, rank), [(1, [1.0], 1), (0, [1.0], None)])

    def test_A_closed_communicator_and_differing_arrays_are_refused(self):
        def rank(comm):
            texts = []
            try:
                comm.all_reduce(array("f", [1, 2]), out=array("f", [1]))
            except noria.ArgumentError as error:
                texts.append(str(error))
            comm.close()
            try:
                comm.barrier()
            except noria.ArgumentError as error:
                texts.append(str(error))
            return texts

        # Expect: two exceptions, and no crash.
        ((differ, closed),) = run_ranks(self, 1, rank)
        self.assertIn("differ in count", differ)
        self.assertIn("NULL", closed)

    def test_An_abort_of_one_rank_raises_on_the_other(self):
        def rank(comm):
            if comm.rank == 1:
                comm.abort("enough")
                return "enough"
            try:
                comm.all_reduce(array("f", [1.0]))
            except noria.AbortedError as error:
                return str(error)

        self.assertIn("enough", run_ranks(self, 2, rank)[0])


class Steps(unittest.TestCase):
    def test_Gradients_come_out_averaged_in_copy_mode_and_in_the_arena(self):
        def rank(comm):
            results = []
            for arena in (False, True):
                reducer = noria.Reducer(comm, arena=arena)
                ids = [reducer.add(name, 2) for name in ("w", "b")]
                reducer.seal()
                reducer.step_begin()
                gradients = []
                for i in ids:
                    if arena:
                        address, size = reducer.view(i)
                        gradient = (ctypes.c_float * (size // 4)).from_address(address)
                    else:
                        gradient = (ctypes.c_float * 2)()
                        address = ctypes.addressof(gradient)
                    gradient[:] = [i, comm.rank]
                    gradients.append(gradient)
                    reducer.grad_ready(i, 0 if arena else address)
                report = reducer.step_end()
                results.append(([list(g) for g in gradients], report.step, report.bytes))
                reducer.close()
            return results

        # Expect: the averages of both ranks, and what the report counts.
        for result in run_ranks(self, 2, rank):
            self.assertEqual(result, [([[0, 0.5], [1, 0.5]], 0, 16)] * 2)

    def test_Hooks_see_and_change_buckets_and_what_they_raise_is_raised_everywhere(self):
        def body(comm):
            reducer = noria.Reducer(comm, arena=True)
            for name in ("weight", "bias"):
                reducer.add(name, 4)
            seen, values, texts = [], [], []

            def before(bucket):
                elements = bucket.data.cast("f")
                seen.append((bucket.index, bucket.dtype, bucket.tensors))
                for i in range(len(elements)):
                    elements[i] *= 2

            def after(bucket):
                if bucket.step == 1 and comm.rank == 1:
                    raise ValueError("clipped twice")

            reducer.set_hook(noria.HookMoment.BEFORE, before)
            reducer.set_hook(noria.HookMoment.AFTER, after)
            reducer.seal()
            views = [ctypes.c_float.from_address(reducer.view(i)[0]) for i in range(2)]
            for step in range(2):
                reducer.step_begin()
                for i in range(2):
                    views[i].value = comm.rank + 1.0
                    reducer.grad_ready(i)
                try:
                    reducer.step_end()
                    values.append(views[0].value)
                except noria.HookError as error:
                    texts.append((str(error), repr(error.__cause__)))
            part = noria.TensorPart
            self.assertEqual(
                seen[0],
                (0, noria.Dtype.FLOAT32, (part(1, 0, 0, 16), part(0, 0, 16, 16))),
            )
            with self.assertRaisesRegex(noria.StateError, "before noria_reducer_seal"):
                reducer.set_hook(noria.HookMoment.AFTER, None)
            return values, texts

        first, second = run_ranks(self, 2, body)
        self.assertEqual((first[0], second[0]), ([3.0], [3.0]))
        # Expect: the same text on both, and the exception itself where it was raised.
        text = "rank 1 had its hook fail for bucket 0 after it was reduced, with code 1: "
        self.assertIn(text + "'ValueError: clipped twice'", first[1][0][0])
        self.assertEqual(first[1][0][0], second[1][0][0])
        self.assertEqual((first[1][0][1], second[1][0][1]), ("None", "ValueError('clipped twice')"))

    def test_Whatever_a_hook_raises_is_told_and_is_no_cause_of_a_later_failure(self):
        class Mute(Exception):
            def __str__(self):
                raise RuntimeError("no words")

        def body(comm):
            raised = {}  # by step, on this rank; made anew, for one that is kept holds comm

            def hook(bucket):
                if bucket.step in raised:
                    kind, *words = raised[bucket.step]
                    raise kind(*words)

            reducer = noria.Reducer(comm, arena=True)
            reducer.add("weight", 4)
            reducer.set_hook(noria.HookMoment.BEFORE, hook)
            reducer.seal()
            if comm.rank == 1:
                raised.update(
                    {0: [Mute], 1: [ValueError, "\ud800"], 2: [ValueError, "given up"]}
                )
            else:
                raised[3] = [ValueError, "rank 0's"]
            told = []
            for step in range(4):
                reducer.step_begin()
                reducer.grad_ready(0)
                if step == 2:
                    reducer.reset()  # in the midst of it, so that nobody is told
                    continue
                try:
                    reducer.step_end()
                    told.append("nothing")
                except noria.HookError as error:
                    told.append((str(error), type(error.__cause__).__name__))
                    reducer.reset()
            return told

        first, second = run_ranks(self, 2, body)
        for told, words in zip(second, ("'Mute: ", "'ValueError: ", "'ValueError: rank 0's'")):
            self.assertIn(words, told[0])
        self.assertEqual([told[0] for told in first], [told[0] for told in second])
        self.assertEqual([told[1] for told in first], ["NoneType", "NoneType", "ValueError"])
        self.assertEqual([told[1] for told in second], ["Mute", "ValueError", "NoneType"])

    def test_A_missing_gradient_raises_on_both_ranks_and_reset_goes_on(self):
        def rank(comm):
            reducer = noria.Reducer(comm)
            ids = [reducer.add(name, 1) for name in ("stem", "head")]
            reducer.seal()
            data = (ctypes.c_float * 2)(1, 2)
            texts = []
            for step in range(2):
                reducer.step_begin()
                for i in ids:
                    if step == 1 or i == 0 or comm.rank == 0:
                        reducer.grad_ready(i, ctypes.addressof(data) + 4 * i)
                try:
                    reducer.step_end()
                except noria.MissingError as error:
                    texts.append(str(error))
                    reducer.reset()
            return texts

        first, second = run_ranks(self, 2, rank)

        # Expect: one failure, named in the same words, and a good step behind it.
        self.assertEqual(first, second)
        self.assertEqual(len(first), 1)
        self.assertIn("head", first[0])

    def test_Accumulated_unused_and_early_results_come_as_the_header_says(self):
        def rank(comm):
            reducer = noria.Reducer(comm, unused=noria.Unused.KEEP)
            ids = [reducer.add(name, 1, expected_fires=1) for name in "abc"]
            reducer.seal()
            data = (ctypes.c_float * 3)(1 + comm.rank, 5, 7)
            address = ctypes.addressof(data)
            reducer.step_begin(accumulate=True)
            reducer.grad_ready(ids[0], address)
            reducer.step_end()
            reducer.step_begin()
            if comm.rank == 0:
                reducer.grad_ready(ids[1], address + 4)
                reducer.grad_unused(ids[2:])
            else:
                reducer.grad_unused(ids[1:])
            reducer.step_end()
            results = [reducer.grad_result(i) for i in ids]
            return [r and ctypes.c_float.from_address(r).value for r in results]

        # Expect: what only the earlier step gave; what one rank gave; and what no rank did.
        self.assertEqual(run_ranks(self, 2, rank), [[1.5, 2.5, None]] * 2)

    def test_A_rank_without_inputs_joins_the_others_steps(self):
        def rank(comm):
            reducer = noria.Reducer(comm)
            tensor = reducer.add("w", 1)
            reducer.seal()
            data = ctypes.c_float(4)
            values = []
            for _ in range(2 * (1 - comm.rank)):
                reducer.step_begin()
                reducer.grad_ready(tensor, ctypes.addressof(data))
                reducer.step_end()
                values.append(data.value)
            steps = 1
            while not reducer.step_join()[0]:
                steps += 1
            return values, steps

        # Expect: halves of what one rank gave, twice, and an end that both see.
        self.assertEqual(run_ranks(self, 2, rank), [([2.0, 1.0], 1), ([], 3)])

    def test_A_plan_is_saved_and_loaded(self):
        def rank(comm):
            with tempfile.TemporaryDirectory() as directory:
                path = f"{directory}/plan"
                for load in (False, True):
                    reducer = noria.Reducer(comm, plan=noria.Plan.STRICT)
                    for name in "ab":
                        reducer.add(name, 9)
                    if load:
                        reducer.load_plan(path)
                    reducer.seal()
                    if not load:
                        reducer.save_plan(path)
                try:
                    reducer.save_plan(f"{directory}/nowhere/plan")
                except noria.NoriaError as error:
                    return "nowhere" in str(error)

        self.assertEqual(run_ranks(self, 1, rank), [True])

    def test_Numbers_that_c_would_cut_are_refused_by_name(self):
        def rank(comm):
            reducer = noria.Reducer(comm)
            texts = []
            for call in (
                lambda: noria.Reducer(comm, bucket_bytes=-1),
                lambda: noria.Reducer(comm, last_bucket_bytes=1 << 64),
                lambda: noria.Reducer(comm, step_timeout_ms=(1 << 32) + 5),
                lambda: noria.Reducer(comm, wire_dtype=noria.Dtype.INT8),
                lambda: noria.Reducer(comm, arena=True, max_in_flight=3),
                lambda: noria.Communicator(0, 1, start_timeout_ms=-5),
                lambda: reducer.add("w", (1 << 64) + 3),
                lambda: reducer.add("w", 1.5),
                lambda: reducer.add("a\0b", 1),
                lambda: reducer.grad_ready(1 << 32),
                lambda: reducer.grad_unused([-1]),
            ):
                try:
                    call()
                    texts.append("accepted")
                except noria.ArgumentError as error:
                    texts.append(str(error))
            return texts

        names = ["bucket_bytes is -1", "last_bucket_bytes", "step_timeout_ms", "INT8"]
        names += ["max_in_flight is 3"]
        names += ["start_timeout_ms is -5: it lies between 0 and 4294967295", "numel", "integer"]
        names += ["NUL", "tensor is 4294967296", "tensor is -1"]
        (texts,) = run_ranks(self, 1, rank)
        for name, text in zip(names, texts):
            self.assertIn(name, text)

    def test_Ranks_with_different_lists_raise_the_same_difference(self):
        def rank(comm):
            reducer = noria.Reducer(comm)
            reducer.add("w", 2 + comm.rank)
            try:
                reducer.seal()
            except noria.MismatchError as error:
                return str(error)

        first, second = run_ranks(self, 2, rank)
        self.assertEqual(first, second)
        self.assertIn("w", first)


if __name__ == "__main__":
    unittest.main()
