"""Sharded layers: the preconditioner of GPT-NeoX on modules as in Megatron, over gloo."""
import os
import tempfile
import unittest
import warnings

import torch
from torch import nn

import natgrad.compat as compat
import ranks
from front import Case

WIDTHS = (6, 8, 5)
dist = torch.distributed


class SumGradients(torch.autograd.Function):
    """Forward: the identity; backward: sum the gradients over the group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        if ctx.group is not None:
            dist.all_reduce(g, group=ctx.group)
        return g, None


class SumOutputs(torch.autograd.Function):
    """Forward: sum over the group; backward: the identity."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        if group is not None:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class ColumnParallelLinear(nn.Module):
    def __init__(self, weight, bias, group):
        super().__init__()
        self.weight, self.group = nn.Parameter(weight), group
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias), None


class RowParallelLinear(ColumnParallelLinear):
    def forward(self, x):
        return SumOutputs.apply(nn.functional.linear(x, self.weight), self.group), self.bias


class PipelineModule(nn.Module):
    """The whole layer, or the shard of one member of a group."""

    def __init__(self, bias, cut=(0, 1), group=None):
        super().__init__()
        torch.manual_seed(3)
        up, down = torch.randn(WIDTHS[1], WIDTHS[0]) / 3, torch.randn(WIDTHS[2], WIDTHS[1]) / 3
        first, second = torch.randn(WIDTHS[1]), torch.randn(WIDTHS[2])
        part = slice(*[(0, 3, WIDTHS[1])[i] for i in cut]) if group is not None else slice(None)  # 3 and 5 of 8
        self.group = group
        self.up = ColumnParallelLinear(up[part].clone(), first[part].clone() if bias else None, group)
        self.down = RowParallelLinear(down[:, part].clone(), second if bias else None, group)

    def forward(self, x):
        h = torch.tanh(self.up(SumGradients.apply(x, self.group))[0])
        out, bias = self.down(h)
        return out if bias is None else out + bias


def train_steps(model, k, data, group, count=3):
    found = []
    for t in range(count):
        torch.manual_seed(100 * t + data)
        model.zero_grad()
        model(torch.randn(7, 2, WIDTHS[0])).pow(2).mean().backward()  # [T, B, F]
        for p in model.parameters():
            if group is not None:
                dist.all_reduce(p.grad, group=group)
                p.grad /= dist.get_world_size(group)
        k.step()
        found.append([p.grad.clone() for p in model.parameters()])
    return found


def compare_shard_with_whole(rank, world, bias, folder):
    """Return the largest relative difference between this rank's shard and the same elements of the whole layer."""
    warnings.simplefilter("ignore")
    across = world == 4 and bias  # ranks of a data group are adjacent
    grid = [[0, 2], [1, 3]] if across else [[r, r + 1] for r in range(0, world, 2)]
    models, datas = [dist.new_group(g) for g in grid], [dist.new_group(g) for g in zip(*grid)]
    data = next(i for i, g in enumerate(grid) if rank in g)
    member = grid[data].index(rank)
    whole, part = PipelineModule(bias), PipelineModule(bias, (member, member + 1), models[data])
    options = dict(lr=0.1, kl_clip=1e-4, data_parallel_group=datas[member], damping=0.01)
    one = compat.GPTNeoXKFACPreconditioner(whole, **options)
    other = compat.GPTNeoXKFACPreconditioner(part, model_parallel_group=models[data], factor_checkpoint_dir=folder,
                                             **options)
    cut = slice(*((0, 3) if member == 0 else (3, 8)))
    places = dict(zip([n for n, _ in part.named_parameters()],
                      [lambda g: g[cut]] + [lambda g: g[cut]] * bias + [lambda g: g[:, cut]] + [lambda g: g] * bias))
    far = 0.0
    for expected, got in zip(train_steps(whole, one, data, datas[member]), train_steps(part, other, data, datas[member])):
        for place, e, g in zip(places.values(), expected, got):
            far = max(far, ((place(e) - g).abs().max() / e.abs().max()).item())
    clips = one.report()["clip"], other.report()["clip"]
    state = other.state_dict()  # a file for each layer
    again = compat.GPTNeoXKFACPreconditioner(PipelineModule(bias), factor_checkpoint_dir=folder, **options)
    again.load_state_dict(state)
    again.factor_checkpoint_dir = None
    fields, loaded = one.state_dict()["fields"], again.state_dict()["fields"]
    same = all(torch.allclose(fields[n], loaded[n], rtol=1e-5, atol=1e-6) for n in ("up/A", "up/G", "down/A", "down/G"))
    return far, clips, same


