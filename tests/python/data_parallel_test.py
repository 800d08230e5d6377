"""noria.torch against DistributedDataParallel over Gloo: run on two ranks, under torchrun.

Every rank runs every test, in the same order. What is compared with DDP is equal within rounding;
what is compared between ranks is equal bit by bit.
"""

import contextlib
import copy
import datetime
import os
import pickle
import unittest

import noria
import noria.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
RANK = int(os.environ.get("RANK", 0))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16 * 16, 10)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Transformer(nn.Module):
    """A language model whose output weights are its embedding's."""

    def __init__(self, checkpoints=None):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(16, 50, bias=False)
        self.output.weight = self.embedding.weight
        self.checkpoints = checkpoints

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.checkpoints is None:
                x = layer(x)
            else:
                x = checkpoint(layer, x, use_reentrant=self.checkpoints)
        return {"logits": self.output(x)}


class Branches(nn.Module):
    """Uses `always`, and those of its branches that it is told to."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(4, 4)
        self.branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, used):
        y = self.always(x)
        for i in used:
            y = y + self.branches[i](x)
        return y


class Failing(torch.autograd.Function):
    """Its backward pass raises, until it is told to work."""

    works = False

    @staticmethod
    def forward(_context, x):
        return x.clone()

    @staticmethod
    def backward(_context, gradient):
        if not Failing.works:
            raise ValueError("not yet")
        return gradient


class WithFailing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        self.loss = Failing.apply(self.layer(x)).sum()
        return self.loss * 1


def batch(step, kind):
    torch.manual_seed(1000 * step + RANK)
    if kind == "images":
        return torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
    tokens = torch.randint(50, (2, 7))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model, step, kind):
    inputs, targets = batch(step, kind)
    output = model(inputs)
    if kind == "images":
        return F.cross_entropy(output, targets)
    return F.cross_entropy(output["logits"].flatten(0, 1), targets.flatten())


def train(model, kind, steps=10, set_to_none=True):
    if kind == "images":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, step, kind).backward()
        optimizer.step()
    return model.module


def made(kind, **arguments):
    """A module that differs from rank to rank until somebody broadcasts it."""
    torch.manual_seed(7 + RANK)
    return kind(**arguments)


class Base(unittest.TestCase):
    def assert_close(self, ours, theirs):
        for (name, mine), yours in zip(ours.state_dict().items(), theirs.state_dict().values()):
            torch.testing.assert_close(
                mine, yours, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}"
            )

    def assert_same_on_ranks(self, tensors):
        for i, tensor in enumerate(tensors):
            mine = tensor.detach().clone().contiguous()
            others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(others, mine)
            self.assertTrue(all(torch.equal(mine, other) for other in others), f"tensor {i}")

    def assert_trains_as_ddp(self, kind, module, steps=10, set_to_none=True, **options):
        theirs = train(DDP(copy.deepcopy(module)), kind, steps)
        ours = train(noria.torch.DataParallel(module, **options), kind, steps, set_to_none)

        # Expect: DDP's parameters within rounding, and the same ones on every rank.
        if RANK == 0:
            self.assert_close(ours, theirs)
        self.assert_same_on_ranks(ours.parameters())


class Training(Base):
    def test_Workers_of_a_data_loader_are_forked_and_end_without_harm(self):
        torch.manual_seed(RANK)
        data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 4))
        for arena in (False, True):
            model = noria.torch.DataParallel(made(Branches), gradient_as_bucket_view=arena)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            seen = 0
            for _epoch in range(2):  # each forks its own workers, and ends them
                loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=1)
                for inputs, targets in loader:
                    optimizer.zero_grad(set_to_none=not arena)
                    F.mse_loss(model(inputs, [0, 1, 2]), targets).backward()
                    optimizer.step()
                    seen += 1
            self.assertEqual(seen, 8)
            # Expect: parameters move, and are the same on both ranks.
            self.assert_same_on_ranks(model.parameters())

    def test_A_cnn_trains_as_under_ddp(self):
        self.assert_trains_as_ddp("images", made(Cnn))

    def test_A_cnn_in_many_buckets_trains_as_under_ddp(self):
        self.assert_trains_as_ddp("images", made(Cnn), bucket_cap_mb=0.002)

    def test_A_cnn_in_other_plans_trains_as_under_ddp(self):
        for options in (
            {"plan": noria.Plan.STRICT},
            {"plan": noria.Plan.PLANNED},
            {"order": noria.Order.ARRIVAL},
            {"average": noria.Average.SPLIT_SQRT},
            {"order": noria.Order.ARRIVAL, "gradient_as_bucket_view": True},
        ):
            self.assert_trains_as_ddp("images", made(Cnn), 4, bucket_cap_mb=0.002, **options)

    def test_What_is_no_number_is_raised_on_all_ranks_where_it_is_asked_for(self):
        model = noria.torch.DataParallel(nn.Linear(2, 1), check_finite=True)
        with self.assertRaises(noria.NonFiniteError):
            model(torch.full((1, 2), float("nan") if RANK else 1.0)).sum().backward()
        model.reset()
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        self.assertEqual(model.module.weight.grad.tolist(), [[1.0, 1.0]])

    def test_Gradients_that_travel_as_bfloat16_are_the_same_on_all_ranks_and_near_ddps(self):
        results = []
        for wrap, options in (
            (DDP, {}),
            (noria.torch.DataParallel, {"wire_dtype": torch.bfloat16}),
        ):
            module = made(Cnn)
            model = wrap(module, **options)
            loss_of(model, 0, "images").backward()
            results.append(module)
        for mine, yours in zip(results[1].parameters(), results[0].parameters()):
            torch.testing.assert_close(mine.grad, yours.grad, rtol=0.03, atol=1e-3)
        self.assert_same_on_ranks(p.grad for p in results[1].parameters())

    def test_A_transformer_with_tied_weights_trains_as_under_ddp(self):
        model = noria.torch.DataParallel(made(Transformer))
        names = [name for name, _ in model.module.named_parameters()]
        self.assertNotIn("output.weight", names)  # the tie is one parameter
        self.assert_trains_as_ddp("tokens", made(Transformer))

    def test_Channels_last_trains_as_under_ddp(self):
        module = made(Cnn).to(memory_format=torch.channels_last)
        self.assert_trains_as_ddp("images", module, steps=3)

    def test_Each_type_of_parameter_is_averaged(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
            module = nn.Module()
            module.weight = nn.Parameter(torch.full((3,), 2.0 + RANK, dtype=dtype))
            module.forward = lambda m=module: (m.weight * (1 + 2 * RANK)).sum().real
            model = noria.torch.DataParallel(module)
            model().backward()

            # Expect: rank 0's values, and the average of 1 and 3.
            self.assertEqual(module.weight.tolist(), [2.0] * 3, dtype)
            self.assertEqual(module.weight.grad.tolist(), [2.0] * 3, dtype)

    def test_Checkpoints_of_both_kinds_train_as_without(self):
        theirs = train(DDP(made(Transformer)), "tokens", 3)
        for reentrant in (False, True):
            model = noria.torch.DataParallel(made(Transformer, checkpoints=reentrant))
            ours = train(model, "tokens", 3)
            self.assert_close(ours, theirs)

    def test_An_output_in_an_object_of_the_users_ends_the_step_with_the_whole_pass(self):
        class Plain:
            def __init__(self, value):
                self.value, self.me = value, self

        class Slotted:
            __slots__ = ("value", "unset")

            def __init__(self, value):
                self.value = value

        for kind in (Plain, Slotted):
            module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            module.forward = lambda x, m=module, k=kind: k(
                checkpoint(m[1], checkpoint(m[0], x, use_reentrant=True), use_reentrant=True)
            )
            model = noria.torch.DataParallel(module)

            # Expect: one step of both layers, though each has a pass of its own.
            model(torch.ones(1, 2, requires_grad=True)).value.sum().backward()
            self.assertEqual(model.last_step.step, 0)
            self.assertEqual(module[1].bias.grad.tolist(), [1.0, 1.0])

    def test_Gradients_that_lie_transposed_are_averaged_in_their_parameters_layout(self):
        module = nn.Module()
        module.weight = nn.Parameter(torch.zeros(2, 3))
        module.forward = lambda: module.weight.sum()
        model = noria.torch.DataParallel(module)
        rows = torch.arange(6.0).reshape(3, 2)
        module.weight.grad = (rows * (1 - RANK)).t()  # on one rank by columns
        if RANK == 1:
            module.weight.grad = module.weight.grad.contiguous()
        model().backward()
        self.assertTrue(torch.equal(module.weight.grad, rows.t() / 2 + 1), module.weight.grad)

    def test_A_gradient_penalty_takes_derivatives_without_a_step(self):
        model = noria.torch.DataParallel(nn.Linear(3, 1))
        inputs = torch.ones(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)

        # Expect: no step yet, and one of the penalty's own gradients.
        self.assertIsNone(model.last_step)
        (slope.square().sum() + model(inputs).sum()).backward()
        self.assertEqual(model.last_step.step, 0)
        self.assert_same_on_ranks([model.module.weight.grad])


    def test_A_pass_over_the_graph_of_one_that_raised_before_any_gradient_is_averaged(self):
        for second in (lambda output, _: output, lambda _, module: module.loss):
            model = noria.torch.DataParallel(WithFailing())
            output = model(torch.full((1, 2), 1.0 + 2 * RANK))
            Failing.works = False
            with self.assertRaisesRegex(ValueError, "not yet"):
                output.backward(retain_graph=True)
            Failing.works = True
            second(output, model.module).backward()

            # Expect: the average of 1 and 3, whichever tensor the second pass began at.
            self.assertEqual(model.module.layer.weight.grad.tolist(), [[2.0, 2.0]])
            self.assertEqual(model.last_step.step, 0)


    def test_A_lazily_conjugated_gradient_is_averaged_as_the_value_that_it_stands_for(self):
        module = nn.Module()
        module.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        scale = torch.full((2,), 1j * (1 + RANK), dtype=torch.complex64)
        module.forward = lambda: (module.weight if RANK else module.weight.conj()) * scale
        model = noria.torch.DataParallel(module)
        model().real.sum().backward()

        # Expect: the average of i and -2i on both ranks.
        gradient = module.weight.grad.resolve_conj()
        self.assertEqual(gradient.tolist(), [-0.5j] * 2)
        self.assert_same_on_ranks([torch.view_as_real(gradient)])

    def test_A_sparse_gradient_is_refused_by_name_and_the_next_step_is_good(self):
        for arena in (False, True):
            module = nn.Module()
            module.weight = nn.Parameter(torch.ones(3, 2))
            module.bias = nn.Parameter(torch.ones(2))
            module.forward = lambda sparse, m=module: (
                F.embedding(torch.tensor([1]), m.weight, sparse=sparse) + m.bias
            )
            model = noria.torch.DataParallel(module, gradient_as_bucket_view=arena)
            # Expect: the reason where it is, and the name on the rank that was not wrong.
            error, text = (
                (noria.MissingError, "weight") if RANK else (noria.ArgumentError, "weight.*sparse")
            )
            with self.assertRaisesRegex(error, text):
                model(RANK == 0).sum().backward()
            model.reset()
            model.zero_grad(set_to_none=True)
            model(False).sum().backward()
            self.assertEqual(module.weight.grad[1].tolist(), [1.0, 1.0])


class Shared(nn.Module):
    """One layer in two re-entrant checkpoints: its gradients come in two parts."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.stem(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True).tanh()
        return x


