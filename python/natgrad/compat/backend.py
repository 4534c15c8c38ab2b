"""The module kfac.backend of lzhangbv's programs: init() selects a communication library, `comm` has its
collectives."""
import enum
import os

import torch

from .. import _abi
from .._core import make_error

_group = None  # default process_group of the preconditioners


class Ops(enum.Enum):
    Average = "average"
    Sum = "sum"


def init(name):
    """Select "Torch" (the default process group of torch.distributed) or "Horovod" (horovod.torch)."""
    global _group
    if name == "Torch":
        _group = None
    elif name == "Horovod":
        try:
            import horovod.torch
        except ImportError as error:
            raise make_error(_abi.NG_ERR_ABSENT, f"backend 'Horovod': horovod.torch cannot be imported: {error}") from error
        horovod.torch.init()
        _group = horovod.torch
    else:
        raise make_error(_abi.NG_ERR_ABSENT, f"backend '{name}': not supported, expected Torch or Horovod")


def group():
    return _group


def _initialised_distributed():
    """Return torch.distributed if it is initialised, else None (one process)."""
    dist = torch.distributed
    return dist if dist.is_available() and dist.is_initialized() else None


class _PendingCollective:
    """A sum or broadcast in progress.  wait() waits for its end, and divides the tensor
    by `divisor`."""

    def __init__(self, work, tensor, divisor):
        self._work, self._tensor, self._divisor = work, tensor, divisor

    def wait(self):
        if self._work is not None:
            self._work.wait()
            self._work = None
            if self._divisor != 1:
                self._tensor.div_(self._divisor)
        return self._tensor


class _Communicator:
    """The ranks and in-place collectives of the selected library, with the published names."""

    Average, Sum = Ops.Average, Ops.Sum

    def size(self):
        dist = _initialised_distributed()
        return _group.size() if _group is not None else 1 if dist is None else dist.get_world_size()

    def rank(self):
        dist = _initialised_distributed()
        return _group.rank() if _group is not None else 0 if dist is None else dist.get_rank()

    def local_rank(self):
        if _group is not None:
            return _group.local_rank()
        if _initialised_distributed() is None:
            return 0
        if "LOCAL_RANK" not in os.environ:
            raise make_error(_abi.NG_ERR_ABSENT, "local_rank: LOCAL_RANK is not set in the environment (torchrun sets it)")
        return int(os.environ["LOCAL_RANK"])

    def new_group(self, ranks):
        dist = _initialised_distributed()
        if _group is not None:
            return _group.add_process_set(ranks)
        return None if dist is None else dist.new_group(ranks)

    def allreduce_async_(self, tensor, name=None, op=Ops.Average):
        op = Ops(op)
        if _group is not None:
            return _group.allreduce_async_(tensor, name=name, op=_group.Average if op is Ops.Average else _group.Sum)
        dist = _initialised_distributed()
        work = None if dist is None else dist.all_reduce(tensor, async_op=True)
        return _PendingCollective(work, tensor, self.size() if op is Ops.Average else 1)

    def broadcast_async_(self, tensor, src, group=None, name=None):
        if _group is not None:
            extra = {} if group is None else {"process_set": group}
            return _group.broadcast_async_(tensor, root_rank=src, name=name, **extra)
        dist = _initialised_distributed()
        work = None if dist is None else dist.broadcast(tensor, src=src, group=group, async_op=True)
        return _PendingCollective(work, tensor, 1)

    def synchronize(self, handle):
        return _group.synchronize(handle) if _group is not None else handle.wait()

    def allreduce_(self, tensor, name=None, op=Ops.Average):
        return self.synchronize(self.allreduce_async_(tensor, name, op))

    def broadcast_(self, tensor, src, group=None, name=None):
        return self.synchronize(self.broadcast_async_(tensor, src, group, name))

    allreduce, broadcast = allreduce_, broadcast_


comm = _Communicator()
