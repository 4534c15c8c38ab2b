"""Models of fully_shard (FSDP2) and of tensor parallelism: each rank has shards of parameters."""
import unittest
import warnings

import torch
from torch import nn

import natgrad
import oracle
import ranks
from front import Case, NEW, loss_of, random_batch

if NEW:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                                   parallelize_module)
    from torch.distributed.tensor import Replicate, Shard
OPTIONS = dict(damping=0.1, lr=0.1, clip="kl", kl_clip=1e-3)


class Positions(nn.Module):
    """Attention over four positions of two values."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x):
        x = x.unflatten(-1, (-1, 2))
        return self.attention(x, x, x)[0].flatten(-2)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 8), Positions(), nn.Linear(8, 3))


def train(model, k, data, passes=1):
    """Return the weights after three steps of SGD with preconditioned gradients, and the statuses."""
    optimizer, statuses = torch.optim.SGD(model.parameters(), 0.1), []
    for t in range(3):
        optimizer.zero_grad()
        for i in range(passes):
            x, y = data(2 * t + i)
            (loss_of(model, x, y) / passes).backward()
        statuses.append(k.step())
        optimizer.step()
    weights = [p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]
    return [weight.tolist() for weight in weights], statuses


def train_shards(rank, world, method, passes, shards_layers):
    model = make_model()
    for module in (model[0], model[3], model[4], model) if shards_layers else (model,):
        fully_shard(module)
    k = natgrad.KFAC(model, method=method, accumulation_steps=passes, **OPTIONS)

    def data(seed):
        x, y = random_batch(seed=seed, shape=(6,))
        return x[rank::world], y[rank::world]
    return train(model, k, data, passes)


class Text(nn.Module):
    """Tokens [n, 4]; the norm is between layers of tensor parallelism, the last layer is whole on each rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.words, self.up, self.down = nn.Embedding(10, 6), nn.Linear(6, 8), nn.Linear(8, 4)
        self.norm, self.mix, self.out = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.down(torch.tanh(self.up(self.words(tokens))))
        return self.out(self.mix(self.norm(x)).mean(1))


def text_batch(seed):
    torch.manual_seed(seed)
    return torch.randint(10, (8, 4)), torch.randint(3, (8,))


def make_for_text(model, kind, **options):
    """stat_decay is small, so that a wrong factor of G, as from a wrong number of samples, changes the result."""
    window = dict(window=3, clip="none") if kind == "MFAC" else dict(stat_decay=0.05, kl_clip=1e-3, clip="kl")
    return getattr(natgrad, kind)(model, damping=0.1, lr=0.1, **window, **options)


def make_parallel(mesh):
    """Return a model of which each rank of the mesh has shards."""
    model = Text()
    parallelize_module(model, mesh, {
        "words": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(),
        "down": RowwiseParallel(output_layouts=Shard(1)), "norm": SequenceParallel(),
        "mix": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True)})
    return model


def train_tensor_parallel(rank, world, kind, method, with_fsdp):
    if with_fsdp:
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
        model = fully_shard(make_parallel(mesh["tensor"]), mesh=mesh["data"])
        part = slice(rank // 2, None, world // 2)
    else:
        model, part = make_parallel(init_device_mesh("cpu", (world,))), slice(None)
    k = make_for_text(model, kind, method=method)

    def data(seed):
        x, y = text_batch(seed)
        return x[part], y[part]
    return train(model, k, data)


def drop_and_pause(rank, world):
    """Return how often the gradients of tensor parallelism were gathered in a paused pass, and the warnings about dropped ones."""
    from natgrad import _gradients
    gathered, original = [], _gradients.gather
    _gradients.gather = lambda g: gathered.append(1) or original(g)
    model, seen = make_parallel(init_device_mesh("cpu", (world,))), []
    k = make_for_text(model, "KFAC")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for t in range(2):
            model.zero_grad()
            loss_of(model, *text_batch(t)).backward()
            if t == 0:
                seen.append(len(gathered))
        model.zero_grad()
        loss = loss_of(model, *text_batch(2))
        before = len(gathered)
        k.hook_enabled = False
        loss.backward()
        seen.append(len(gathered) - before)
    return seen, [str(one.message) for one in found if "were dropped without a step" in str(one.message)]


def errors(rank, world):
    """Return the messages of optimizers and methods that do not work with shards."""
    mesh, said = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "tensor")), []
    both = fully_shard(make_parallel(mesh["tensor"]), mesh=mesh["data"])
    for make in (lambda: natgrad.SGD(fully_shard(make_model()), lr=0.1), lambda: natgrad.SGD(make_parallel(mesh["tensor"]), lr=0.1),
                 lambda: natgrad.KFAC(make_parallel(mesh["tensor"]), method="dp-kfac"), lambda: natgrad.KFAC(both, method="kaisa")):
        try:
            make()
        except natgrad.Error as error:
            said.append(str(error))
    return said


@unittest.skipUnless(NEW, "fully_shard is in PyTorch 2")
class ShardedParameters(Case):
    def test_shards_match_one_rank(self):
        for method, passes in (("natgrad", 1), ("natgrad", 2), ("kaisa", 1)):
            model = make_model()
            k = natgrad.KFAC(model, method=method, accumulation_steps=passes, **OPTIONS)
            expected, _ = train(model, k, lambda seed: random_batch(seed=seed, shape=(6,)), passes)
            for shards_layers in (False, True):
                for found, statuses in ranks.run_on_ranks(2, train_shards, method, passes, shards_layers):
                    self.assertEqual(statuses, [0, 0, 0])
                    for a, b in zip(found, expected):
                        self.assertLess(oracle.relative_difference(torch.tensor(a), torch.tensor(b).double()), 2e-5)

    def test_tensor_parallel_ranks_match_one_rank(self):
        for kind, method, cases in (("KFAC", "natgrad", ((2, False), (2, True), (4, True))), ("KFAC", "kaisa", ((2, False),)),
                                    ("Eva", "eva", ((2, False),)), ("MFAC", "mfac", ((2, False),))):
            model = Text()
            expected, _ = train(model, make_for_text(model, kind, method=method), text_batch)
            for world, with_fsdp in cases:
                for found, statuses in ranks.run_on_ranks(world, train_tensor_parallel, kind, method, with_fsdp):
                    self.assertEqual(statuses, [0, 0, 0])
                    for a, b in zip(found, expected):
                        self.assertLess(oracle.relative_difference(torch.tensor(a), torch.tensor(b).double()), 2e-5)

    def test_tensor_parallel_ranks_notice_dropped_gradients_and_pauses(self):
        for (usual, paused), said in ranks.run_on_ranks(2, drop_and_pause):
            self.assertGreater(usual, 0)
            self.assertEqual((paused, len(said)), (0, 1))

    def test_unsupported_methods_are_refused(self):
        for said in ranks.run_on_ranks(2, errors):
            self.assertEqual(len(said), 4)
            for text, part in zip(said, ("'0.weight' is a DTensor: sharded", "'words.weight' is a DTensor: sharded",
                                         "statistics = local: not supported with tensor-parallel", "pass own_batches=True")):
                self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
