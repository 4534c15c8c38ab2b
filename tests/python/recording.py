"""Recordings of published programs (tests/golden), and their models in PyTorch."""
import glob
import json
import os
import struct

import torch
from torch import nn

import natgrad.compat as kfac

GOLDEN = os.path.join(os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", "..")),
                      "tests", "golden")


def names(*patterns):
    return sorted(os.path.basename(file)[:-len(".safetensors")] for pattern in patterns
                  for file in glob.glob(os.path.join(GOLDEN, pattern + ".safetensors")))


def read(name):
    """(what the case is, {array: tensor})"""
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


def model_of(case):
    torch.manual_seed(0)
    model = nn.Module()
    for name in case["order"]:
        d = case["layers"][name]
        if d["kind"] == "conv2d":
            layer = nn.Conv2d(d["in_channels"], d["out_channels"], d["kernel"], d["stride"], d["padding"],
                              bias=d["bias"])
        else:
            layer = nn.Linear(d["in_features"], d["out_features"], bias=d["bias"])
        model.add_module(name, layer)
    return model


def preconditioner_of(case, model, **more):
    """By the published class and arguments."""
    config = dict(case["config"])
    system, method = config.pop("system"), config.pop("method", None)
    if system == "KAISA":
        return kfac.KFACPreconditioner(model, compute_method=method, **config, **more)
    return kfac.get_kfac_module("eva" if system == "Eva" else method)(model, **config, **more)


def replay(case, arrays, rank=None, make=preconditioner_of, **more):
    """Runs the recording through the model; returns the largest error, relative to the largest entry recorded."""
    model = model_of(case)
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
        for name in case["order"]:  # weight and bias of a layer together, as `natgrad replay` has it
            error = size = 0.0
            for part, parameter in getattr(model, name).named_parameters():
                expected = arrays[f"{shared}{name}.{part}.out"].reshape(parameter.shape)
                difference = (parameter.grad - expected).abs().max().item()
                error = max(error, difference if difference == difference else float("inf"))
                size = max(size, expected.abs().max().item())
            largest = max(largest, error / size)
    return largest
