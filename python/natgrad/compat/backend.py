"""kfac.backend of lzhangbv's programs: which library carries the messages."""
from .. import _abi
from .._core import failure

_chosen = None


def init(name):
    """"Torch": the default process group of torch.distributed, if there is one."""
    global _chosen
    if name != "Torch":
        raise failure(_abi.NG_ERR_ABSENT, f"backend '{name}': not supported, there is Torch")
    _chosen = name