class StageOfTwo(nn.Module):
    """A pipeline stage with one of the two layers."""

    def __init__(self, whole, last):
        super().__init__()
        name, layer = ("down", whole.down) if last else ("up", whole.up)
        setattr(self, name, type(layer)(layer.weight.detach().clone(), layer.bias.detach().clone(), None))
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)


StageOfTwo.__name__ = "PipelineModule"


def compare_stages_with_whole(rank, world):
    """Two stages of two data ranks, rank = stage * 2 + data: compare clip and gradients with a model of both layers."""
    warnings.simplefilter("ignore")
    datas, pipes = [dist.new_group(g) for g in ([0, 1], [2, 3])], [dist.new_group(g) for g in ([0, 2], [1, 3])]
    stage, data = divmod(rank, 2)
    whole = PipelineModule(True)
    half = StageOfTwo(whole, stage)
    options = dict(lr=0.1, kl_clip=1e-4, data_parallel_group=datas[stage], damping=0.01)
    one = compat.GPTNeoXKFACPreconditioner(whole, **options)
    part = compat.GPTNeoXKFACPreconditioner(half, pipeline_parallel_group=pipes[data], **options)
    far, clips = 0.0, []
    name, seen, other = ("down", whole.down, half.down) if hasattr(half, "down") else ("up", whole.up, half.up)
    for t in range(3):
        shown = []
        handles = [seen.register_forward_hook(lambda m, i, o: shown.append(i[0].detach())),
                   seen.register_full_backward_hook(lambda m, i, o: shown.append(o[0]))]
        expected = dict(zip([n for n, _ in whole.named_parameters()], train_steps(whole, one, 10 * t + data, datas[stage], 1)[0]))
        for handle in handles:
            handle.remove()
        half.zero_grad(set_to_none=True)
        other(shown[0].requires_grad_())[0].backward(shown[1])
        for p in half.parameters():  # the caller adds the bias of `down`
            p.grad = shown[1].sum((0, 1)) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=datas[stage])
            p.grad /= 2
        part.step()
        clips.append((one.report()["clip"], part.report()["clip"]))
        for n, p in half.named_parameters():
            far = max(far, ((expected[n] - p.grad).abs().max() / expected[n].abs().max()).item())
    return far, clips


class Shards(Case):
    def test_stages_match_whole_model(self):
        found = ranks.run_on_ranks(4, compare_stages_with_whole)
        for far, clips in found:
            self.assertLess(far, 1e-5)
            for one, both_stages in clips:
                self.assertLess(abs(one / both_stages - 1), 1e-5)
                self.assertLess(both_stages, 1)
        self.assertEqual(len({tuple(c for _, c in clips) for _, clips in found}), 1)

    def test_shards_match_whole_layer(self):
        for world in (2, 4):
            for bias in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    found = ranks.run_on_ranks(world, compare_shard_with_whole, bias, os.path.join(folder, "factors"))
                for far, (one, other), same in found:
                    self.assertLess(far, 1e-5, (world, bias))
                    self.assertLess(abs(one / other - 1), 1e-5)
                    self.assertLess(other, 1)
                    self.assertTrue(same)
                self.assertEqual(len({clips[1] for _, clips, _ in found}), 1)


if __name__ == "__main__":
    unittest.main()
