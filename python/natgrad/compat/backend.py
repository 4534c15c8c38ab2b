"""kfac.backend of lzhangbv's programs: which library carries the messages."""
from .. import _abi
from .._core import failure

_group = None  # what a preconditioner takes where it is given no process group


def init(name):
    """"Torch": the default process group of torch.distributed, if there is one; "Horovod": horovod.torch."""
    global _group
    if name == "Torch":
        _group = None
    elif name == "Horovod":
        try:
            import horovod.torch
        except ImportError as error:
            raise failure(_abi.NG_ERR_ABSENT, f"backend 'Horovod': horovod.torch cannot be imported: {error}") from error
        horovod.torch.init()
        _group = horovod.torch
    else:
        raise failure(_abi.NG_ERR_ABSENT, f"backend '{name}': not supported, there are Torch and Horovod")


def group():
    return _group
