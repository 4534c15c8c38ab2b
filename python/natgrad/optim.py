"""Optimizers that precondition the gradients and update the weights in one pass over memory.

    optimizer = natgrad.SGD(model, lr=0.1, momentum=0.9, weight_decay=5e-4, damping=0.003)
    loss.backward()
    optimizer.step()

SGD and AdamW derive from torch.optim.Optimizer.  param_groups are read at each step, so schedulers and trainers work.
"""
import ctypes as c
import inspect

import torch

from . import _abi, _core, _layers
from ._core import make_error, to_float, short_repr
from ._wrapped import PreconditioningOptimizer
from .preconditioner import Preconditioner

# increment_version tells autograd that a tensor was changed in place; older PyTorch lacks this function.
_increment_version = getattr(torch.autograd.graph, "increment_version", None)
# Accelerate looks for an argument with this name in zero_grad().
_SET_TO_NONE = inspect.signature(torch.optim.Optimizer.zero_grad).parameters["set_to_none"].default


def _read_betas(betas):
    try:
        one, two = betas
    except (TypeError, ValueError):
        raise make_error(_abi.NG_ERR_ARG, f"betas is {short_repr(betas)}, expected two numbers") from None
    return to_float("betas[0]", one), to_float("betas[1]", two)


class _FusedPreconditioner(Preconditioner):
    """A preconditioner whose step also updates the weights, with lr, momentum, ... of their param_group."""

    def __init__(self, optimizer, model, options, kwargs):
        self._group_of_parameter = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._group_names = [f"param_groups[{i}]" for i in range(len(optimizer.param_groups))]
        arguments = dict(accumulation_steps=1, grad_scaler=None, samples="model", batch_first=True, reduction="mean",
                         process_group=None, threads=0, linalg=None, layer_options=None, own_batches=False)
        arguments.update((name, kwargs.pop(name)) for name in list(kwargs) if name in arguments)
        options.update(kwargs)
        self._setup(model, self._make_options(options), lr=None, warns_of_passes=True, **arguments)

    def _assign_param_groups(self):
        mine, used = {}, set()
        for entry in self.entries:
            for which, module, attribute, full in entry.places:
                parameter = module._parameters[attribute]
                used.add(id(parameter))
                group = self._group_of_parameter.get(id(parameter))
                if group is None and parameter.requires_grad:
                    raise make_error(_abi.NG_ERR_ARG, f"'{full}' requires a gradient but is in no param_group: add it to "
                                     "one, or freeze it")
                if group is not None and not entry.frozen:
                    mine[entry.index, which] = group
        unknown = [group for parameter, group in self._group_of_parameter.items() if parameter not in used]
        if unknown:
            name = self._group_names[unknown[0]]
            raise make_error(_abi.NG_ERR_ARG, f"{name} has a parameter that is not in the model")
        self._grouped_parameters = [(module._parameters, attribute, module._parameters[attribute], full)
                                    for entry in self.entries for _, module, attribute, full in entry.places]
        self.groups = sorted(set(mine.values()))  # indices of param_groups with a trainable parameter
        for (index, which), group in mine.items():
            self._core.call("set_group", index, which, self.groups.index(group))

    def _check_model(self):
        super()._check_model()
        for parameters, attribute, first, full in self._grouped_parameters:
            if parameters.get(attribute) is not first:
                raise make_error(_abi.NG_ERR_STATE, f"'{full}' differs from the parameter in param_groups: make a new "
                                 "optimizer")


