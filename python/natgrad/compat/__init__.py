"""The classes of published programs, under their own names: a script only needs another import.

    from kfac.preconditioner import KFACPreconditioner     ->  from natgrad.compat.preconditioner import KFACPreconditioner
    import kfac; kfac.preconditioner.KFACPreconditioner    ->  import natgrad.compat as kfac
    import kfac; kfac.get_kfac_module("eigen_dp")          ->  import natgrad.compat as kfac
    import kfac; kfac.get_kfac_module("eva")               ->  import natgrad.compat as kfac
    from optim.mfac import MFAC                            ->  from natgrad.compat import MFAC
    from ista_daslab_optimizers import SparseMFAC          ->  from natgrad.compat import SparseMFAC

Each argument works or is rejected by name; docs/migrating.md lists all arguments.  Results equal the published programs,
except for dilated and grouped convolutions and padding modes, where the programs are wrong.
"""
from . import backend, base_preconditioner, enums, gpt_neox, hyperparams, preconditioner, scheduler
from ._chainerkfac import SPNGD
from ._gptneox import GPTNeoXKFACPreconditioner
from ._istdaslab import (GGT, MFAC, DenseMFAC, LowRankAggregateMFAC, LowRankMFAC, RankOneAggregateMFAC, RankOneMFAC,
                         SparseGGT, SparseGGT_DenseFormat, SparseGGT_SparseFormatSpmm, SparseGradientMFAC, SparseMFAC)
from ._kaisa import (AllreduceMethod, AssignmentStrategy, ComputeMethod, DistributedStrategy, KFACPreconditioner,
                     LambdaParamScheduler, exp_decay_factor_averaging)
from ._lzhangbv import (ADASGD, DP_KFAC, EVA, KFAC, KFAC_EIGEN, KFAC_EIGEN_DP, KFAC_INV, KFAC_INV_DP, MPD_KFAC, SAM, Eva,
                        FusedEVA, KFACParamScheduler, get_kfac_module, kfac_mappers)

__all__ = ["ADASGD", "AllreduceMethod", "AssignmentStrategy", "ComputeMethod", "DP_KFAC", "DenseMFAC", "DistributedStrategy",
           "EVA", "Eva", "FusedEVA", "GGT", "GPTNeoXKFACPreconditioner", "KFAC", "KFACParamScheduler", "KFACPreconditioner",
           "KFAC_EIGEN", "KFAC_EIGEN_DP", "KFAC_INV", "KFAC_INV_DP", "LambdaParamScheduler", "LowRankAggregateMFAC",
           "LowRankMFAC", "MFAC", "MPD_KFAC", "RankOneAggregateMFAC", "RankOneMFAC", "SAM", "SPNGD", "SparseGGT",
           "SparseGGT_DenseFormat", "SparseGGT_SparseFormatSpmm", "SparseGradientMFAC", "SparseMFAC", "backend", "base_preconditioner", "enums", "exp_decay_factor_averaging",
           "get_kfac_module", "gpt_neox", "hyperparams", "kfac_mappers", "preconditioner", "scheduler"]
