"""The model gpt-char of `natgrad train` against the same model in PyTorch: gradients, and a step of K-FAC."""
import json
import math
import os
import struct
import subprocess
import tempfile
import unittest

import torch
from torch import nn
import torch.nn.functional as F

import oracle
from front import Case, NEW
from test_records import PROGRAM

WIDTH, BLOCKS, HEADS, CONTEXT, SAMPLES = 16, 2, 2, 8, 9
TEXT = ("it is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want" * 2)[
    :SAMPLES * CONTEXT + 1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(WIDTH, WIDTH)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):  # [samples * positions, width]: every position is a sample of a linear layer
        parts = self.attn["c_attn"](self.ln_1(x)).view(-1, CONTEXT, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if NEW:
            y = F.scaled_dot_product_attention(*parts, is_causal=True)
        else:
            later = torch.ones(CONTEXT, CONTEXT).triu(1).bool()
            scores = parts[0] @ parts[1].transpose(2, 3) / math.sqrt(WIDTH // HEADS)
            y = scores.masked_fill(later, -math.inf).softmax(3) @ parts[2]
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(-1, WIDTH))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(tokens, WIDTH), wpe=nn.Embedding(CONTEXT, WIDTH),
                                              h=nn.ModuleList(Block() for _ in range(BLOCKS)), ln_f=nn.LayerNorm(WIDTH)))
        self.lm_head = nn.Linear(WIDTH, tokens, bias=False)

    def forward(self, tokens):
        positions = torch.arange(CONTEXT).expand_as(tokens)
        x = (self.transformer.wte(tokens) + self.transformer.wpe(positions)).reshape(-1, WIDTH)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def read_weights(path):
    with open(path, "rb") as file:
        data = file.read()
    size, = struct.unpack("<Q", data[:8])
    weights = {}
    for name, field in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or name.startswith("natgrad."):
            continue
        begin, end = (8 + size + at for at in field["data_offsets"])
        weights[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(field["shape"])
    return weights


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "the program natgrad is not built")
class GptOfTheTrainer(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.runs = folder.name, 0
        with open(os.path.join(self.folder, "text"), "w", encoding="ascii") as file:
            file.write(TEXT)
        letters = sorted(set(TEXT))
        tokens = torch.tensor([letters.index(c) for c in TEXT])
        self.tokens, self.labels = tokens[:-1].view(SAMPLES, CONTEXT), tokens[1:]
        self.model = Transformer(len(letters))
        self.before = self.train(0, "--method", "sgd")
        self.model.load_state_dict(self.before)  # the names and shapes are equal

    def train(self, lr, *options):
        """Weights after one step on all samples."""
        self.runs += 1
        out = os.path.join(self.folder, f"run{self.runs}")
        subprocess.run([PROGRAM, "train", "--data", f"text:{self.folder}/text,context={CONTEXT}",
                        "--model", f"gpt-char-{WIDTH}-{BLOCKS}-{HEADS}", "--batch", str(SAMPLES), "--steps", "1",
                        "--momentum", "0", "--lr-schedule", "constant", "--lr", str(lr), "--quiet", "--out", out, *options],
                       check=True)
        return read_weights(os.path.join(out, "checkpoint-1.safetensors"))

    def losses(self, model):
        yield F.cross_entropy(model(self.tokens), self.labels)

    def step(self, lr, *options):
        """The direction of a step.  lr is so large that rounding of the weights does not matter."""
        after = self.train(lr, *options)
        return {name: (self.before[name].double() - after[name].double()) / lr for name in after}

    def test_gradients(self):
        got = self.step(1000, "--method", "sgd")
        model = self.model.double()
        next(self.losses(model)).backward()
        for name, p in model.named_parameters():  # float32, sums over 72 positions
            self.assertLess(oracle.relative_difference(got[name], p.grad), 2e-5, name)

    def test_step_of_kfac(self):
        damping = 0.1
        got = self.step(100, "--method", "natgrad", "--damping", str(damping), "--clip", "none")
        names = [name for name, module in self.model.named_modules() if isinstance(module, nn.Linear)]
        self.assertEqual(len(names), 4 * BLOCKS + 1)
        expected = oracle.kfac_gradients(self.model, names, self.losses, damping)
        for name in names:
            for part, want in zip(("weight", "bias"), expected[name]):
                self.assertLess(oracle.relative_difference(got[f"{name}.{part}"], want), 2e-4, name)
        self.check_embedding(got, "transformer.wte", self.tokens, damping)
        self.check_embedding(got, "transformer.wpe", torch.arange(CONTEXT).expand_as(self.tokens), damping)
        for name in ("transformer.h.1.ln_1", "transformer.ln_f"):
            self.check_norm(got, name, damping)

    def record_pass(self, name):
        """The module in float64 with its gradients; its input, and the gradients of its output times the positions."""
        model, found = self.model.double(), []
        module = dict(model.named_modules())[name]

        def record(module, inputs, output):
            output.register_hook(lambda g: found.extend((inputs[0].detach(), g.reshape(-1, WIDTH) * self.tokens.numel())))
        hook = module.register_forward_hook(record)
        model.zero_grad()
        next(self.losses(model)).backward()
        hook.remove()
        return module, *found

    def check_embedding(self, got, name, tokens, damping):
        """diag(1 / (A + d_A)) D (G + d_G)^-1; A is the frequency of each token."""
        module, _, g = self.record_pass(name)
        rows = tokens.numel()
        G, A = g.T @ g / rows, torch.bincount(tokens.flatten(), minlength=len(module.weight)).double() / rows
        pi = (A.mean() / (G.trace() / WIDTH)).sqrt()
        inverse = torch.linalg.inv(G + damping**0.5 / pi * torch.eye(WIDTH, dtype=G.dtype))
        want = (module.weight.grad / (A + pi * damping**0.5)[:, None]) @ inverse
        self.assertLess(oracle.relative_difference(got[f"{name}.weight"], want), 2e-4, name)

    def check_norm(self, got, name, damping):
        """(F + l I)^-1 (d gamma, d beta), F: 2x2 second moments of the gradients of a channel at each position."""
        module, x, g = self.record_pass(name)
        normalised = F.layer_norm(x, (WIDTH,))
        parts = torch.stack([g * normalised, g], 2)  # [positions, channels, 2]
        fisher = torch.einsum("nci,ncj->cij", parts, parts) / len(g) + damping * torch.eye(2, dtype=g.dtype)
        want = torch.linalg.solve(fisher, torch.stack([module.weight.grad, module.bias.grad], 1))
        for i, part in enumerate(("weight", "bias")):
            self.assertLess(oracle.relative_difference(got[f"{name}.{part}"], want[:, i]), 2e-4, name)


if __name__ == "__main__":
    unittest.main()