class _FusedOptimizer(PreconditioningOptimizer):
    _update = _struct = None
    method = "natgrad"

    def _construct(self, first, model, params, defaults, options):
        name = type(self).__name__
        if first is not None:
            is_model = isinstance(first, torch.nn.Module)
            if (model if is_model else params) is not None:
                raise make_error(_abi.NG_ERR_ARG, f"{name}: {'model' if is_model else 'params'} is given twice")
            model, params = (first, params) if is_model else (model, first)
        if not isinstance(model, torch.nn.Module):
            raise make_error(_abi.NG_ERR_ARG, f"{name} needs the model, whose layers it observes: {name}(model, ...), or "
                             f"{name}(parameters, ..., model=model)")
        super().__init__(list(_layers.unwrap(model).parameters()) if params is None else params, defaults)
        for group in self.param_groups:
            to_float("lr", group["lr"])
        self._prepare_groups(_layers.unwrap(model), options)
        self.preconditioner = _FusedPreconditioner(self, model, {"method": options.pop("method", None) or self.method,
                                                                 "update": self._update}, options)
        self._option_names = {row["name"] for row in _core.options()} - set(defaults)
        self._reject_options_in_groups(self.param_groups)
        self._group_structs = (self._struct * len(self.preconditioner.groups))()

    def _prepare_groups(self, model, options):
        """Check the groups of the class and add options that depend on them."""

    def _reject_options_in_groups(self, groups):
        for i, group in enumerate(groups):
            for name in self._option_names.intersection(group):
                raise make_error(_abi.NG_ERR_ARG, f"param_groups[{i}] has '{name}', which is not per group: pass it as a "
                                 "keyword (live options may be functions of the step), or per layer in layer_options")

    def step(self, closure=None):
        """Take one step; return the closure's result.  Set `note` to the status: 0 done, 2 skipped, ..."""
        loss = self._evaluate_closure(closure)
        self._reject_options_in_groups(self.param_groups)
        for numbers, group in zip(self._group_structs, self.preconditioner.groups):
            numbers.struct_size = c.sizeof(self._struct)
            self._fill_struct(numbers, self.param_groups[group])
        self.note = self.preconditioner._take_step("step_" + self._update, self._group_structs, len(self._group_structs))
        if _increment_version is not None and self.note != _abi.NG_SKIPPED:
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        _increment_version(parameter)
        return loss

    def zero_grad(self, set_to_none=_SET_TO_NONE):
        """Drop the gradients.  If no step used them (GradScaler skipped the step), also drop their observations."""
        if self.preconditioner._observer.open_batch is not None or self.preconditioner._observer.has_failed:
            self.preconditioner.reset_batch()
        super().zero_grad(set_to_none)


class SGD(_FusedOptimizer):
    """torch.optim.SGD with preconditioned gradients: SGD(model, lr), or SGD(parameters or param_groups, lr, model=model).
    `decoupled`: weight decay as in AdamW.  More keywords: method, all keywords of Preconditioner, all options."""

    _update, _struct = "sgd", _abi.ng_sgd

    def __init__(self, model_or_params=None, /, lr=None, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False,
                 decoupled=False, *, model=None, params=None, **options):
        self._construct(model_or_params, model, params, dict(lr=lr, momentum=momentum, dampening=dampening,
                                                             weight_decay=weight_decay, nesterov=nesterov,
                                                             decoupled=decoupled), options)

    @staticmethod
    def _fill_struct(numbers, group):
        for name in ("lr", "momentum", "dampening", "weight_decay"):
            setattr(numbers, name, to_float(name, group[name]))
        numbers.nesterov, numbers.decoupled = int(group["nesterov"]), int(group["decoupled"])


class AdamW(_FusedOptimizer):
    """torch.optim.AdamW with preconditioned gradients.  More keywords as for SGD."""

    _update, _struct = "adamw", _abi.ng_adamw

    def __init__(self, model_or_params=None, /, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, *, model=None,
                 params=None, **options):
        self._construct(model_or_params, model, params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay), options)

    @staticmethod
    def _fill_struct(numbers, group):
        for name in ("lr", "eps", "weight_decay"):
            setattr(numbers, name, to_float(name, group[name]))
        numbers.beta1, numbers.beta2 = _read_betas(group["betas"])


def _fill_decoupled(numbers, group):
    numbers.lr, numbers.weight_decay = to_float("lr", group["lr"]), to_float("weight_decay", group["weight_decay"])
    numbers.momentum, numbers.dampening, numbers.nesterov, numbers.decoupled = 0.0, 0.0, 0, 1


