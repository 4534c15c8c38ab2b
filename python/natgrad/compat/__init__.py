"""Published programs by their own names: change the import, keep the script.

    from kfac.preconditioner import KFACPreconditioner     ->  from natgrad.compat import KFACPreconditioner
    import kfac; kfac.get_kfac_module("eigen_dp")          ->  import natgrad.compat as kfac
    import kfac; kfac.get_kfac_module("eva")               ->  import natgrad.compat as kfac
    from optim.mfac import MFAC                            ->  from natgrad.compat import MFAC
    from ista_daslab_optimizers import SparseMFAC          ->  from natgrad.compat import SparseMFAC

Every argument works or is refused by name; docs/migrating.md has them side by side.  Numbers are the published ones,
but where a published program is known to be wrong: dilated and grouped convolutions, padding modes.
"""
from . import backend
from ._chainerkfac import SPNGD
from ._gptneox import GPTNeoXKFACPreconditioner
from ._istdaslab import (GGT, MFAC, DenseMFAC, LowRankAggregateMFAC, LowRankMFAC, RankOneAggregateMFAC, RankOneMFAC,
                         SparseGGT, SparseGradientMFAC, SparseMFAC)
from ._kaisa import (AssignmentStrategy, ComputeMethod, DistributedStrategy, KFACPreconditioner, LambdaParamScheduler,
                     exp_decay_factor_averaging)
from ._lzhangbv import DP_KFAC, KFAC, MPD_KFAC, EVA, FusedEVA, KFACParamScheduler, get_kfac_module

__all__ = ["AssignmentStrategy", "ComputeMethod", "DP_KFAC", "DenseMFAC", "DistributedStrategy", "EVA", "FusedEVA", "GGT",
           "GPTNeoXKFACPreconditioner", "KFAC", "KFACParamScheduler", "KFACPreconditioner", "LambdaParamScheduler",
           "LowRankAggregateMFAC", "LowRankMFAC", "MFAC", "MPD_KFAC", "RankOneAggregateMFAC", "RankOneMFAC", "SPNGD",
           "SparseGGT", "SparseGradientMFAC", "SparseMFAC", "backend", "exp_decay_factor_averaging", "get_kfac_module"]
