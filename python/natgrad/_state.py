"""Convert a state between bytes and a dict of named tensors; print rows as a table."""
import ctypes
import json
import os
import struct

import torch

from . import _abi
from ._core import failure
from ._tensors import STORED

_NAMES = {dtype: name for name, dtype in STORED.items()}
_META = ("natgrad", "natgrad.crc32")  # the manifest and its checksum, as the library writes them


def shared(core):
    """Return the bytes of the state, on every rank."""
    transport = core.transport
    return core.save() if transport is None else transport.share(core.save(transport.rank == 0))


def unpack(data):
    """Return {"manifest", "crc32", "fields": {"fc1/A": tensor, ...}} from the bytes of a safetensors file."""
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    meta = header.pop("__metadata__")
    fields, body = {}, bytearray(data[8 + size:])
    for name, field in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = field["data_offsets"]
        dtype = STORED[field["dtype"]]
        count = (end - begin) // torch.empty((), dtype=dtype).element_size()
        fields[name] = torch.frombuffer(body, dtype=dtype, count=count, offset=begin).clone().reshape(field["shape"])
    return {"manifest": meta[_META[0]], "crc32": meta[_META[1]], "fields": fields}


def pack(state):
    """Return the bytes of a state that unpack() returned.  The library rejects unknown fields by name."""
    if not isinstance(state, dict):
        raise failure(_abi.NG_ERR_FILE, f"the state is a {type(state).__name__}, expected a dict")
    missing = [key for key in ("manifest", "crc32", "fields", "steps") if key not in state]
    if missing:
        raise failure(_abi.NG_ERR_FILE, f"the state has no '{missing[0]}': it is not a state of natgrad")
    if not isinstance(state["fields"], dict):
        raise failure(_abi.NG_ERR_FILE, f"the state: fields is a {type(state['fields']).__name__}, expected a dict of tensors")
    header, pieces, at = {"__metadata__": dict(zip(_META, (state["manifest"], state["crc32"])))}, [], 0
    for name, tensor in state["fields"].items():
        if not isinstance(tensor, torch.Tensor):
            raise failure(_abi.NG_ERR_FILE, f"the state: '{name}' is a {type(tensor).__name__}, expected a tensor")
        if tensor.dtype not in _NAMES:
            raise failure(_abi.NG_ERR_FILE, f"the state: '{name}' is {tensor.dtype}, which natgrad does not store")
        flat = tensor.detach().cpu().contiguous()
        piece = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + len(piece)]}
        at += len(piece)
        pieces.append(piece)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *pieces])


def steps_of(state):
    """Return the number of steps in the manifest; None if it is unreadable (the library then rejects the state)."""
    try:
        return json.loads(state["manifest"])["counters"]["steps"]
    except (KeyError, TypeError, ValueError):
        return None


def steps_in(path):
    """Return the number of steps in the manifest of a state file; None if unreadable (the library rejects the file)."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = file.read(size) if size < os.path.getsize(path) else b""
        return json.loads(json.loads(head)["__metadata__"]["natgrad"])["counters"]["steps"]
    except (OSError, KeyError, TypeError, ValueError):
        return None


class Uncopied:
    """An object with hooks and memory of the library, which cannot be copied or pickled."""

    def __reduce_ex__(self, protocol):
        raise failure(_abi.NG_ERR_STATE, f"{type(self).__name__} cannot be copied or pickled, since it belongs to one model: "
                      "make a new one of the copy, and load state_dict()")


class Table(list):
    """Rows (dicts) that print as a table of some columns."""

    def __init__(self, rows, columns):
        super().__init__(rows)
        self.columns = columns

    def __str__(self):
        cells = [self.columns, *([str(row[name]) for name in self.columns] for row in self)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells)