class Muon(_FusedOptimizer):
    """torch.optim.Muon, in float32, with AdamW for everything else in the same step.  Muon(model, lr), or
    Muon(param_groups, lr, model=model).  Weights of linear layers and convolutions, as matrices [outputs, -1], have Muon; biases,
    norms, embeddings and other tensors have AdamW with betas, adam_eps and the lr and weight_decay of their group.  A group with
    use_muon=False has AdamW only, for example the output layer; a group with use_muon=True must have such weights only.
    adjust_lr_fn: 'original' (None) or 'match_rms_adamw'.  method='muon' has the rules of KellerJordan/Muon; method='newton-muon' first
    multiplies gradients by the damped inverse of the second moment of the layer's inputs; muon_rounding rounds to bf16 as the
    published programs do.  A parameter without gradient is skipped.  More keywords as for SGD."""

    _update, _struct = "sgd", _abi.ng_sgd
    method = "torch-muon"
    _fill_struct = staticmethod(_fill_decoupled)

    def __init__(self, model_or_params=None, /, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True,
                 ns_coefficients=(3.4445, -4.775, 2.0315), eps=1e-7, ns_steps=5, adjust_lr_fn=None, *, betas=(0.9, 0.999),
                 adam_eps=1e-8, model=None, params=None, **options):
        one, two = _read_betas(betas)
        try:
            a, b, c = ns_coefficients
        except (TypeError, ValueError):
            raise make_error(_abi.NG_ERR_ARG, f"ns_coefficients is {short_repr(ns_coefficients)}, expected three numbers; sets of "
                             "coefficients are values of muon_coefficients") from None
        scale = {None: "matrix", "original": "matrix", "match_rms_adamw": "rms"}.get(adjust_lr_fn)
        if scale is None:
            raise make_error(_abi.NG_ERR_ARG, f"adjust_lr_fn is {short_repr(adjust_lr_fn)}, expected None, 'original' or "
                             "'match_rms_adamw'")
        if options.get("method", self.method) != "muon":
            options.setdefault("muon_scale", scale)
        self._adam = dict(first_decay=one, second_decay=two, moment_epsilon=adam_eps, adam_lr=1)
        self._construct(model_or_params, model, params, dict(lr=lr, weight_decay=weight_decay, use_muon=None),
                        dict(muon_momentum=momentum, muon_nesterov=bool(nesterov), muon_a=a, muon_b=b, muon_c=c,
                             muon_epsilon=eps, muon_steps=ns_steps, **self._adam, **{"missing": "keep", **options}))

    def _prepare_groups(self, model, options):
        kinds = {id(p): group["use_muon"] for group in self.param_groups for p in group["params"]}
        lines = dict(options.get("layer_options") or {})
        adam = " ".join(["method=adam", *(f"{name}={value}" for name, value in self._adam.items())])
        for name, module in model.named_modules():
            is_matrix = (isinstance(module, (torch.nn.Linear, torch.nn.modules.conv._ConvNd))
                         or type(module).__name__ == "Conv1D")
            for attribute, parameter in module._parameters.items():
                kind = None if parameter is None else kinds.get(id(parameter))
                if kind and not (is_matrix and attribute == "weight"):
                    full = f"{name}.{attribute}" if name else attribute
                    raise make_error(_abi.NG_ERR_ARG, f"'{full}' is in a group with use_muon=True, but is no weight of a linear "
                                     "layer or convolution: move it to a group with use_muon=False")
                if is_matrix and attribute == "weight" and kind is False:
                    lines.setdefault(name, adam)
        if lines:
            options["layer_options"] = lines


class KFACAdam(_FusedOptimizer):
    """Adam in the eigenbases of the K-FAC factors A and G of linear layers and convolutions; AdamW for all other parameters.
    Weight decay is decoupled.  Arguments and more keywords as for SGD; betas and eps are options of the model."""

    _update, _struct = "sgd", _abi.ng_sgd
    method = "kfac-adam"
    _fill_struct = staticmethod(_fill_decoupled)

    def __init__(self, model_or_params=None, /, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, *, model=None,
                 params=None, **options):
        one, two = _read_betas(betas)
        self._construct(model_or_params, model, params, dict(lr=lr, weight_decay=weight_decay),
                        dict(first_decay=one, second_decay=two, moment_epsilon=eps, **options))


