"""nn.MultiheadAttention: the projections of query, key and value, and the output projection, are linear layers."""
import copy
import pickle

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import natgrad
import oracle
from front import DAMPING, NEW, Case, make_preconditioner

SAMPLES, LENGTH, WIDTH = 3, 5, 8
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
KINDS = {  # arguments of MultiheadAttention; are key and value another tensor than the query?; arguments of the call
    "self-attention": ({}, False, {}),
    "batch first": (dict(batch_first=True), False, dict(need_weights=False)),
    "a bias of key and value, no other bias": (dict(bias=False, add_bias_kv=True), False, {}),
    "another memory": (dict(batch_first=True, add_zero_attn=True), True, {}),
    "other widths": (dict(kdim=6, vdim=6), True, dict(need_weights=False)),
    "a mask": ({}, False, dict(attn_mask=torch.triu(torch.full((LENGTH, LENGTH), float("-inf")), 1))),
}


class Attention(nn.Module):
    """A model with MultiheadAttention."""

    def __init__(self, options, call):
        super().__init__()
        torch.manual_seed(1)
        self.attention, self.call = nn.MultiheadAttention(WIDTH, 2, **options), call

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        return self.attention(x, memory, memory, **self.call)[0]


class FourLinears(nn.Module):
    """The same model from four linear layers: softmax(q k' / sqrt(width of a head)) v for each head."""

    def __init__(self, model):
        super().__init__()
        mha = model.attention
        self.first, self.mask, self.zero = mha.batch_first, model.call.get("attn_mask"), mha.add_zero_attn
        weights = mha.in_proj_weight.chunk(3) if mha._qkv_same_embed_dim else (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
        biases = (None,) * 3 if mha.in_proj_bias is None else mha.in_proj_bias.chunk(3)
        weights, biases = (*weights, mha.out_proj.weight), (*biases, mha.out_proj.bias)
        for name, weight, bias in zip(NAMES, weights, biases):
            layer = nn.Linear(*weight.shape[::-1], bias=bias is not None)
            layer.weight.data.copy_(weight)
            if bias is not None:
                layer.bias.data.copy_(bias)
            setattr(self, name, layer)
        self.more = [None if one is None else one.detach() for one in (mha.bias_k, mha.bias_v)]

    def forward(self, x, memory):
        x, memory = (one if self.first else one.transpose(0, 1) for one in (x, memory))
        q, k, v = self.q_proj(x), self.k_proj(memory), self.v_proj(memory)
        if self.more[0] is not None:
            k, v = (torch.cat([one, more.to(one.dtype).expand(len(one), 1, WIDTH)], 1) for one, more in zip((k, v), self.more))
        if self.zero:
            k, v = (torch.cat([one, torch.zeros_like(one[:, :1])], 1) for one in (k, v))
        q, k, v = (one.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2) for one in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (WIDTH // 2)**0.5
        if self.mask is not None:
            scores = scores + self.mask
        y = self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y if self.first else y.transpose(0, 1)


def make_data(options, separate, seed=2):
    torch.manual_seed(seed)
    first = options.get("batch_first", False)

    def draw(length, width):
        return torch.randn(*((SAMPLES, length) if first else (length, SAMPLES)), width)
    x = draw(LENGTH, WIDTH)
    return x, draw(4, options.get("kdim", WIDTH)) if separate else x, draw(LENGTH, WIDTH)


def loss_of(model, x, memory, y):
    x, memory, y = (one.to(next(model.parameters()).dtype) for one in (x, memory, y))
    return F.mse_loss(model(x, memory), y)


class MultiheadAttention(Case):
    def check_against_linears(self, kind, run=lambda model, data: loss_of(model, *data).backward()):
        options, separate, call = KINDS[kind]
        model, data = Attention(options, call), make_data(options, separate)
        first, mha = options.get("batch_first", False), model.attention
        four, rows = FourLinears(model), data if first else [one.transpose(0, 1) for one in data]
        four.first = True  # the oracle reads [samples, positions, features]
        self.assertLess((loss_of(four, *rows) - loss_of(model, *data)).abs().item(), 1e-6)
        expected = oracle.kfac_gradients(four, NAMES, lambda m: [loss_of(m, *rows)], DAMPING)
        k = make_preconditioner(model, batch_first=first)
        self.assertEqual(sum(row["covered"] for row in k.explain()), 4 if mha.in_proj_bias is None else 8)
        run(model, data)
        self.assertEqual(k.step(), 0)
        grads = {f"out_proj.{name}": p.grad for name, p in mha.out_proj.named_parameters()}
        packed = [mha.q_proj_weight.grad, mha.k_proj_weight.grad, mha.v_proj_weight.grad] if mha.in_proj_weight is None \
            else mha.in_proj_weight.grad.chunk(3)
        for i, name in enumerate(NAMES[:3]):
            grads[f"{name}.weight"] = packed[i]
            if mha.in_proj_bias is not None:
                grads[f"{name}.bias"] = mha.in_proj_bias.grad.chunk(3)[i]
        self.assert_near_oracle(grads, expected)

    def test_projections_match_dense_kfac(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.check_against_linears(kind)

    def test_activation_checkpointing(self):
        def run(model, data, **more):
            model.train()
            x, memory, y = data
            F.mse_loss(checkpoint(model, x.requires_grad_(), memory, **more), y).backward()
        for reentrant in (True, False) if NEW else (None,):
            more = {} if reentrant is None else dict(use_reentrant=reentrant)
            for kind in ("self-attention", "another memory"):
                with self.subTest(kind, reentrant=reentrant):
                    self.check_against_linears(kind, lambda model, data: run(model, data, **more))

    def test_updates_match_the_optimizer_of_pytorch(self):
        """natgrad.SGD updates rows of the packed weight. The weights equal KFAC with torch.optim.SGD up to rounding."""
        weights = []
        for fused in (False, True):
            model = Attention({}, {})
            if fused:
                k = optimizer = natgrad.SGD(model, 0.1, momentum=0.9, damping=DAMPING, batch_first=False)
            else:
                k = natgrad.KFAC(model, lr=0.1, damping=DAMPING, batch_first=False)
                optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            for t in range(4):
                x, memory, y = make_data({}, False, seed=t)
                optimizer.zero_grad()
                loss_of(model, x, x, y).backward()
                if not fused:
                    k.step()
                optimizer.step()
            weights.append([p.detach() for p in model.parameters()])
        for one, other in zip(*weights):
            self.assertLess(oracle.relative_difference(one, other.double()), 1e-5)

    def test_results_and_copies_of_the_model_are_unchanged(self):
        model, (x, memory, _) = Attention({}, {}), make_data({}, True)
        plain = model(x, memory)
        k = make_preconditioner(model, batch_first=False)
        for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            got = other(x, memory)
            self.assertIs(type(got), torch.Tensor)
            self.assertTrue(torch.equal(got, plain))
            other.eval()
            with torch.no_grad():
                self.assertLess((other(x, memory) - plain).abs().max().item(), 1e-6)
            other.train()
        state = k.state_dict()
        k.load_state_dict(state)
        k.close()
        self.assertFalse(model.attention._forward_pre_hooks)

    def test_attention_without_curvature(self):
        def rows_of(model, k):
            return {row["name"]: row["why"] for row in k.explain() if not row["covered"]}
        self.silence_warnings()
        packed = ["attention.in_proj_bias", "attention.in_proj_weight"]
        out = ["attention.out_proj.bias", "attention.out_proj.weight"]
        model = Attention({}, {})
        found = rows_of(model, make_preconditioner(model, method="kaisa"))
        self.assertEqual(sorted(found), packed + out)
        self.assertIn("MultiheadAttention does not call it", found[out[0]])
        model = Attention({}, {})
        model.attention.forward = model.attention.forward
        self.assertIn("custom forward", rows_of(model, make_preconditioner(nn.Sequential(model, nn.Linear(3, 3))))["0." + packed[0]])
        model = Attention({}, {})
        model.attention.in_proj_weight.requires_grad_(False)
        found = rows_of(model, make_preconditioner(model))
        self.assertEqual(sorted(found), packed)
        self.assertIn("its weight is frozen", found[packed[0]])

    def test_removed_hook_is_an_error(self):
        model, data = Attention({}, {}), make_data({}, False)
        k = make_preconditioner(model, batch_first=False)
        model.attention._forward_pre_hooks.clear()
        loss_of(model, *data).backward()
        with self.assert_refused("layer 'attention.q_proj': its hook was removed"):
            k.step()


if __name__ == "__main__":
    import unittest
    unittest.main()
