"""K-FAC by its definition in float64, from the arrays that autograd computes: the oracle of the package's hooks.

Textbook scale, factors of one step, Cholesky inverses with pi damping, no clip: the row natgrad at its first step.
    A = 1/B sum a a',  G = 1/(B S) sum d d' with d = B g;  P = (G + sqrt(l)/pi I)^-1 D (A + pi sqrt(l) I)^-1
"""
import copy

import torch
from torch import nn
import torch.nn.functional as F


def layer_input_rows(module, x):
    """Inputs of a layer as [B, S, p] without the bias: the patches of a convolution by unfold."""
    if isinstance(module, nn.Linear):
        return x.reshape(x.shape[0], -1, x.shape[-1])
    if isinstance(module, nn.Conv1d):
        x = x.unsqueeze(2)
    one = (1,) * (2 - len(module.kernel_size))
    pads = module._reversed_padding_repeated_twice
    x = F.pad(x, pads, mode="constant" if module.padding_mode == "zeros" else module.padding_mode) \
        if len(module.kernel_size) == 2 else F.pad(x.squeeze(2), pads, mode="constant" if module.padding_mode == "zeros"
                                                   else module.padding_mode).unsqueeze(2)
    patches = F.unfold(x, one + module.kernel_size, one + module.dilation, 0, one + module.stride)
    return patches.transpose(1, 2)


def record_layer_calls(model, names, losses, rounded=False):
    """For each layer: (input rows [B,S,p], output gradients [B,S,q]) of every call, and the gradients D.  The model runs in
    float64, or, if rounded=True, in its own dtypes."""
    model = copy.deepcopy(model) if rounded else copy.deepcopy(model).double()
    model.zero_grad()
    modules, calls = dict(model.named_modules()), {name: [] for name in names}
    for name in names:
        def record_call(module, inputs, output, name=name):
            if output.requires_grad:
                pair = [inputs[0].detach().double(), None, module]
                calls[name].append(pair)
                output.register_hook(lambda g, pair=pair: pair.__setitem__(1, g.detach().double()))
        modules[name].register_forward_hook(record_call)
    for loss in losses(model):
        loss.backward()
    found = {}
    for name in names:
        module, pairs = modules[name], []
        for x, g, m in calls[name]:
            if g is None:
                continue
            g = g.reshape(g.shape[0], -1, g.shape[-1]) if isinstance(m, nn.Linear) else g.flatten(2).transpose(1, 2)
            pairs.append((layer_input_rows(m, x), g))
        grads = [module.weight.grad] + ([module.bias.grad] if module.bias is not None else [])
        found[name] = (pairs, [g if g is None else g.clone().double() for g in grads], module)
    return found


def kfac_gradients(model, names, losses, damping, scale=1.0, bias=True, rounded=False):
    """{name: [new gradient of the weight, of the bias]}.  `losses(model)` yields the losses, each multiplied by `scale`.
    bias=False omits the bias from D and A."""
    found = {}
    for name, (pairs, grads, module) in record_layer_calls(model, names, losses, rounded).items():
        with_bias = bias and module.bias is not None
        weight = sum(x.shape[0] for x, _ in pairs)
        A = G = 0.0
        for x, g in pairs:
            B, S = x.shape[0], x.shape[1]
            if with_bias:
                x = torch.cat([x, torch.ones_like(x[..., :1])], -1)
            a, d = x.reshape(B * S, -1), (g * (B / scale)).reshape(B * S, -1)
            A = A + (B / weight) * (a.T @ a) / B
            G = G + (B / weight) * (d.T @ d) / (B * S)
        D = grads[0].reshape(grads[0].shape[0], -1)
        groups = getattr(module, "groups", 1)
        assert groups == 1
        if with_bias:
            D = torch.cat([D, grads[1][:, None]], 1)
        pi = ((A.trace() / len(A)) / (G.trace() / len(G))).sqrt()
        inverse = [torch.linalg.inv(M + lam * torch.eye(len(M), dtype=M.dtype))
                   for M, lam in ((G, damping**0.5 / pi), (A, damping**0.5 * pi))]
        P = inverse[0] @ D @ inverse[1]
        new = [P[:, :-1] if with_bias else P]
        found[name] = [new[0].reshape(grads[0].shape)] + ([P[:, -1]] if with_bias else [])
    return found


def relative_difference(got, expected):
    """Largest difference over the largest number."""
    return ((got.double() - expected).abs().max() / expected.abs().max()).item()
