"""Embeddings over ranks of torch.distributed: shards of a batch give the numbers of the whole batch."""
import contextlib
import copy
import math
import unittest

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import natgrad
import ranks
from front import Case, make_preconditioner
from test_embeddings import EmbeddingNet, counts_per_sample, embedding_gradient_by_definition, make_table, positions_of

SAMPLES, T = 12, 5


class EmbeddingModel(EmbeddingNet):
    """`how`: under autocast, with checkpointing, with a second table of positions, or with the head tied to the table."""

    def __init__(self, how):
        super().__init__(make_table(padding_idx=2 if how == "padding" else None))
        self.how = how
        del self.head_input
        if how == "positions":
            torch.manual_seed(4)
            self.places = nn.Embedding(T, 4)
        if how == "tied":
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.table.weight

    def head_input(self, x, e):
        return e + self.places(positions_of(x)) if self.how == "positions" else e

    def forward(self, x):
        if self.how == "checkpoint":
            return checkpoint(super().forward, x, use_reentrant=False)
        if self.how == "autocast" and self.head.weight.dtype == torch.float32:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()
        return super().forward(x)


def random_tokens(how):
    torch.manual_seed(8)
    x = torch.randint(0, 7, (SAMPLES, T))
    if how == "padding":  # equally much padding on each rank and in each micro-batch
        x[x == 2] = 3
        x[:, 4] = 2
    return x, torch.rand(SAMPLES, T, 7, dtype=torch.float64)


def loss_of(model, x, factor):
    y = model(x)
    return (torch.sin(3 * y) * factor[..., :y.shape[-1]].to(y.dtype)).sum() / len(x)


def gradients_of_rank(rank, world, how, accumulate):
    """Return the gradients of this rank's shard; accumulate: of two micro-batches, the first of which is not reduced."""
    model, (x, factor) = DDP(EmbeddingModel(how)), random_tokens(how)
    x, factor = x[rank::world], factor[rank::world]
    k, cut = make_preconditioner(model), 1 if accumulate else 0
    for part in (slice(0, cut), slice(cut, None))[0 if accumulate else 1:]:
        share = len(x[part]) / len(x)
        with model.no_sync() if accumulate and part.start == 0 else contextlib.nullcontext():
            k.begin(len(x[part]), share)
            (loss_of(model, x[part], factor[part]) * share).backward()
    note = k.step()
    why = {row["name"]: (row["family"], row["why"]) for row in k.explain()}
    return note, {name: p.grad.tolist() for name, p in model.module.named_parameters()}, why


def weights_with_and_without_resume(rank, world, fraction):
    """natgrad.SGD: return the weights after five steps, and after three steps, a saved and loaded state, and two steps."""
    found = []
    for resumed in (False, True):
        model = DDP(EmbeddingModel("positions"))
        x, factor = (part[rank::world] for part in random_tokens(""))
        def make_optimizer():
            return natgrad.SGD(model, 0.05, momentum=0.9, grad_worker_fraction=fraction, solve_period=2, damping=0.1)
        optimizer = make_optimizer()
        for t in range(5):
            if resumed and t == 3:
                state = optimizer.state_dict()
                optimizer.close()
                optimizer = make_optimizer()
                optimizer.load_state_dict(copy.deepcopy(state))
            model.zero_grad()
            loss_of(model, (x + t) % 7, factor).backward()
            optimizer.step()
        found.append([p.tolist() for p in model.parameters()])
    return found


class EmbeddingRanks(Case):
    def assert_near(self, got, expected, tolerance):
        worst = ((torch.tensor(got).double() - expected).abs().max() / expected.abs().max()).item()
        self.assertLess(worst, tolerance)

    def test_shards_match_whole_batch(self):
        for how in ("plain", "padding", "checkpoint", "autocast"):
            x, factor = random_tokens(how)
            model = EmbeddingModel(how if how == "padding" else "plain")
            expected, tolerance = embedding_gradient_by_definition(
                model, "table", lambda m: loss_of(m, x, factor), counts_per_sample(SAMPLES, 2 if how == "padding" else None))
            if how == "autocast":  # y and its gradient have 8 bits, and sin(3 y) triples the error
                tolerance = 8 * 2.0**-8
            for world in (2, 4):
                for accumulate in (False, True):
                    with self.subTest(how, world=world, accumulate=accumulate):
                        for note, found, why in ranks.run_on_ranks(world, gradients_of_rank, how, accumulate):
                            self.assertEqual((note, why["table.weight"][0]), (0, "kronecker"))
                            self.assert_near(found["table.weight"], expected, tolerance)

    def test_position_table_matches_definition(self):
        """Each rank reads its table once for its samples: G is the mean over ranks of B/W times the square of a mean."""
        x, factor = random_tokens("positions")
        for world in (2, 4):
            own = SAMPLES // world

            def position_counts(one, _tokens, g):
                return one.sum(0), math.sqrt(own) * world * g
            expected, tolerance = embedding_gradient_by_definition(
                EmbeddingModel("positions"), "places",
                lambda m: sum(loss_of(m, x[r::world], factor[r::world]) for r in range(world)) / world, position_counts)
            with self.subTest(world=world):
                for note, found, why in ranks.run_on_ranks(world, gradients_of_rank, "positions", False):
                    self.assertEqual((note, why["places.weight"][0]), (0, "kronecker"))
                    self.assert_near(found["places.weight"], expected, tolerance)

    def test_tied_table_keeps_gradient(self):
        """The table keeps its gradient, which is the gradient of the whole batch."""
        x, factor = random_tokens("tied")
        model = EmbeddingModel("tied").double()
        loss_of(model, x, factor).backward()
        for world in (2, 4):
            for accumulate in (False, True):
                with self.subTest(world=world, accumulate=accumulate):
                    for note, found, why in ranks.run_on_ranks(world, gradients_of_rank, "tied", accumulate):
                        self.assertEqual((note, why["table.weight"]), (0, ("none", "tied to 'head.weight' of a Linear, whose factors differ")))
                        self.assert_near(found["table.weight"], model.table.weight.grad, 1e-6)  # a few sums in float32

    def test_resumed_update_has_same_bits(self):
        for world, fraction in ((2, 0), (4, 0.5)):
            with self.subTest(world=world, fraction=fraction):
                found = ranks.run_on_ranks(world, weights_with_and_without_resume, fraction)
                for whole, resumed in found:
                    self.assertEqual(whole, resumed)
                    self.assertEqual(whole, found[0][0])


if __name__ == "__main__":
    unittest.main()
