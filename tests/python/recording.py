"""Recordings of published programs (tests/golden), and their models in PyTorch."""
import glob
import json
import os
import struct

import torch
from torch import nn

import natgrad
import natgrad.compat as kfac

GOLDEN = os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", "..")),
                      "tests", "golden")


TOLERANCE = 1e-5  # relative to the largest entry of a step and layer; a recording may state a larger tolerance with the reason


def recording_names(*patterns):
    return sorted(os.path.basename(file)[:-len(".safetensors")] for pattern in patterns
                  for file in glob.glob(os.path.join(GOLDEN, pattern + ".safetensors")))


def read_recording(name):
    """(the description of the case, {array: tensor})"""
    with open(os.path.join(GOLDEN, name + ".safetensors"), "rb") as file:
        data = file.read()
    size, = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
    case = json.loads(header.pop("__metadata__")["case.json"])
    arrays = {}
    for array, field in header.items():
        begin, end = field["data_offsets"]
        arrays[array] = torch.frombuffer(body, dtype=torch.float32, count=(end - begin) // 4,
                                         offset=begin).reshape(field["shape"])
    return case, arrays


def make_recorded_model(case, arrays):
    torch.manual_seed(0)
    model = nn.Module()
    for name in case["order"]:
        d = case["layers"][name]
        if d["kind"] == "batchnorm":
            axes = next(array.dim() for key, array in arrays.items() if key.endswith(f"{name}.a"))
            layer = (nn.BatchNorm2d if axes == 4 else nn.BatchNorm1d)(d["num_features"], eps=d["eps"])
        elif d["kind"] == "conv2d":
            layer = nn.Conv2d(d["in_channels"], d["out_channels"], d["kernel"], d["stride"], d["padding"],
                              bias=d["bias"])
        else:
            layer = nn.Linear(d["in_features"], d["out_features"], bias=d["bias"])
        model.add_module(name, layer)
    return model


def make_recorded_preconditioner(case, model, **more):
    """A preconditioner of the published class with the published arguments."""
    config = dict(case["config"])
    system, method = config.pop("system"), config.pop("method", None)
    if system == "KAISA":
        return kfac.KFACPreconditioner(model, compute_method=method, **config, **more)
    return kfac.get_kfac_module("eva" if system == "Eva" else method)(model, **config, **more)


def replay(case, arrays, rank=None, make=make_recorded_preconditioner, **more):
    """Run the recording through the model; return the largest error relative to the largest recorded entry."""
    if case["config"]["system"] == "chainerkfac":
        return replay_spngd(case, arrays, rank, **more)
    model = make_recorded_model(case, arrays)
    k, largest = make(case, model, **more), 0.0
    mine = "" if rank is None else f"r{rank}."
    micro = case["micro_batches"]
    for step in range(case["steps"]):
        model.zero_grad()
        for m in range(micro):
            at = f"{mine}s{step}." + (f"m{m}." if micro > 1 else "")
            for name in case["order"]:
                a, g = arrays[f"{at}{name}.a"], arrays[f"{at}{name}.g"]
                getattr(model, name)(a.clone().requires_grad_()).backward(g)
        shared = f"s{step}."
        for name, parameter in model.named_parameters():
            parameter.grad = arrays[f"{shared}{name}.grad"].reshape(parameter.shape).clone()
        k.step()
        for name in case["order"]:  # weight and bias of a layer together, as in `natgrad replay`
            error = size = 0.0
            for part, parameter in getattr(model, name).named_parameters():
                expected = arrays[f"{shared}{name}.{part}.out"].reshape(parameter.shape)
                difference = (parameter.grad - expected).abs().max().item()
                error = max(error, difference if difference == difference else float("inf"))
                size = max(size, expected.abs().max().item())
            largest = max(largest, error / size)
    return largest


def make_recorded_spngd(case, model, **more):
    """An optimizer with the published arguments.  No program has `ema_leak` false, which restores averages after each
    inverse."""
    config = dict(case["config"], **more)
    for name in ("system", "method"):
        del config[name]
    if case["ema_leak"]:
        return kfac.SPNGD(model, **config)
    return natgrad.SPNGD(model, samples="layer", norm_block="full", damping_leak=0, damping=config["damping"],
                         stat_decay=1 - config["cov_ema_decay"], norm_damping=config["stab_coeff"])


def replay_spngd(case, arrays, rank=None, **more):
    """SP-NGD: replay() that also compares weights and momentum."""
    model, largest = make_recorded_model(case, arrays), 0.0
    optimizer, micro = make_recorded_spngd(case, model, **more), case["micro_batches"]
    mine = "" if rank is None else f"r{rank}."
    norm = dict(weight="gamma", bias="beta")
    for step in range(case["steps"]):
        def recorded_array(name, kind, what):
            layer, part = name.rsplit(".", 1)
            part = norm[part] if isinstance(getattr(model, layer), (nn.BatchNorm1d, nn.BatchNorm2d)) else part
            return arrays[f"s{step}.{layer}.{part}.{what}"].reshape(kind.shape)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(recorded_array(name, p, "before"))
        if isinstance(optimizer, kfac.SPNGD):
            optimizer.param_groups[0]["lr"] = case["lr_steps"][step]
        for m in range(micro):
            model.zero_grad()
            at = f"{mine}s{step}." + (f"m{m}." if micro > 1 else "")
            for name in case["order"]:
                getattr(model, name)(arrays[f"{at}{name}.a"].clone().requires_grad_()).backward(arrays[f"{at}{name}.g"])
            for name, p in model.named_parameters():
                p.grad = recorded_array(name, p, "grad").clone()
            optimizer.step()
        for layer in case["order"]:
            error = size = 0.0
            for part, p in getattr(model, layer).named_parameters():
                expected = recorded_array(f"{layer}.{part}", p, "out")
                difference = (p.grad - expected).abs().max().item()
                error = max(error, difference if difference == difference else float("inf"))
                size = max(size, expected.abs().max().item())
            largest = max(largest, error / size)
        if not isinstance(optimizer, kfac.SPNGD):
            continue
        for name, p in model.named_parameters():
            for what, got in (("v", optimizer.state[p]["momentum_buffer"]), ("after", p.detach())):
                expected = recorded_array(name, p, what)
                # the errors of four directions, and the rounding of their sum
                assert (got - expected).abs().max() <= 2e-4 * expected.abs().max() + 1e-7, (name, step, what)
    return largest
