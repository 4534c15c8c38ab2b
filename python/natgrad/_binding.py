"""Bind gradients and weights for a step, and check that the model has not changed since the preconditioner was made."""
import ctypes as c

import torch

from . import _abi, _layers, _tensors
from ._core import make_error
from ._tensors import TensorDescriptor, ViewDescriptor, gather, is_sharded, unsupported_reason


class ParameterBinding:
    """Base class of Preconditioner that binds the parameters of the model to the library."""

    def _parameters_to_bind(self):
        """Return the parameters to bind, as (entry, place): of layers only, or of all entries if `_binds_all`."""
        return [(entry, place) for entry in self.entries for place in entry.places
                if not entry.frozen and (self._binds_all or isinstance(entry, _layers.Layer))]

    def _check_tensors_supported(self):
        """Check the parameters.  Return their device; None: there are no parameters."""
        first = device = None
        for _, (_, module, attribute, full) in self._parameters_to_bind():
            parameter = getattr(module, attribute)
            if is_sharded(parameter) and not self._binds_weights:
                parameter = parameter.to_local()
            why = unsupported_reason(full, parameter)
            if why:
                raise make_error(_abi.NG_ERR_ARG, why)
            mine = _tensors.device_of(parameter)
            if device is not None and mine != device:
                raise make_error(_abi.NG_ERR_ARG, f"'{first}' is on {device} and '{full}' on {mine}: expected one device")
            first, device = first or full, mine
        return device

    def _has_sharded_parameters(self):
        return any(is_sharded(p) for p in self.model.parameters())

    def _is_fully_sharded(self):
        """Return True if fully_shard shards parameters."""
        return any(kind.__name__ == "FSDPModule" for m in self.model.modules() for kind in type(m).__mro__)

    def _is_tensor_parallel(self):
        """Return True if parameters are sharded beyond fully_shard, which has one sharded placement."""
        by_fsdp = self._is_fully_sharded()
        return any(is_sharded(p) and sum(not one.is_replicate() for one in p.placements) > by_fsdp
                   for p in self.model.parameters())

    def _check_tensor_parallel(self, divides_batch):
        """Check that the ranks of tensor parallelism, which have the same samples, may have the options.  divides_batch: the ranks
        would divide a batch.  Return whether they do."""
        if self._chosen.get("statistics") == "local":
            raise make_error(_abi.NG_ERR_ABSENT, "statistics = local: not supported with tensor-parallel parameters, expected all")
        mesh = next(p.device_mesh for p in self.model.parameters() if is_sharded(p))
        ranks = 1 if self._core.transport is None else self._core.transport.size
        if divides_batch and ranks not in (1, mesh.size() if mesh.ndim == 1 else 1):
            raise make_error(_abi.NG_ERR_ABSENT, f"method {self._chosen.get('method')} needs the batch of all ranks, of which "
                             "tensor-parallel ranks have the same part: pass own_batches=True")
        return False

    def _make_bindings(self):
        rows = self._parameters_to_bind()
        self._bound_rows = []
        self._places_by_entry = [(entry, [(module._parameters, attribute) for _, module, attribute, _ in entry.places])
                          for entry in self.entries]
        self._places = list({full: (module._parameters, attribute, full) for entry in self.entries
                             for _, module, attribute, full in entry.places}.values())
        self._child_counts = [(parent, len(parent._modules), path) for path, parent in self.model.named_modules()]
        self._shared_places = [(module._parameters, attribute, first, full) for entry in self.entries
                               for _, first, attribute, full in entry.places for module in getattr(entry, "modules", [])[1:]]
        mine = {id(module) for entry in self.entries for module in getattr(entry, "modules", ())}
        self._children = [(parent._modules, name, child, f"{path}.{name}" if path else name)
                          for path, parent in self.model.named_modules() for name, child in parent._modules.items()
                          if child is not None and any(id(m) in mine for m in child.modules())]
        self._gradient_bindings = (_abi.ng_binding * len(rows))()
        self._weight_bindings = (_abi.ng_binding * (len(rows) if self._binds_weights else 0))()  # stay bound until a weight moves
        self._weights_moved = False
        for i, (binding, (entry, (which, module, attribute, full))) in enumerate(zip(self._gradient_bindings, rows)):
            view = entry.view_of(which)
            grad, weight = (TensorDescriptor(name) if view is None else ViewDescriptor(name, view)
                            for name in (f"the gradient of {full}", full))
            binding.index, binding.param, binding.hold = entry.index, which, _abi.NG_ONE_STEP
            binding.grad = c.addressof(grad.array)
            if self._binds_weights:
                held = self._weight_bindings[i]
                held.index, held.param, held.hold = entry.index, which, _abi.NG_HOLD
                held.weight = c.addressof(weight.array)
            self._bound_rows.append((entry, module._parameters, attribute, grad, weight))

    # ---- at each step

    def _check_model(self):
        """Check that the model has the same modules and parameters, shared in the same way, as at construction."""
        for modules, name, child, full in self._children:
            if modules.get(name) is not child:
                raise make_error(_abi.NG_ERR_STATE, f"module '{full}' was replaced or removed: make a new preconditioner")
        for parameters, attribute, full in self._places:
            if parameters.get(attribute) is None:
                raise make_error(_abi.NG_ERR_STATE, f"'{full}' was removed: it was a parameter when the preconditioner was made")
        if len({id(parameters[attribute]) for parameters, attribute, _ in self._places}) < len(self._places):
            self._reject_newly_tied()
        for parent, count, path in self._child_counts:
            if len(parent._modules) > count:
                self._reject_added_modules(parent, count, path)
        for parameters, attribute, first, full in self._shared_places:
            if parameters.get(attribute) is not first._parameters.get(attribute):
                raise make_error(_abi.NG_ERR_STATE, f"'{full}' was shared by several modules when the preconditioner was made, "
                                 "and is not any more: make a new one")

    def _reject_newly_tied(self):
        first = {}
        for parameters, attribute, full in self._places:
            other = first.setdefault(id(parameters[attribute]), full)
            if other != full:
                raise make_error(_abi.NG_ERR_STATE, f"'{full}' and '{other}' were not the same parameter when the preconditioner "
                                 "was made, and are now: make a new one")

    def _reject_added_modules(self, parent, count, path):
        """Reject a module that was added later and shares a parameter of a layer: this module has no hook."""
        mine = {id(parameters[attribute]): full for parameters, attribute, full in self._places}
        for name, child in list(parent._modules.items())[count:]:
            for parameter in () if child is None else child.parameters():
                if id(parameter) in mine:
                    full = f"{path}.{name}" if path else name
                    raise make_error(_abi.NG_ERR_STATE, f"module '{full}' was added after the preconditioner was made, and "
                                     f"shares '{mine[id(parameter)]}': make a new one")

    def _bind_for_step(self):
        self._check_model()
        for entry, places in self._places_by_entry:
            frozen = entry.frozen_now or entry.frozen
            for parameters, attribute in places:
                if frozen == parameters[attribute].requires_grad:
                    self._freeze_or_unfreeze(entry)
                    break
        self._bind_gradients_and_weights()

    def _bind_gradients_and_weights(self):
        """Bind gradients for one step.  Bind weights again only if the address or layout of a weight has changed."""
        weights, self._bound_gradients = self._binds_weights, []  # this list keeps gradients alive during the step
        self._gathered_gradients = {}  # id of a sharded gradient -> (this gradient, whole gradient)
        for entry, parameters, attribute, grad, weight in self._bound_rows:
            parameter = parameters[attribute]
            gradient = parameter.grad
            if gradient is None:
                grad.describe_missing()
            else:
                if is_sharded(gradient):
                    if id(gradient) not in self._gathered_gradients:
                        self._gathered_gradients[id(gradient)] = gradient, gather(gradient).contiguous()
                    gradient = self._gathered_gradients[id(gradient)][1]
                grad.describe(gradient)
                self._bound_gradients.append(gradient)
            if weights and weight.describe_and_compare(parameter):
                self._weights_moved = True
        if self._weights_moved:
            self._core.call("bind", self._weight_bindings, len(self._weight_bindings))
            self._weights_moved = False
        self._core.call("bind", self._gradient_bindings, len(self._gradient_bindings))

    def _write_shards(self):
        """Write the preconditioned gradients into the shards.  A gradient that is a sum over ranks gets equal parts."""
        for sharded, whole in self._gathered_gradients.values():
            mesh, parts = sharded.device_mesh, 1
            replicate = torch.distributed.tensor.Replicate()
            copies = torch.distributed.tensor.DTensor.from_local(whole, mesh, [replicate] * mesh.ndim, run_check=False)
            for axis, placement in enumerate(sharded.placements):
                if placement.is_partial("sum"):
                    parts *= mesh.size(axis)
            placements = [replicate if one.is_partial() else one for one in sharded.placements]
            sharded.to_local().copy_(copies.redistribute(placements=placements).to_local() / parts)
        self._gathered_gradients.clear()

    def _freeze_or_unfreeze(self, entry):
        """Freeze or unfreeze an entry after requires_grad changed, which must be equal for all its parameters."""
        learn = {full: parameter.requires_grad
                 for (_, _, _, full), parameter in zip(entry.places, entry.parameters())}
        if entry.frozen:
            full = next(full for full in learn if learn[full])
            raise make_error(_abi.NG_ERR_STATE, f"'{full}' was frozen when the preconditioner was made, and is not any more: "
                             "make a new one")
        if len(set(learn.values())) > 1:
            frozen, other = (next(full for full in learn if learn[full] == one) for one in (False, True))
            raise make_error(_abi.NG_ERR_STATE, f"'{frozen}' is frozen and '{other}' is not; both learned when the "
                             "preconditioner was made, as parts of one layer: freeze both, or make a new one")
        entry.frozen_now = not entry.frozen_now
        self._core.call("freeze", entry.index, int(entry.frozen_now))
