"""Convert a state from bytes to a dict of named tensors and back; print rows as a table."""
import ctypes
import json
import os
import struct
import zlib

import torch

from . import _abi, _core
from ._core import make_error, with_core_lock, short_repr
from ._tensors import STORED_DTYPES

_NAMES = {dtype: name for name, dtype in STORED_DTYPES.items()}
_META = ("natgrad", "natgrad.crc32")  # the manifest and its checksum, as the library writes them


def unpack_state(data):
    """Convert the bytes of a state (safetensors) to {"manifest", "crc32", "fields": {"fc1/A": tensor, ...}}."""
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    meta = header.pop("__metadata__")
    fields, body = {}, bytearray(data[8 + size:])
    for name, field in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = field["data_offsets"]
        dtype = STORED_DTYPES[field["dtype"]]
        count = (end - begin) // torch.empty((), dtype=dtype).element_size()
        fields[name] = torch.frombuffer(body, dtype=dtype, count=count, offset=begin).clone().reshape(field["shape"])
    return {"manifest": meta[_META[0]], "crc32": meta[_META[1]], "fields": fields}


def pack_state(state):
    """Convert a dict of unpack_state() back to bytes.  The library will reject unknown fields by name."""
    if not isinstance(state, dict):
        raise make_error(_abi.NG_ERR_FILE, f"the state is a {type(state).__name__}, expected a dict")
    missing = [key for key in ("manifest", "crc32", "fields", "steps") if key not in state]
    if missing:
        raise make_error(_abi.NG_ERR_FILE, f"the state has no '{missing[0]}': it is not a state of natgrad")
    if not isinstance(state["fields"], dict):
        raise make_error(_abi.NG_ERR_FILE, f"the state: fields is a {type(state['fields']).__name__}, expected a dict of tensors")
    for name, tensor in state["fields"].items():
        if not isinstance(tensor, torch.Tensor):
            raise make_error(_abi.NG_ERR_FILE, f"the state: '{name}' is a {type(tensor).__name__}, expected a tensor")
        if tensor.dtype not in _NAMES:
            raise make_error(_abi.NG_ERR_FILE, f"the state: '{name}' is {tensor.dtype}, which natgrad does not store")
    return to_safetensors(dict(zip(_META, (state["manifest"], state["crc32"]))), state["fields"])


def tensor_to_bytes(tensor):
    """Return the elements of a tensor as bytes, in row-major order."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def to_safetensors(metadata, tensors):
    """Return the bytes of a safetensors file."""
    header, pieces, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        pieces.append(tensor_to_bytes(tensor))
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [at, at + len(pieces[-1])]}
        at += len(pieces[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *pieces])


def steps_in_manifest(state):
    """Return the number of steps in the manifest; None if the manifest is unreadable: the library will reject the
    state."""
    try:
        return json.loads(state["manifest"])["counters"]["steps"]
    except (KeyError, TypeError, ValueError):
        return None


def steps_in_file(path):
    """Return the number of steps in the manifest of a file; None if it is unreadable: the library will reject the
    file."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            head = file.read(size) if size < os.path.getsize(path) else b""
        return json.loads(json.loads(head)["__metadata__"]["natgrad"])["counters"]["steps"]
    except (OSError, KeyError, TypeError, ValueError):
        return None


class NotCopyable:
    """Base class of objects that cannot be copied or pickled, because they own hooks and memory of the library."""

    def __reduce_ex__(self, protocol):
        raise make_error(_abi.NG_ERR_STATE, f"{type(self).__name__} cannot be copied or pickled, since it belongs to one model: "
                         "make a new one of the copy, and load state_dict()")


