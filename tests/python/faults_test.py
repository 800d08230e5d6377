"""What a training script sees when another rank dies or stops half-way."""

import os
import signal
import unittest

import noria
import noria.torch
import torch
from ranks import run_ranks

torch.set_num_threads(1)


def model_of(comm):
    torch.manual_seed(comm.rank)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return noria.torch.DataParallel(module, comm)


def backward(model):
    model(torch.ones(2, 4)).sum().backward()


class Fails(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(_context, value):
        return value.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise ArithmeticError("of the user's own")


class Faults(unittest.TestCase):
    def test_A_killed_rank_raises_from_the_others_backward(self):
        def rank(comm):
            model = model_of(comm)
            try:
                for step in range(1000):
                    if step == 1 and comm.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    backward(model)  # rank 1 may be through the first while rank 0 is not
            except (noria.PeerError, noria.NetworkError) as error:
                return str(error)

        survivor, killed = run_ranks(self, 2, rank)

        # Expect: an exception that names the rank.
        self.assertIsNone(killed)
        self.assertIn("rank 1", survivor)

    def test_A_backward_that_raised_is_given_up_by_reset_on_all_ranks(self):
        def rank(comm):
            model = model_of(comm)
            seen = []
            hidden = model.module[0]
            handle = None
            if comm.rank == 1:
                handle = hidden.register_forward_hook(lambda _m, _i, out: Fails.apply(out))
            try:
                backward(model)
            except ArithmeticError as error:
                seen.append(str(error))
                handle.remove()
                try:
                    model(torch.ones(2, 4))
                except noria.StateError as error:
                    seen.append(str(error))
                model.reset()
            except noria.AbortedError as error:
                seen.append(str(error))
                model.reset()
            model.zero_grad()
            backward(model)
            seen.append(model.module[0].weight.grad.tolist())
            return seen

        first, second = run_ranks(self, 2, rank)

        # Expect: the user's exception here, ABORTED there, the remedy, and a good step behind it.
        self.assertIn("rank 1", first[0])
        self.assertEqual(second[0], "of the user's own")
        self.assertIn("reset()", second[1])
        self.assertEqual(first[1], second[2])


if __name__ == "__main__":
    unittest.main()
