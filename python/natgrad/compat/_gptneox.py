"""The GPT-NeoX preconditioner of gpauloski/kfac-pytorch, for models of DeepSpeed's PipelineModule."""
import ctypes as c
import logging
import os
import warnings

import torch

from .. import _abi, _core, _distributed, _layers, _plan
from .._core import make_error
from ._kaisa import AssignmentStrategy, ComputeMethod, DistributedStrategy, KFACPreconditioner

_PARALLEL_LAYERS = ("columnparallellinear", "rowparallellinear")


def _group_size(group):
    """Return the number of ranks of a group."""
    if group is None:
        return 1
    return group.size() if callable(getattr(group, "size", None)) else torch.distributed.get_world_size(group)


class GPTNeoXKFACPreconditioner(KFACPreconditioner):
    """KFACPreconditioner for the column- and row-parallel linear layers of a pipeline stage.  Only owners store
    eigenbases.

    compute_eigenvalue_outer_product is ignored, as published.  The clip factor nu is computed over the layers of all
    stages of pipeline_parallel_group, which must have the same options and step together.  The ranks of
    model_parallel_group have shards of a layer: outputs of a ColumnParallelLinear (gather_output=False), inputs of a
    RowParallelLinear (input_is_parallel=True).
    """

    _saves_exact_state = True  # collective: ranks may have parts of a layer

    def __init__(self, model, *, factor_update_steps=1, inv_update_steps=1, damping=0.001, factor_decay=0.95,
                 kl_clip=0.001, lr=0.1, accumulation_steps=1, allreduce_bucket_cap_mb=25.0,
                 assignment_strategy=AssignmentStrategy.COMPUTE, compute_method=ComputeMethod.EIGEN,
                 compute_eigenvalue_outer_product=False, symmetry_aware=False, grad_scaler=None, factor_dtype=None,
                 inv_dtype=torch.float32, skip_layers=None, update_factors_in_hook=True, loglevel=logging.DEBUG,
                 factor_checkpoint_dir=None, data_parallel_group=None, model_parallel_group=None,
                 pipeline_parallel_group=None):
        warnings.warn("KFAC support for GPT-NeoX is experimental", stacklevel=2)
        if not any(kind.__name__ == "PipelineModule" for kind in type(model).__mro__):
            raise make_error(_abi.NG_ERR_ARG, f"model is a {type(model).__name__}, expected a PipelineModule of DeepSpeed")
        if _core.option_text("compute_method", compute_method).upper() == b"INVERSE":
            raise make_error(_abi.NG_ERR_ARG, "compute_method: inverse is not supported, expected eigen")
        if _group_size(pipeline_parallel_group) > 1 and data_parallel_group is None:
            raise make_error(_abi.NG_ERR_ARG, "data_parallel_group: required with several stages, because "
                             "the ranks of a preconditioner must have the same layers")
        if factor_checkpoint_dir is not None:
            factor_checkpoint_dir = os.fspath(factor_checkpoint_dir)
        self.factor_checkpoint_dir = factor_checkpoint_dir
        self._model_group = model_parallel_group if _group_size(model_parallel_group) > 1 else None
        self._stage_group = pipeline_parallel_group if _group_size(pipeline_parallel_group) > 1 else None
        for name, group in (("model_parallel_group", self._model_group),
                            ("pipeline_parallel_group", self._stage_group)):
            if group is not None and not isinstance(group, torch.distributed.ProcessGroup):
                raise make_error(_abi.NG_ERR_ARG, f"{name} is a {type(group).__name__}, expected a group of torch.distributed")
        if self._model_group is not None:
            data_parallel_group = _distributed.create_stage_group(data_parallel_group, self._model_group)
        if not isinstance(compute_eigenvalue_outer_product, bool):
            raise make_error(_abi.NG_ERR_ARG, "compute_eigenvalue_outer_product: expected True or False")
        super().__init__(model, factor_update_steps=factor_update_steps, inv_update_steps=inv_update_steps,
                         damping=damping, factor_decay=factor_decay, kl_clip=kl_clip, lr=lr,
                         accumulation_steps=accumulation_steps, allreduce_bucket_cap_mb=allreduce_bucket_cap_mb,
                         assignment_strategy=assignment_strategy, compute_method=compute_method,
                         compute_eigenvalue_outer_product=False, grad_worker_fraction=DistributedStrategy.MEM_OPT,
                         symmetry_aware=symmetry_aware, grad_scaler=grad_scaler, factor_dtype=factor_dtype,
                         inv_dtype=inv_dtype, skip_layers=skip_layers, update_factors_in_hook=update_factors_in_hook,
                         loglevel=loglevel, process_group=data_parallel_group)

    # ---- state: with factor_checkpoint_dir, factors are in files, one per layer, instead of the dict

    def state_dict(self, include_factors=True):
        if include_factors and self.factor_checkpoint_dir is not None:
            self.save_factors_to_dir()
            include_factors = False
        return super().state_dict(include_factors)

    def load_state_dict(self, state_dict, compute_inverses=True):
        if self.factor_checkpoint_dir is not None and "steps" in state_dict:
            self.load_factors_from_dir(compute_inverses)  # before `steps` is loaded, so that a failure changes nothing
        super().load_state_dict(state_dict, compute_inverses)

    def save_factors_to_dir(self):
        """The owner of each layer writes its factors to FACTOR_CHECKPOINT_DIR/LAYER.safetensors.  Collective."""
        self._core.call("save_factors", self._checkpoint_folder())

    def load_factors_from_dir(self, compute_inverses=True):
        """Load the files that exist, and return their number; the next step recomputes the eigenbases.  Collective."""
        found = c.c_int32(0)
        self._core.call("load_factors", self._checkpoint_folder(), c.byref(found))
        if not os.path.isdir(self.factor_checkpoint_dir):
            warnings.warn(f"factor_checkpoint_dir: no folder '{self.factor_checkpoint_dir}', no factors were loaded",
                          stacklevel=2)
        return found.value

    def _checkpoint_folder(self):
        if self.factor_checkpoint_dir is None:
            raise make_error(_abi.NG_ERR_ARG, "factor_checkpoint_dir was not given")
        return os.fsencode(self.factor_checkpoint_dir)

    def _class_name(self, module):
        return type(module).__name__.lower()

    def _is_supported(self, module):
        return self._class_name(module) in _PARALLEL_LAYERS

    def _plan_entries(self, exclusion_reason):
        entries = _plan.plan_entries(self.model, exclusion_reason, self._is_supported)
        for entry in entries:
            if self._model_group is not None and isinstance(entry, _layers.Layer):
                entry.shard_axis = _PARALLEL_LAYERS.index(self._class_name(entry.modules[0]))
        return entries

    def _model_and_stage_transports(self):
        return [None if group is None else _distributed.TorchTransport(group)
                for group in (self._model_group, self._stage_group)]