class StateMethods(NotCopyable):
    """Base class of Preconditioner that saves and loads its state."""

    def _find_whether_ranks_save_alone(self):
        """At construction, find whether every rank holds all arrays of the state.  Collective."""
        transport = self._core.transport
        self._ranks_save_alone = transport is None or all(transport.gather_numbers(self._core.can_save_alone()))

    @with_core_lock
    def state_dict(self):
        """Return the exact state as a dict of tensors, numbers and texts, the same on all ranks.

        Local if every rank holds all arrays, as by default.  Collective if the ranks divide the arrays: with the method
        dp-kfac or spngd, with grad_worker_fraction below 1, with other values of statistics or update_ranks than all."""
        if self._ranks_save_alone:
            data = self._core.save(call="save_local")
        else:
            transport = self._core.transport
            self._fail_on_all_ranks(self._core.check_open)
            data = transport.broadcast_bytes(self._core.save(transport.rank == 0))
        return {**unpack_state(data), "steps": self._steps}

    def load_state_dict(self, state):
        """Load a state of the same model and options.  If this fails, nothing changes.  Collective."""
        self._load_on_all_ranks(lambda: state)

    def _set_step_count(self, steps):
        """Set the step count of the library, from which periods count.  Collective."""
        state = StateMethods.state_dict(self)
        manifest = json.loads(state["manifest"])
        manifest["counters"]["steps"] = steps
        text = json.dumps(manifest)
        self._core.load(pack_state({**state, "manifest": text, "crc32": f"{zlib.crc32(text.encode()):08x}"}))
        self._steps = steps

    @with_core_lock
    def save_parts(self, path):
        """Write one file per rank into the folder of `path`, which all ranks share; no tensor is sent.  Collective."""
        self._fail_on_all_ranks(self._core.check_open)
        self._core.call("save_parts", _path_to_bytes(path))

    @with_core_lock
    def load_parts(self, path):
        """Load the files of save_parts(), on any number of ranks.  If this fails, nothing changes.  Collective."""
        def check_state():
            steps = steps_in_file(path)
            if steps is not None:
                self._check_state({"steps": steps, "manifest": None, "numbers": {}})
            return steps
        steps = self._fail_on_all_ranks(check_state)
        self._core.call("load", _path_to_bytes(path))
        self._steps = steps
        self._observer.start_next_batch()
        self._set_live_options()

    def _fail_on_all_ranks(self, function, kind_of=lambda found: 0):
        """Return function().  If it raises an exception on one rank, or kind_of(function()), a number >= 0, differs between
        ranks, all ranks raise an exception.  Collective."""
        problem = found = None
        try:
            found = function()
            kind = kind_of(found)
        except Exception as error:
            problem, kind = error, -1
        kinds, transport = {kind}, self._core.transport
        if transport is not None and self._core.ctx:
            transport.meet()
            kinds.update(transport.gather_numbers(kind))
        if problem is not None:
            raise problem
        if -1 in kinds:
            raise make_error(_abi.NG_ERR_FILE, "another rank rejected its state")
        if len(kinds) > 1:
            raise make_error(_abi.NG_ERR_FILE, "the ranks have states of different kinds: load the same state on all ranks")
        return found

    @with_core_lock
    def _load_on_all_ranks(self, get_state):
        """Load the state that get_state() returns; if one rank fails, no rank loads it.  Collective."""
        def check_state():
            state = get_state()
            data = pack_state(state)
            self._check_state(state)
            return state, data
        state, data = self._fail_on_all_ranks(check_state)
        self._core.load(data)
        self._steps = state["steps"]
        self._observer.start_next_batch()
        self._set_live_options()

    def _check_state(self, state):
        """Before anything changes, check `steps` of a state and the functions of the step at this number."""
        steps, counted = state["steps"], steps_in_manifest(state)
        if type(steps) is not int or steps < 0:
            raise make_error(_abi.NG_ERR_FILE, f"the state: steps is {steps!r}, expected a count")
        if counted is not None and steps != counted:
            raise make_error(_abi.NG_ERR_FILE, f"the state: steps is {steps}, and its manifest counts {counted}")
        chosen = _core.Options()
        chosen.set("method", self._chosen.get("method"))
        for name, value in self._live_values_at(steps).items():
            chosen.set(name, value)


def _path_to_bytes(path):
    """Return a file name as bytes."""
    try:
        name = os.fsencode(path)
    except (TypeError, UnicodeEncodeError):
        name = b"\0"
    if b"\0" in name:
        raise make_error(_abi.NG_ERR_ARG, f"path is {short_repr(path)}, expected the name of a file")
    return name


class Table(list):
    """A list of rows (dicts) that prints as a table of the given columns."""

    def __init__(self, rows, columns):
        super().__init__(rows)
        self.columns = columns

    def __str__(self):
        cells = [self.columns, *([str(row[name]) for name in self.columns] for row in self)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells)
