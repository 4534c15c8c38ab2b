"""Factors in the files of kronfluence and the lists of laplace-torch.

Units of natgrad, for N samples with S positions each: A = (1/N) sum a a', G = (1/(N S)) sum g g', of the sum loss; sums over
samples and positions.  kronfluence stores both sums and the counts N S; it divides by the counts.  Its Lambda is the sum over
samples of the squared gradient in the eigenbases, N v of Curvature.correct.  laplace-torch has the
product of the sum loss, N (G (x) A); its lists have weight and bias apart.
"""
import json
import os
import struct

import torch
from torch import nn

from . import _abi
from ._core import make_error, short_repr, to_int

COVARIANCES = ("activation_covariance", "gradient_covariance")
COUNTS = ("num_activation_covariance_processed", "num_gradient_covariance_processed")
BASES = ("activation_eigenvectors", "activation_eigenvalues", "gradient_eigenvectors", "gradient_eigenvalues")
LAMBDA, LAMBDA_COUNT = "lambda_matrix", "num_lambda_processed"
ARGUMENTS = "factor_arguments.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


def write_safetensors(path, tensors):
    """Write {name: tensor} in the format of safetensors.  A reader may have mapped an older file, so the file is replaced."""
    header, parts, at = {}, [], 0
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    for name, x in tensors.items():
        parts.append(x.detach().cpu().contiguous().numpy().tobytes())
        header[name] = dict(dtype=codes[x.dtype], shape=list(x.shape), data_offsets=[at, at + len(parts[-1])])
        at += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
    os.replace(path + ".part", path)


def _read_tensor(field, body):
    (begin, end), shape, dtype = field["data_offsets"], field["shape"], _DTYPES[field["dtype"]]
    count = 1
    for size in shape:
        if size < 0:
            raise ValueError
        count *= size
    width = torch.empty(0, dtype=dtype).element_size()
    if end - begin != count * width:
        raise ValueError
    return torch.frombuffer(body, dtype=dtype, count=count, offset=begin).reshape(shape).clone()


def read_safetensors(path):
    """Return {name: tensor} of a file of safetensors."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise make_error(_abi.NG_ERR_FILE, f"{path}: {error.strerror}") from None
    try:
        size, = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8:8 + size]), bytearray(data[8 + size:])
        header.pop("__metadata__", None)
        unknown = [name for name, field in header.items() if field["dtype"] not in _DTYPES]
        if not unknown:
            return {name: _read_tensor(field, body) for name, field in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise make_error(_abi.NG_ERR_FILE, f"{path}: no complete file of safetensors") from None
    raise make_error(_abi.NG_ERR_FILE, f"{path}: '{unknown[0]}' has the dtype {header[unknown[0]]['dtype']}, expected one of "
                     f"{', '.join(_DTYPES)}")


def _positions_of(positions, layers):
    """Return {layer: positions}."""
    found = {name: positions.get(name, 1) if isinstance(positions, dict) else positions for name in layers}
    unknown = [name for name in positions if name not in found] if isinstance(positions, dict) else []
    if unknown:
        raise make_error(_abi.NG_ERR_ARG, f"positions: there is no layer {short_repr(unknown[0])}")
    for name, count in found.items():
        to_int(f"positions of layer '{name}'", count)
    return found


def _check_one_pair(name, pair, program):
    if any(factor.dim() != 2 for factor in pair):
        raise make_error(_abi.NG_ERR_ABSENT, f"layer '{name}': {program} has no diagonal factors and no factors of groups")


# ---- kronfluence ---------------------------------------------------------------------------------


def _path(folder, file):
    return os.path.join(folder, file + ".safetensors")


def save_kronfluence(curvature, folder, samples, positions):
    to_int("samples", samples)
    positions = _positions_of(positions, curvature.factors)
    if not curvature.is_corrected and os.path.exists(_path(folder, LAMBDA)):
        raise make_error(_abi.NG_ERR_STATE, f"{_path(folder, LAMBDA)} belongs to other factors: expected a folder without it")
    files = {name: {} for name in COVARIANCES + COUNTS + (BASES + (LAMBDA, LAMBDA_COUNT) if curvature.is_corrected else ())}
    for name, (left, right) in curvature.factors.items():
        _check_one_pair(name, (left, right), "kronfluence")
        count = samples * positions[name]
        values = [right * samples, left * count, torch.tensor([count]), torch.tensor([count])]
        if curvature.is_corrected:
            (d_left, Q_left), (d_right, Q_right) = torch.linalg.eigh(left), torch.linalg.eigh(right)
            ones = Q_left.sum(1)[:, None] * Q_right.sum(1)  # a 1 for each pair of eigenvectors; K multiplies it by v
            v = Q_left.T @ curvature.apply({name: ones}, damping=0, power=1)[name] @ Q_right
            values += [Q_right, d_right / positions[name], Q_left, d_left, v * samples, torch.tensor([samples])]
        for file, value in zip(files, values):
            files[file][name] = value.float() if value.is_floating_point() else value
    os.makedirs(folder, exist_ok=True)
    for file, tensors in files.items():
        write_safetensors(_path(folder, file), tensors)
    if not os.path.exists(os.path.join(folder, ARGUMENTS)):  # kronfluence finds no factors without it
        with open(os.path.join(folder, ARGUMENTS), "w", encoding="utf-8") as file:
            json.dump({"strategy": "ekfac"}, file)


def _read_files(folder, names):
    """Return {file: {layer: tensor}}."""
    files = {file: read_safetensors(_path(folder, file)) for file in names}
    for file, tensors in files.items():
        if tensors.keys() != files[names[0]].keys():
            raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, file)}: its layers differ from {_path(folder, names[0])}")
        for name, x in tensors.items():
            is_count = file.startswith("num_")
            if x.is_floating_point() == is_count:
                raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, file)}: '{name}' has the dtype {x.dtype}, expected "
                                 f"{'torch.int64' if is_count else 'real numbers'}")
            if is_count and (x.numel() != 1 or x.item() < 1):
                raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, file)}: '{name}' is {short_repr(x.tolist())}, expected [count]")
            if not x.isfinite().all():
                raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, file)}: '{name}' is not finite")
    return files


def load_kronfluence(folder, positions):
    """Return the factors and, if the folder has Lambda, samples for Curvature.correct, else None."""
    has_lambda = os.path.exists(_path(folder, LAMBDA))
    files = _read_files(folder, COVARIANCES + COUNTS + ((BASES[0], BASES[2], LAMBDA, LAMBDA_COUNT) if has_lambda else ()))
    layers = files[COVARIANCES[0]]
    positions, found, samples = _positions_of(positions, layers), {}, {}
    for name in layers:
        A, G = (files[file][name].double() / files[count][name].item() for file, count in zip(COVARIANCES, COUNTS))
        for file, factor in zip(COVARIANCES, (A, G)):
            if factor.dim() != 2 or len(factor) != factor.shape[1]:
                raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, file)}: '{name}' is {list(factor.shape)}, expected a square matrix")
        found[name] = (G + G.mT) / 2, positions[name] * (A + A.mT) / 2  # kronfluence symmetrises, too
        if has_lambda:
            Q_right, Q_left, v = (files[file][name].double() for file in (BASES[0], BASES[2], LAMBDA))
            if Q_left.shape != G.shape or Q_right.shape != A.shape or v.shape != (len(G), len(A)):
                raise make_error(_abi.NG_ERR_FILE, f"{_path(folder, LAMBDA)}: '{name}' is {list(v.shape)}, and its eigenvectors are "
                                 f"{list(Q_left.shape)} and {list(Q_right.shape)}, expected [{len(G)}, {len(A)}] and squares")
            v = (v / files[LAMBDA_COUNT][name].item()).clamp(min=0)
            # One sample whose squared gradient in the eigenbases is v: Q_left sqrt(v) Q_right'.
            samples[name] = Q_left.T[None, :, None], (v.sqrt() @ Q_right.T)[None, :, None]
    return found, samples if has_lambda else None


# ---- laplace-torch -------------------------------------------------------------------------------


def _layers_of(model):
    """Yield (name, module, whether it has a bias) of modules with a Kronecker pair."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.weight.requires_grad:
            if getattr(module, "groups", 1) > 1:
                raise make_error(_abi.NG_ERR_ABSENT, f"layer '{name}': laplace-torch has no factors of groups")
            yield name, module, module.bias is not None and module.bias.requires_grad