class StaticGraph(Base):
    def test_C15_a_gradient_in_two_parts_is_refused_by_name_or_expected(self):
        theirs = DDP(made(Shared), static_graph=True)
        model = noria.torch.DataParallel(made(Shared))
        with self.assertRaisesRegex(noria.DuplicateReadyError, "layer"):
            model(torch.ones(1, 4)).sum().backward()

        for arena in (False, True):
            ours = noria.torch.DataParallel(
                made(Shared), static_graph=True, gradient_as_bucket_view=arena
            )
            for step in range(3):
                for model in (theirs, ours):
                    model.zero_grad(set_to_none=arena)
                    model(torch.ones(1, 4) * (step + RANK)).sum().backward()

                # Expect: DDP's gradients, in the step that learns and in those behind it.
                for mine, yours in zip(ours.module.parameters(), theirs.module.parameters()):
                    torch.testing.assert_close(mine.grad, yours.grad)
                self.assert_same_on_ranks(p.grad for p in ours.module.parameters())

    def test_C21_a_static_graph_goes_together_with_no_sync(self):
        model = noria.torch.DataParallel(made(Shared), static_graph=True)
        for _ in range(2):
            model.zero_grad()
            with model.no_sync():
                model(torch.ones(1, 4) * RANK).sum().backward()
            model(torch.ones(1, 4)).sum().backward()
            self.assert_same_on_ranks(p.grad for p in model.module.parameters())
        self.assertEqual(model.last_step.step, 1)

    def test_A_parameter_that_a_static_graph_never_uses_stays_without_gradient(self):
        model = noria.torch.DataParallel(made(Branches), static_graph=True)
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(1, 4), [0]).sum().backward()
        self.assertIsNone(model.module.branches[1].weight.grad)
        self.assertEqual(model.module.branches[0].bias.grad.tolist(), [1.0] * 4)


