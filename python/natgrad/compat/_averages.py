"""The running averages A and G in the layout of kfac-pytorch: {layer: {"A": [p, p], "G": [q, q]}}.

The averages are on every rank, so reading them is local, as in kfac-pytorch, whose scripts call state_dict() on one rank
only.  Loading writes them into a temporary folder, from which the library reads them.
"""
import math
import os
import re
import tempfile
import zlib

import torch

from .. import _abi
from .._core import make_error
from .._state import tensor_to_bytes, to_safetensors
from .._tensors import DTYPES

_TORCH = {number: dtype for dtype, number in DTYPES.items()}
_AVERAGE = re.compile(r"[AG](\.\d+)?")  # a grouped convolution has A.0, A.1, ...


def _list_averages(core):
    """Yield (index, layer, name, ng_field_info as a dict) of each running average."""
    for i in range(core.library.ng_state_count(core.p)):
        info = core.read_struct("state_at", _abi.ng_field_info, i)
        layer, _, name = info["name"].rpartition("/")
        if _AVERAGE.fullmatch(name):
            yield i, layer, name, info


def _order_of_triangle(count):
    """Return n of n (n + 1) / 2 = count."""
    return (math.isqrt(8 * count + 1) - 1) // 2


def read_averages(core):
    """Return the running averages that this rank holds, as whole matrices."""
    layers = {}
    for i, layer, name, info in _list_averages(core):
        n = _order_of_triangle(info["shape"][0])
        triangle, matrix = (torch.empty(size, dtype=_TORCH[info["dtype"]]) for size in (info["shape"][0], (n, n)))
        core.call("state_read", i, triangle.data_ptr(), info["bytes"])
        row, column = torch.tril_indices(n, n)
        matrix[row, column] = matrix[column, row] = triangle
        layers.setdefault(layer, {})[name] = matrix
    return layers


def _check_triangle(where, matrix, info):
    """Return the lower triangle of a matrix of a state, in the dtype of the library's average."""
    n, dtype = _order_of_triangle(info["shape"][0]), _TORCH[info["dtype"]]
    if not isinstance(matrix, torch.Tensor):
        problem = f"is a {type(matrix).__name__}, expected a tensor"
    elif tuple(matrix.shape) != (n, n):
        problem = f"is {list(matrix.shape)}, expected [{n}, {n}]"
    elif not matrix.is_floating_point():
        problem = f"has elements of {matrix.dtype}, expected floating-point numbers"
    elif not torch.isfinite(matrix).all():
        problem = "has elements that are not finite numbers"
    else:
        matrix = matrix.detach().cpu().double()
        # an average of outer products is symmetric, except for rounding in the dtype of the program
        if (matrix - matrix.T).abs().max() > 0.01 * matrix.abs().max():
            problem = "is not symmetric"
        elif not torch.isfinite(matrix.to(dtype)).all():
            problem = f"has elements beyond the range of {dtype}"
        else:
            row, column = torch.tril_indices(n, n)
            return matrix[row, column].to(dtype)
    raise make_error(_abi.NG_ERR_FILE, f"{where} {problem}")


def _file_name(layer):
    """Return the file name of a layer's averages, as of ng_save_factors."""
    text = "".join(chr(byte) if re.match(rb"[\w.-]", bytes([byte])) else f"%{byte:02X}" for byte in layer.encode())
    return ("%2E" + text[1:] if text.startswith(".") else text) + ".safetensors"


def _names_in_state(layers, names):
    """Return {name of a layer here: its name in a state}.  kfac-pytorch puts `module.` before the layers of a DDP model, and
    calls a model that is one layer ''."""
    for prefix in ("", "module."):
        found = {name: (prefix + name if name != "root" or name in layers else prefix[:-1]) for name in names}
        if set(found.values()) == set(layers):
            return found
    missing, unknown = sorted(set(names) - set(layers)), sorted(set(layers) - set(names), key=str)
    raise make_error(_abi.NG_ERR_FILE, f"the state has {len(layers)} layers, expected {len(names)}"
                     + (f"; it has no '{missing[0]}'" if missing else "") + (f"; '{unknown[0]}' is unknown" if unknown else ""))


class Averages:
    """Checked running averages of all layers, in files of a temporary folder."""

    def __init__(self, core, layers):
        if not isinstance(layers, dict):
            raise make_error(_abi.NG_ERR_FILE, f"the state: layers is a {type(layers).__name__}, expected a dict")
        self._core, files, rows = core, {}, list(_list_averages(core))
        names = _names_in_state(layers, {layer for _, layer, _, _ in rows})
        for _, layer, name, info in rows:
            where, pair = f"the state: layers['{names[layer]}']", layers[names[layer]]
            if not isinstance(pair, dict) or name not in pair:
                raise make_error(_abi.NG_ERR_FILE, f"{where} has no '{name}'")
            if any(value is not None for value in pair.values()):  # None: never observed
                files.setdefault(layer, {})[name] = _check_triangle(f"{where}['{name}']", pair[name], info)
        self._folder = tempfile.TemporaryDirectory()
        for layer, tensors in files.items():
            crc = 0
            for tensor in tensors.values():
                crc = zlib.crc32(tensor_to_bytes(tensor), crc)
            with open(os.path.join(self._folder.name, _file_name(layer)), "wb") as file:
                file.write(to_safetensors({"natgrad.layer": layer, "natgrad.crc32": f"{crc:08x}"}, tensors))

    def load(self):
        """Set the averages; the next step solves them.  Collective."""
        with self._folder as folder:
            self._core.call("load_factors", os.fsencode(folder), None)