class SOAP(KFACAdam):
    """SOAP (nikhilvyas/SOAP): Adam in the eigenbases of the gradient's Gram matrices, with the arguments of the program.
    method="soap-natgrad": a new basis in every step.  More keywords as for SGD."""

    method = "soap"

    def __init__(self, model_or_params=None, /, lr=3e-3, betas=(0.95, 0.95), shampoo_beta=-1, eps=1e-8, weight_decay=0.01,
                 precondition_frequency=None, max_precond_dim=10000, merge_dims=False, precondition_1d=False,
                 normalize_grads=False, correct_bias=True, *, model=None, params=None, **options):
        one, two = _read_betas(betas)
        own = to_float("shampoo_beta", shampoo_beta)
        options = dict(first_decay=one, second_decay=two, stat_decay=two if own < 0 else own, moment_epsilon=eps,
                       max_axis=max_precond_dim, merge_axes="left" if merge_dims else "none", vector_factor=precondition_1d,
                       normalize=normalize_grads, bias_correction=correct_bias, **options)
        if precondition_frequency is not None:  # 10, of soap-natgrad 1
            options["solve_period"] = precondition_frequency
        self._construct(model_or_params, model, params, dict(lr=lr, weight_decay=weight_decay), options)


class KLShampoo(KFACAdam):
    """Shampoo with matrices that minimise the KL divergence to the gradient's covariance (arXiv 2509.03378).  epsilon: a multiple
    of the mean eigenvalue.  More keywords as for SGD."""

    method = "kl-shampoo"

    def __init__(self, model_or_params=None, /, lr=3e-3, betas=(0.9, 0.95), epsilon=1e-6, weight_decay=0.01,
                 precondition_frequency=10, *, model=None, params=None, **options):
        one, two = _read_betas(betas)
        self._construct(model_or_params, model, params, dict(lr=lr, weight_decay=weight_decay),
                        dict(first_decay=one, filter_decay=one, stat_decay=two, damping=epsilon,
                             solve_period=precondition_frequency, **options))


class Shampoo(SGD):
    """Distributed Shampoo (facebookresearch/optimizers): inverse roots of the gradient's Gram matrices, with the arguments of the
    program.  grafting: None, 'sgd', 'adam', 'adagrad' or 'rmsprop'; grafting_beta2 is 0.999, of rmsprop 0.99.  Weight decay is the
    decoupled one of the program: it enters the momentum.  A layer without gradients is skipped.  More keywords as for SGD."""

    method = "shampoo"

    def __init__(self, model_or_params=None, /, lr=1e-2, betas=(0.9, 1.0), beta3=-1.0, epsilon=1e-12, momentum=0.0, dampening=0.0,
                 weight_decay=0.0, max_preconditioner_dim=1024, precondition_frequency=1, start_preconditioning_step=-1,
                 use_nesterov=False, use_bias_correction=True, grafting=None, grafting_beta2=None, grafting_epsilon=1e-10,
                 target_parameter_dimensionality=1, *, model=None, params=None, **options):
        one, two = _read_betas(betas)
        own, start = to_float("beta3", beta3), to_float("start_preconditioning_step", start_preconditioning_step)
        if grafting_beta2 is None:
            grafting_beta2 = 0.99 if grafting == "rmsprop" else 0.999
        options = dict(first_decay=one, stat_decay=two, filter_decay=one if own == -1 else own, damping=epsilon,
                       max_axis=max_preconditioner_dim, solve_period=precondition_frequency,
                       solve_start=precondition_frequency if start == -1 else start_preconditioning_step,
                       bias_correction=use_bias_correction, grafting=grafting or "none", second_decay=grafting_beta2,
                       moment_epsilon=grafting_epsilon, kept_axes=target_parameter_dimensionality, **{"missing": "keep", **options})
        self._construct(model_or_params, model, params, dict(lr=lr, momentum=momentum, dampening=dampening,
                                                             weight_decay=weight_decay, nesterov=use_nesterov,
                                                             decoupled=False), options)

    @staticmethod
    def _fill_struct(numbers, group):
        """The program's momentum is M <- mu M + (1 - d) P, the step (1 - d) P + mu M with Nesterov: SGD with lr (1 - d)."""
        SGD._fill_struct(numbers, group)
        if numbers.momentum != 0:
            numbers.lr *= 1 - numbers.dampening
        numbers.dampening = 0.0