class C28_Views(Base):
    def test_C28_the_arena_trains_as_under_ddp_whatever_zero_grad_does(self):
        for set_to_none in (False, True):
            self.assert_trains_as_ddp(
                "images", made(Cnn), set_to_none=set_to_none, gradient_as_bucket_view=True
            )

    def test_C28_a_lost_view_is_counted_and_taken_again(self):
        model = noria.torch.DataParallel(nn.Linear(2, 2), gradient_as_bucket_view=True)
        parameters = list(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        views = [p.grad.data_ptr() for p in parameters]
        self.assertEqual(model.copied_gradients, 2)  # there was no gradient before

        # Zeroed in place.  Expect: nothing is copied any more.
        model.zero_grad(set_to_none=False)
        model(torch.ones(1, 2)).sum().backward()
        self.assertEqual(model.copied_gradients, 2)

        # Set to None.  Expect: copied, counted, and in the same place again.
        model.zero_grad(set_to_none=True)
        model(torch.ones(1, 2)).sum().backward()
        self.assertEqual(model.copied_gradients, 4)
        self.assertEqual([p.grad.data_ptr() for p in parameters], views)

    def test_A_view_outlives_its_model(self):
        model = noria.torch.DataParallel(nn.Linear(2, 1), gradient_as_bucket_view=True)
        weight = model.module.weight
        model(torch.ones(1, 2)).sum().backward()
        del model
        self.assertEqual(weight.grad.tolist(), [[1.0, 1.0]])


class Unused(Base):
    def gradients(self, module):
        return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]

    def test_Unused_parameters_get_the_others_average_or_stay_without(self):
        used = {0: [0], 1: [0, 1]}[RANK]
        results = []
        for arena in (None, False, True):
            module = made(Branches)
            if arena is None:
                model = DDP(module, find_unused_parameters=True)
            else:
                model = noria.torch.DataParallel(
                    module, find_unused_parameters=True, gradient_as_bucket_view=arena
                )
            for _ in range(2):
                model(torch.ones(1, 4), used).sum().backward()
            results.append(self.gradients(module))

        # Expect: branch 1 averaged with zeros on rank 0, branch 2 None, all as DDP has it.
        self.assertEqual(results[1], results[0])
        self.assertEqual(results[2], results[0])
        self.assertEqual(results[1][-2:], [None, None])

    def test_The_gradient_of_an_unused_parameter_stays_as_it_was_where_no_rank_used_it(self):
        for arena in (False, True):
            module = made(Branches)
            model = noria.torch.DataParallel(
                module, find_unused_parameters=True, gradient_as_bucket_view=arena
            )
            for _ in range(2):  # gives all gradients their places
                model(torch.ones(1, 4), [0, 1, 2]).sum().backward()
            kept, summed, half = (branch.bias for branch in module.branches)
            for parameter in (kept, summed, half):
                parameter.grad.fill_(0.1 + RANK)
            if RANK == 0:
                half.grad = None
            model(torch.ones(1, 4), [1] if RANK else []).sum().backward()

            # Expect: each rank's own; with what one rank added, the average; and none.
            self.assertTrue(torch.equal(kept.grad, torch.full((4,), 0.1 + RANK)), kept.grad)
            torch.testing.assert_close(summed.grad, torch.full((4,), (0.1 + 2.1) / 2))
            self.assert_same_on_ranks([summed.grad])
            self.assertEqual(half.grad is None, RANK == 0)

    def test_C19_a_parameter_without_gradient_raises_its_name_in_this_backward_on_all_ranks(self):
        model = noria.torch.DataParallel(made(Branches))
        used = [0, 1, 2] if RANK == 0 else [0, 2]
        with self.assertRaises(noria.MissingError) as raised:
            model(torch.ones(1, 4), used).sum().backward()
        self.assertIn("branches.1.weight", str(raised.exception))
        texts = self.texts_of_all(str(raised.exception))
        self.assertEqual(texts[0], texts[1])

        # Expect: the next step is good after a reset.
        model.reset()
        model.zero_grad()
        model(torch.ones(1, 4), [0, 1, 2]).sum().backward()
        self.assertEqual(model.module.always.weight.grad.tolist(), [[1.0] * 4] * 4)

    def texts_of_all(self, text):
        mine = torch.zeros(2000, dtype=torch.uint8)
        mine[: len(text)] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        others = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(others, mine)
        return [bytes(other.tolist()).rstrip(b"\0").decode() for other in others]


