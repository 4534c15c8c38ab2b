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


def _check_triangle(layers, layer, name, info):
    """Return the lower triangle of a matrix of `layers`.  kfac-pytorch puts `module.` before the layers of a DDP model."""
    found = layers.get(layer, layers.get("module." + layer))
    where = f"the state: layers['{layer}']"
    if not isinstance(found, dict) or not isinstance(found.get(name), torch.Tensor):
        raise make_error(_abi.NG_ERR_FILE, f"{where} has no tensor '{name}'")
    matrix, n = found[name], _order_of_triangle(info["shape"][0])
    if tuple(matrix.shape) != (n, n):
        raise make_error(_abi.NG_ERR_FILE, f"{where}['{name}'] is {list(matrix.shape)}, expected [{n}, {n}]")
    if not (matrix.is_floating_point() and bool(torch.isfinite(matrix).all())):
        raise make_error(_abi.NG_ERR_FILE, f"{where}['{name}'] has elements that are not finite numbers")
    row, column = torch.tril_indices(n, n)
    return matrix.detach().cpu()[row, column].to(_TORCH[info["dtype"]])


def _file_name(layer):
    """Return the file name of a layer's averages, as of ng_save_factors."""
    text = "".join(chr(byte) if re.match(rb"[\w.-]", bytes([byte])) else f"%{byte:02X}" for byte in layer.encode())
    return ("%2E" + text[1:] if text.startswith(".") else text) + ".safetensors"


class Averages:
    """Checked running averages of all layers, in files of a temporary folder."""

    def __init__(self, core, layers):
        if not isinstance(layers, dict):
            raise make_error(_abi.NG_ERR_FILE, f"the state: layers is a {type(layers).__name__}, expected a dict")
        self._core, files = core, {}
        for _, layer, name, info in _list_averages(core):
            files.setdefault(layer, {})[name] = _check_triangle(layers, layer, name, info)
        if len(layers) != len(files):
            raise make_error(_abi.NG_ERR_FILE, f"the state has {len(layers)} layers, expected {len(files)}")
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
