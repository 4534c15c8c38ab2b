"""Models of fully_shard (FSDP2): each rank has a shard of each parameter."""
import unittest

import torch
from torch import nn

import natgrad
import oracle
import ranks
from front import Case, NEW, loss_of, random_batch

if NEW:
    from torch.distributed.fsdp import fully_shard
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


def errors(rank, world):
    """Return the messages for an optimizer that writes the weights, and for a model that is also tensor-parallel."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    fused, parallel, said = make_model(), make_model(), []
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "tensor"))
    parallelize_module(parallel, mesh["tensor"], {"0": ColwiseParallel()})
    for model, make, where in ((fused, natgrad.SGD, None), (parallel, natgrad.KFAC, mesh["data"])):
        fully_shard(model, mesh=where)
        try:
            make(model, lr=0.1)
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

    def test_fused_update_and_tensor_parallel_are_refused(self):
        for said in ranks.run_on_ranks(2, errors):
            self.assertEqual(len(said), 2)
            for text in said:
                self.assertIn("'0.weight' is a DTensor: sharded", text)


if __name__ == "__main__":
    unittest.main()