class Accumulation(Base):
    def test_No_sync_accumulates_and_the_next_pass_averages_the_sum(self):
        results = []
        for wrap in (DDP, noria.torch.DataParallel):
            module = made(Cnn)
            model = wrap(module)
            for step in range(3):
                with model.no_sync() if step < 2 else contextlib.nullcontext():
                    loss_of(model, step, "images").backward()
            results.append(module)
        self.assertEqual(model.last_step.step, 0)  # three passes, one step
        for mine, yours in zip(results[1].parameters(), results[0].parameters()):
            torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-4, atol=1e-5)
        self.assert_same_on_ranks(p.grad for p in results[1].parameters())

    def test_C20_what_only_an_earlier_pass_used_is_averaged_too(self):
        for find_unused in (False, True):
            module = made(Branches)
            model = noria.torch.DataParallel(module, find_unused_parameters=find_unused)
            with model.no_sync():
                model(torch.full((1, 4), 1.0 + RANK), [0, 1, 2]).sum().backward()
            model(torch.zeros(1, 4), [0]).sum().backward()

            # Expect: the average of 1 and 2, though the last pass left the branch out.
            self.assertEqual(module.branches[1].weight.grad.tolist(), [[1.5] * 4] * 4)


class Construction(Base):
    def test_A_checkpoint_is_the_modules_own_and_loads_either_way(self):
        module = made(Cnn)
        model = noria.torch.DataParallel(module)
        state = model.state_dict()
        self.assertEqual(list(state), list(module.state_dict()))

        # Into a module without a wrapper, into a wrapped one, and within another module.
        Cnn().load_state_dict(state)
        other = {name: torch.ones_like(value) for name, value in state.items()}
        self.assertEqual(str(model.load_state_dict(other)), "<All keys matched successfully>")
        self.assertEqual(float(module.head.bias[0]), 1.0)
        outer = nn.ModuleDict({"net": model})
        self.assertEqual(list(outer.state_dict()), [f"net.{name}" for name in state])
        outer.load_state_dict(outer.state_dict())

    def test_A_checkpoint_of_ddp_loads(self):
        model = noria.torch.DataParallel(made(Cnn))
        theirs = DDP(made(Cnn))
        self.assertEqual(
            str(model.load_state_dict(theirs.state_dict())), "<All keys matched successfully>"
        )

        # Expect: DDP's values, also below another module, and a child that is called so is no
        # prefix.
        self.assert_close(model, theirs.module)
        outer = nn.ModuleDict({"net": model})
        outer.load_state_dict({f"net.{name}": p for name, p in theirs.state_dict().items()})
        child = noria.torch.DataParallel(nn.ModuleDict({"module": nn.Linear(2, 2)}))
        child.load_state_dict(child.state_dict())

    def test_A_model_that_is_copied_or_pickled_says_what_to_copy_instead(self):
        model = noria.torch.DataParallel(nn.Linear(2, 2))
        for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "neither copied nor pickled.*[.]module"):
                copy_of(model)
            copy_of(model.module)

    def test_C25_ranks_with_other_shapes_or_flags_raise_the_parameters_name(self):
        shape = (2, 3) if RANK == 0 else (3, 2)
        with self.assertRaisesRegex(noria.MismatchError, "weight"):
            noria.torch.DataParallel(nn.Linear(*shape, bias=False))
        with self.assertRaisesRegex(noria.MismatchError, "unused"):
            noria.torch.DataParallel(nn.Linear(2, 2), find_unused_parameters=RANK == 0)

    def test_C25_ranks_with_other_buffers_or_frozen_parameters_raise_the_name(self):
        def with_buffers(*values):
            module = nn.Linear(2, 2)
            for i, value in enumerate(values):
                module.register_buffer(f"buffer{i}", value)
            return module

        def with_frozen(columns):
            module = nn.Linear(2, 2)
            module.scale = nn.Parameter(torch.ones(2, columns), requires_grad=False)
            return module

        # As many bytes of another type, another shape, and one that others have not.
        dtype = torch.int32 if RANK == 0 else torch.float32
        with self.assertRaisesRegex(noria.MismatchError, f"buffer0, {dtype}"):
            noria.torch.DataParallel(with_buffers(torch.ones(4, dtype=dtype)))
        with self.assertRaisesRegex(noria.MismatchError, "buffer1"):
            noria.torch.DataParallel(with_buffers(torch.ones(1), torch.ones(1 + RANK)))
        with self.assertRaisesRegex(noria.MismatchError, "buffer0" if RANK else "is none"):
            noria.torch.DataParallel(with_buffers(*[torch.ones(1)] * RANK))
        with self.assertRaisesRegex(noria.MismatchError, "frozen parameter scale"):
            noria.torch.DataParallel(with_frozen(1 + RANK))

    def test_Modules_that_cannot_be_averaged_are_refused_with_the_reason(self):
        frozen = nn.Linear(2, 2).requires_grad_(False)
        for module, reason in (
            (frozen, "no parameter"),
            (nn.Linear(2, 2, device="meta"), "on meta"),
            (nn.Embedding(3, 2, sparse=True), "sparse"),
        ):
            with self.assertRaisesRegex(noria.ArgumentError, reason):
                noria.torch.DataParallel(module)

    def test_Caps_that_are_no_size_are_refused(self):
        for cap in (0, -1, 1e-9, 1e30, float("nan"), "25"):
            with self.assertRaisesRegex(noria.ArgumentError, "bucket_cap_mb"):
                noria.torch.DataParallel(nn.Linear(2, 2), bucket_cap_mb=cap)

    def test_A_sparse_gradient_among_unused_ones_is_raised_on_all_ranks(self):
        module = nn.Module()
        module.weight, module.bias = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))
        module.forward = lambda sparse: (
            F.embedding(torch.tensor([1]), module.weight, sparse=sparse) + module.bias
        )
        model = noria.torch.DataParallel(module, find_unused_parameters=True)
        with self.assertRaisesRegex(noria.ArgumentError, "another rank" if RANK else "sparse"):
            model(RANK == 0).sum().backward()
        model.reset()
        model.zero_grad(set_to_none=True)
        model(False).sum().backward()
        self.assertEqual(module.weight.grad[1].tolist(), [1.0, 1.0])

    def test_C27_a_parameter_that_was_replaced_or_frozen_is_found_at_forward(self):
        model = noria.torch.DataParallel(nn.Linear(2, 2))
        model.module.bias.requires_grad_(False)
        with self.assertRaisesRegex(noria.StateError, "frozen"):
            model(torch.ones(1, 2))
        model.module.bias.requires_grad_(True)
        model.module.weight = nn.Parameter(torch.ones(2, 2))
        with self.assertRaisesRegex(noria.StateError, "replaced"):
            model(torch.ones(1, 2))

    def test_C27_a_resized_or_converted_parameter_is_found_at_forward(self):
        model = noria.torch.DataParallel(nn.Linear(2, 4, bias=False))
        model.module.weight.data = torch.ones(2, 2)
        for change in (lambda: None, model.double):
            change()
            with self.assertRaisesRegex(noria.StateError, "resized"):
                model(torch.ones(1, 2))

    def test_C42_buffers_are_those_of_this_moment(self):
        module = nn.BatchNorm1d(2, momentum=0.5)
        model = noria.torch.DataParallel(module)
        module.running_mean = torch.full((2,), 5.0 + RANK)  # a new tensor
        model(torch.ones(2, 2) * RANK).sum().backward()

        # Expect: half rank 0's mean, and half this rank's batch.
        self.assertEqual(module.running_mean.tolist(), [2.5 + 0.5 * RANK] * 2)
        model.sync_buffers()
        self.assertEqual(module.running_mean.tolist(), [2.5] * 2)

    def test_A_closed_model_leaves_gradients_alone(self):
        model = noria.torch.DataParallel(nn.Linear(2, 1))
        model.close()
        model(torch.full((1, 2), 1.0 + RANK)).sum().backward()
        self.assertEqual(model.module.weight.grad.tolist(), [[1.0 + RANK] * 2])


