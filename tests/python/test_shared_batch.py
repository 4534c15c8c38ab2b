"""Ranks of torch.distributed that share their batches have the losses of one rank with all samples, for every method."""
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import natgrad
import ranks
from front import Case, random_batch, loss_of

WINDOW = dict(window=3, damping=0.1)
LEAK = dict(method="mpd-kfac", solver="cholesky", eigen_floor=0, damping_split="pi", damping_leak="owner", damping=0.1)
# method: (class, options, whether ranks with batches of their own give other losses than one rank)
TABLE = {
    "natgrad": ("KFAC", dict(solve_period=1, damping=0.1), False),
    "spngd": ("SPNGD", dict(damping=0.1), False),
    "kaisa": ("KFAC", dict(method="kaisa", stat_start="first", solve_period=1, damping=1e-3),
              True),  # an initial identity would hide the differences
    "mpd-kfac": ("KFAC", dict(method="mpd-kfac", damping=0.1), False),
    "mpd-kfac, inverse": ("KFAC", LEAK, True),
    "eva-kfac": ("KFAC", dict(method="eva-kfac", damping=0.1), True),
    "sam": ("KFAC", dict(method="sam", radius=1e3), True),
    "ekfac": ("EKFAC", dict(damping=0.1, solve_period=1), False),
    "eva": ("Eva", dict(method="eva", damping=1e-4), True),
    "eva-f": ("Eva", dict(method="eva-f"), True),
    "eva-natgrad": ("Eva", dict(damping=0.1), False),
    "adasgd": ("Eva", dict(method="adasgd"), False),
    "mfac": ("MFAC", WINDOW, False),
    "ggt": ("GGT", WINDOW, False),
    "efcp": ("MFAC", dict(WINDOW, method="efcp", window_density=0.5), False),
    "lowrank-mfac": ("MFAC", dict(WINDOW, method="lowrank-mfac"), False),
    "sparse-ggt": ("GGT", dict(WINDOW, method="sparse-ggt", window_density=0.5), False),
    **{name: ("Preconditioner", dict(method=name, moment_epsilon=0.1), False)
       for name in ("adam", "kfac-adam", "muon", "torch-muon", "newton-muon")},
    # The Gram matrix of a longer axis has null vectors, which rounding determines.
    **{name: ("Preconditioner", dict(method=name, moment_epsilon=1, max_axis=5), False) for name in ("soap", "soap-natgrad")},
    "shampoo": ("Preconditioner", dict(method="shampoo", damping=0.1, max_axis=5, grafting="adam"), False),
    "kl-shampoo": ("Preconditioner", dict(method="kl-shampoo", damping=0.1, max_axis=5), False),
    **{name: ("MFAC", dict(method=name, window_density=0.5), False) for name in ("topk-sgd", "topk-adam", "topk-adagrad")},
}
# Statistics come from the samples of one rank.
LOCAL = {"dp-kfac"}
STEPS, SAMPLES = 4, 24


def small_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5), nn.Tanh(), nn.Linear(5, 3))


def sample_range(rank, world, even=True):
    """This rank's range of samples: equal shares, or 9 and 15 samples."""
    cut = [SAMPLES * r // world for r in range(world + 1)] if even or world == 1 else [0, 9, SAMPLES]
    return cut[rank], cut[rank + 1]


def losses(rank, world, name, even=True, calls_begin=True, **more):
    """Return the losses of all samples before each step."""
    kind, options, _ = TABLE[name]
    model = small_net()
    model = DDP(model) if world > 1 else model
    k = getattr(natgrad, kind)(model, lr=0.1, **options, **more)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin, end = sample_range(rank, world, even)
    found = []
    for t in range(STEPS):
        x, y = random_batch(SAMPLES, seed=20 + t, shape=(2, 5, 5))
        optimizer.zero_grad()
        share = 1.0 if even else (end - begin) * world / SAMPLES  # DistributedDataParallel averages over ranks
        if not even and calls_begin:
            k.begin(end - begin, share, whole=SAMPLES, first=begin)
        loss = loss_of(model, x[begin:end], y[begin:end]) * share
        loss.backward()
        k.step()
        optimizer.step()
        total = loss.detach() / world
        if world > 1:
            torch.distributed.all_reduce(total)
        found.append(total.item())
    k.close()
    return found


def losses_of_all_methods(rank, world):
    """Return, for every row of TABLE, the losses with a shared batch (the default) and with own batches."""
    return {name: (losses(rank, world, name), losses(rank, world, name, own_batches=True)) for name in TABLE}


def losses_with_uneven_parts(rank, world, names):
    return [losses(rank, world, name, even=False) for name in names]


def errors_without_begin(rank, world):
    """Unequal batches without begin() are an error on all ranks, except for methods that do not depend on the batch."""
    found = [losses(rank, world, "natgrad", even=False, calls_begin=False)]
    for name in ("eva", "kaisa", "eva-kfac"):
        try:
            found.append(losses(rank, world, name, even=False, calls_begin=False))
        except natgrad.Error as error:
            found.append(str(error))
    return found


def losses_of_one_rank(rank, world, names):
    return [losses(rank, world, name) for name in names]


def largest_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


class SharedBatch(Case):
    def test_shared_batch_matches_one_rank(self):
        self.assertEqual({name.split(",")[0] for name in TABLE} | LOCAL, {row["name"] for row in natgrad.methods()})
        one = dict(zip(TABLE, ranks.run_on_ranks(1, losses_of_one_rank, list(TABLE))[0]))
        for world in (2, 3):
            for found in ranks.run_on_ranks(world, losses_of_all_methods):
                for name, (shared, own) in found.items():
                    with self.subTest(method=name, world=world):
                        self.assertLess(largest_difference(shared, one[name]), 2e-5)
                        if TABLE[name][2]:
                            self.assertGreater(largest_difference(own, one[name]), 1e-4)
                        else:
                            self.assertLess(largest_difference(own, one[name]), 2e-5)

    def test_uneven_parts_match_one_rank(self):
        names = ["eva", "kaisa", "eva-kfac", "mpd-kfac, inverse", "natgrad"]
        one = ranks.run_on_ranks(1, losses_of_one_rank, names)[0]
        for found in ranks.run_on_ranks(2, losses_with_uneven_parts, names):
            for name, a, b in zip(names, found, one):
                with self.subTest(method=name):
                    self.assertLess(largest_difference(a, b), 2e-5)

    def test_uneven_parts_without_begin_are_refused(self):
        for natgrads, *others in ranks.run_on_ranks(2, errors_without_begin):
            self.assertEqual(len(natgrads), STEPS)
            for text in others:
                self.assertRegex(text, "ng_batch.whole differs between ranks.*begin.samples, whole=.*own_batches=True")

    def test_begin_refuses_wrong_ranges(self):
        k = natgrad.Eva(small_net())
        for more in (dict(whole=4), dict(first=0), dict(whole=4, first=2), dict(whole=4, first=-1), dict(whole=2.5, first=0)):
            with self.assert_refused("first is .* and whole .*, expected both or neither, and 0 <= first <= whole - 3|"
                                     "(first is -1|whole is 2.5), expected a whole number of at least [01]"):
                k.begin(3, **more)
        with self.assert_refused("own_batches is 'no', expected True or False"):
            natgrad.Eva(small_net(), own_batches="no")
        with self.assert_refused("own_batches is 1, expected True or False"):
            natgrad.SGD(small_net(), 0.1, own_batches=1)


if __name__ == "__main__":
    unittest.main()