def to_laplace(factors, model, samples):
    to_int("samples", samples)
    found, layers = [], list(_layers_of(model))
    absent = [name for name in factors if name not in [row[0] for row in layers]]
    if absent:
        raise make_error(_abi.NG_ERR_ARG, f"layer '{absent[0]}': not a Linear or Conv2d of this model with a trainable weight")
    for name, module, bias in layers:
        if name not in factors:
            raise make_error(_abi.NG_ERR_ARG, f"layer '{name}' has no factors")
        left, right = factors[name]
        _check_one_pair(name, (left, right), "laplace-torch")
        blocks = [[samples * left, right[:-1, :-1]], [samples * left * right[-1, -1]]] if bias else [[samples * left, right]]
        found += [[factor.to(module.weight.dtype, copy=True) for factor in block] for block in blocks]
    return found


def _read_block(layer, what, block, orders):
    """Return the matrices of a block of laplace-torch in float64."""
    if not isinstance(block, (list, tuple)) or not all(isinstance(f, torch.Tensor) and f.is_floating_point() for f in block):
        raise make_error(_abi.NG_ERR_ARG, f"layer '{layer}': {what} is {short_repr(block)}, expected a list of matrices of real numbers")
    got, want = [list(f.shape) for f in block], [[n, n] for n in orders]
    if got != want:
        raise make_error(_abi.NG_ERR_SHAPE, f"layer '{layer}': {what} has {got}, expected {want}")
    return [f.detach().cpu().double() for f in block]


def from_laplace(kfacs, model, samples):
    to_int("samples", samples)
    layers, found = list(_layers_of(model)), {}
    blocks = sum(1 + bias for _, _, bias in layers)
    if not isinstance(kfacs, (list, tuple)) or len(kfacs) != blocks:
        got = f"has {len(kfacs)} blocks" if isinstance(kfacs, (list, tuple)) else f"is {short_repr(kfacs)}"
        raise make_error(_abi.NG_ERR_SHAPE, f"kfacs {got}, expected {blocks} blocks: one for each weight and each bias of the model's "
                         "Linear and Conv2d")
    at = iter(kfacs)
    for name, module, bias in layers:
        left, right = _read_block(name, "its block", next(at), (module.weight.shape[0], module.weight[0].numel()))
        if bias:
            # K of a layer is G (x) A, so the block of its bias must be a multiple of G.
            own, = _read_block(name, "the block of its bias", next(at), left.shape[:1])
            scale = ((own * left).sum() / left.square().sum().clamp(min=1e-300)).item()
            if (own - scale * left).abs().max() > 1e-4 * own.abs().max():
                raise make_error(_abi.NG_ERR_ABSENT, f"layer '{name}': the block of its bias is not a multiple of G")
            right = torch.block_diag(right, torch.tensor([[scale]], dtype=torch.float64))
        found[name] = left / samples, right
    return found