class Hook(Base):
    def test_The_hook_under_ddp_gives_ddps_parameters(self):
        theirs = train(DDP(made(Cnn)), "images", 5)
        model = DDP(made(Cnn), bucket_cap_mb=0.002)
        model.register_comm_hook(noria.torch.HookState(), noria.torch.allreduce_hook)
        ours = train(model, "images", 5)
        if RANK == 0:
            self.assert_close(ours, theirs)
        self.assert_same_on_ranks(ours.parameters())

    def test_What_fails_below_the_hook_is_raised_from_backward_with_its_text(self):
        state = noria.torch.HookState()
        model = DDP(nn.Sequential(*(nn.Linear(9, 9) for _ in range(4))), bucket_cap_mb=0.0001)
        model.register_comm_hook(state, noria.torch.allreduce_hook)
        model(torch.ones(1, 9)).sum().backward()
        model(torch.ones(1, 9)).sum().backward()
        dist.barrier()
        state.comm.abort("the test aborts it")
        with self.assertRaisesRegex(RuntimeError, "the test aborts it"):
            model(torch.ones(1, 9)).sum().backward()

    def test_Ranks_of_a_process_group_share_a_communicator(self):
        group = dist.new_group([1, 0] if dist.get_world_size() == 2 else None)
        comm = noria.torch.communicator(group)
        data = torch.full((3,), float(RANK + 1))
        comm.all_reduce(noria.torch.memory_of(data))
        self.assertEqual((comm.size, data.tolist()), (2, [3.0] * 3))


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    unittest.main(verbosity=2 if RANK == 0 else 0)
