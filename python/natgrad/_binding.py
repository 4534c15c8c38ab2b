"""Bind gradients and weights for a step, and check that the model has not changed since the preconditioner was made."""
import ctypes as c

from . import _abi, _layers
from ._core import failure
from ._tensors import Described, Flat, wrong


class Binding:
    """Base class of Preconditioner that binds the parameters of the model to the library."""

    def _bound(self):
        """Return the parameters to bind, as (entry, place): of layers only, or of all entries if `_binds_all`."""
        return [(entry, place) for entry in self.entries for place in entry.places
                if not entry.frozen and (self._binds_all or isinstance(entry, _layers.Layer))]

    def _check_parameters(self):
        for _, (_, module, attribute, full) in self._bound():
            why = wrong(full, getattr(module, attribute))
            if why:
                raise failure(_abi.NG_ERR_ARG, why)

    def _make_bindings(self):
        rows = self._bound()
        self._rows = []
        self._trainable = [(entry, [(module._parameters, attribute) for _, module, attribute, _ in entry.places])
                          for entry in self.entries]
        self._places = [(module._parameters, attribute, full) for entry in self.entries
                        for _, module, attribute, full in entry.places]
        self._sizes = [(parent, len(parent._modules), path) for path, parent in self.model.named_modules()]
        self._shared = [(module._parameters, attribute, first, full) for entry in self.entries
                        for _, first, attribute, full in entry.places for module in getattr(entry, "modules", [])[1:]]
        mine = {id(module) for entry in self.entries for module in getattr(entry, "modules", ())}
        self._children = [(parent._modules, name, child, f"{path}.{name}" if path else name)
                          for path, parent in self.model.named_modules() for name, child in parent._modules.items()
                          if child is not None and any(id(m) in mine for m in child.modules())]
        self._bindings = (_abi.ng_binding * len(rows))()
        self._held = (_abi.ng_binding * (len(rows) if self._binds_weights else 0))()  # stay bound until a weight moves
        self._moved = False
        for i, (binding, (entry, (which, module, attribute, full))) in enumerate(zip(self._bindings, rows)):
            kind = Flat if getattr(entry, "axes", 0) > 1 else Described
            grad, weight = kind(f"the gradient of {full}"), kind(full)
            binding.index, binding.param, binding.hold = entry.index, which, _abi.NG_ONE_STEP
            binding.grad = c.addressof(grad.array)
            if self._binds_weights:
                held = self._held[i]
                held.index, held.param, held.hold = entry.index, which, _abi.NG_HOLD
                held.weight = c.addressof(weight.array)
            self._rows.append((entry, module._parameters, attribute, grad, weight))

    # ---- at each step

    def _check_model(self):
        """Check that the model has the same modules and parameters, shared in the same way, as at construction."""
        for modules, name, child, full in self._children:
            if modules.get(name) is not child:
                raise failure(_abi.NG_ERR_STATE, f"module '{full}' was replaced or removed: make a new preconditioner")
        for parameters, attribute, full in self._places:
            if parameters.get(attribute) is None:
                raise failure(_abi.NG_ERR_STATE, f"'{full}' was removed: it was a parameter when the preconditioner was made")
        if len({id(parameters[attribute]) for parameters, attribute, _ in self._places}) < len(self._places):
            self._refuse_tied()
        for parent, count, path in self._sizes:
            if len(parent._modules) > count:
                self._check_added(parent, count, path)
        for parameters, attribute, first, full in self._shared:
            if parameters.get(attribute) is not first._parameters.get(attribute):
                raise failure(_abi.NG_ERR_STATE, f"'{full}' was shared by several modules when the preconditioner was made, "
                              "and is not any more: make a new one")

    def _refuse_tied(self):
        first = {}
        for parameters, attribute, full in self._places:
            other = first.setdefault(id(parameters[attribute]), full)
            if other != full:
                raise failure(_abi.NG_ERR_STATE, f"'{full}' and '{other}' were not the same parameter when the preconditioner "
                              "was made, and are now: make a new one")

    def _check_added(self, parent, count, path):
        """Reject a module that was added later and shares a parameter of a layer: this module has no hook."""
        mine = {id(parameters[attribute]): full for parameters, attribute, full in self._places}
        for name, child in list(parent._modules.items())[count:]:
            for parameter in () if child is None else child.parameters():
                if id(parameter) in mine:
                    full = f"{path}.{name}" if path else name
                    raise failure(_abi.NG_ERR_STATE, f"module '{full}' was added after the preconditioner was made, and "
                                  f"shares '{mine[id(parameter)]}': make a new one")

    def _bind(self):
        self._check_model()
        for entry, places in self._trainable:
            frozen = entry.frozen_now or entry.frozen
            for parameters, attribute in places:
                if frozen == parameters[attribute].requires_grad:
                    self._freeze_or_thaw(entry)
                    break
        self._bind_arrays()

    def _bind_arrays(self):
        """Bind gradients for one step.  Bind weights again only if the address or layout of a weight has changed."""
        weights, self._alive = self._binds_weights, []  # _alive keeps gradients from being freed during the step
        for entry, parameters, attribute, grad, weight in self._rows:
            parameter = parameters[attribute]
            gradient = parameter.grad
            if gradient is None:
                grad.none()
            else:
                grad.of(gradient)
                self._alive.append(gradient)
            if weights and weight.moved(parameter):
                self._moved = True
        if self._moved:
            self._core.call("bind", self._held, len(self._held))
            self._moved = False
        self._core.call("bind", self._bindings, len(self._bindings))

    def _freeze_or_thaw(self, entry):
        """Freeze or unfreeze an entry after requires_grad changed, which must be equal for all its parameters."""
        learn = {full: parameter.requires_grad
                 for (_, _, _, full), parameter in zip(entry.places, entry.parameters())}
        if entry.frozen:
            full = next(full for full in learn if learn[full])
            raise failure(_abi.NG_ERR_STATE, f"'{full}' was frozen when the preconditioner was made, and is not any more: "
                          "make a new one")
        if len(set(learn.values())) > 1:
            frozen, other = (next(full for full in learn if learn[full] == one) for one in (False, True))
            raise failure(_abi.NG_ERR_STATE, f"'{frozen}' is frozen and '{other}' is not; both learned when the "
                          "preconditioner was made, as parts of one layer: freeze both, or make a new one")
        entry.frozen_now = not entry.frozen_now
        self._core.call("freeze", entry.index, int(entry.frozen_now))
