"""Powers of the damped Kronecker curvature of layers: for influence functions, Laplace approximations and pruning."""
import contextlib
import ctypes as c
import weakref

import torch
from torch import nn
from torch.nn import functional

from . import _abi, _core, _exchange, _layers
from ._core import make_error, short_repr, to_float
from ._hooks import LayerHook
from ._library import load_library


def _matrix(layer, name, factor):
    """Return a factor as a float64 tensor: [n] (a diagonal), [n, n] or [groups, n, n]."""
    if not isinstance(factor, torch.Tensor) or not factor.is_floating_point():
        raise make_error(_abi.NG_ERR_ARG, f"layer '{layer}': {name} is {short_repr(factor)}, expected a tensor of real numbers")
    if factor.dim() not in (1, 2, 3) or factor.dim() > 1 and factor.shape[-1] != factor.shape[-2] or factor.numel() == 0:
        raise make_error(_abi.NG_ERR_SHAPE, f"layer '{layer}': {name} is {list(factor.shape)}, expected [n], [n, n] or "
                         "[groups, n, n]")
    return factor.detach().to("cpu", torch.float64).contiguous()


def _struct(left, right):
    """Return ng_factors of two float64 tensors."""
    groups = left.shape[0] if left.dim() == 3 else 1
    factors = _core.new_struct(_abi.ng_factors)
    factors.groups, factors.rows, factors.cols = groups, left.shape[-1], right.shape[-1]
    factors.left_diagonal, factors.right_diagonal = int(left.dim() == 1), int(right.dim() == 1)
    factors.left, factors.right = left.data_ptr(), right.data_ptr()
    return factors


def _read_factors(core, index):
    """Return the running averages (left, right) of a layer; None if the layer has no Kronecker factors."""
    sizes = _core.new_struct(_abi.ng_factors)
    with core.lock:
        core.check_open()
        if core.library.ng_factors_read(core.p, index, c.byref(sizes)) == _abi.NG_ERR_ABSENT:
            return None
        shapes = [(sizes.groups, n) if diagonal else (sizes.groups, n, n)
                  for n, diagonal in ((sizes.rows, sizes.left_diagonal), (sizes.cols, sizes.right_diagonal))]
        pair = [torch.empty(shape, dtype=torch.float64) for shape in shapes]
        sizes.left, sizes.right = (factor.data_ptr() for factor in pair)
        core.call("factors_read", index, c.byref(sizes))
    if sizes.groups == 1:
        return tuple(factor[0] for factor in pair)
    return tuple(torch.diag_embed(factor) if factor.dim() == 2 else factor for factor in pair)


def _rows_of(module, a, g):
    """Return left [samples, positions, groups, rows] and right [samples, positions, groups, cols] of one call of the module.
        The gradient of sample n in a group is the sum over positions of left right'.  a: input; g: gradient of the output."""
    if isinstance(module, nn.Embedding):
        tokens = functional.one_hot(a, module.num_embeddings).flatten(1, -2)
        if module.padding_idx is not None:
            tokens[..., module.padding_idx] = 0
        return tokens.double()[:, :, None], g.double().reshape(*tokens.shape[:2], 1, -1)
    if isinstance(module, nn.Conv2d):
        patches = functional.unfold(a, module.kernel_size, module.dilation, module.padding, module.stride)
        a = patches.transpose(1, 2).unflatten(2, (module.groups, -1))
        g = g.flatten(2).transpose(1, 2).unflatten(2, (module.groups, -1))
    else:
        a, g = (x.reshape(len(x), -1, 1, x.shape[-1]) for x in (a, g))
    if module.bias is not None:
        a = torch.cat([a, a.new_ones(*a.shape[:3], 1)], 3)
    return g.double(), a.double()


@contextlib.contextmanager
def _pause_preconditioners(model, but=None):
    """Let the preconditioners of a model observe nothing, except the one with the Observer `but`."""
    hooks = [hook for module in model.modules() for hook in module._forward_hooks.values() if isinstance(hook, LayerHook)]
    paused = {observer: observer.is_enabled for observer in (hook.observer() for hook in hooks) if observer not in (None, but)}
    try:
        for observer in paused:
            observer.is_enabled = False
        yield
    finally:
        for observer, was_enabled in paused.items():
            observer.is_enabled = was_enabled


def _record_problem(module):
    """Return why a layer cannot be recorded, or None."""
    if not isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding)):
        return "not a Linear, Conv2d or Embedding of this model"
    if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return "its padding is not a number of zeros"
    return None


def _destroy(library, handles, ctx):
    for handle in handles.values():
        library.ng_curvature_destroy(c.byref(handle))
    library.ng_context_destroy(c.byref(ctx))


class Curvature:
    """K = G (x) A of each layer, with its eigenvalues and eigenvectors, and M = (K + damping I)^power.

        curvature = natgrad.Curvature.of(preconditioner)      # running averages of a preconditioner
        curvature = natgrad.Curvature({"fc": (G, A)})          # factors of another program
        found = curvature.apply({"fc": D}, damping=0.01)       # M D for power = -1

    A gradient matrix D is [outputs, inputs], or [count, outputs, inputs] for several.  The weight of a convolution is
    flattened to [outputs, -1]; the gradient of the bias is a last column.  An embedding has D [tokens, features], with
    A on the left; its pair is (A, G).
    Factors are [n, n], [n] (only the diagonal), or [groups, n, n] for a convolution with groups.  All work is in float64 on the CPU.

    damping   a number of at least 0, in the unit of K, or {layer: number} with every layer
    power     any number, such as -1, -0.5, 0.5, 1
    split     'joint': (l_i r_j + damping)^power, l and r the eigenvalues of both factors; 'full': damping on both;
              'pi', 'root': sqrt(damping) / pi and sqrt(damping) pi, pi from the traces, or 1 (natgrad.h, ng_damped_power)
    """

    def __init__(self, factors, threads=0):
        self._library, self._ctx, self._handles, self.factors = load_library(), c.c_void_p(), {}, {}
        self.is_corrected = False  # correct() was called
        weakref.finalize(self, _destroy, self._library, self._handles, self._ctx)  # also at the end of the process
        config, why = _core.new_struct(_abi.ng_context_config), c.create_string_buffer(1024)
        config.threads = threads
        status = self._library.ng_context_create(_abi.VERSION, c.byref(config), why, len(why), c.byref(self._ctx))
        if status < 0:
            raise make_error(status, why.value.decode())
        if not isinstance(factors, dict) or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in factors.values()):
            raise make_error(_abi.NG_ERR_ARG, f"factors is {short_repr(factors)}, expected {{layer: (G, A)}}")
        for name, (left, right) in factors.items():
            left, right = _matrix(name, "G", left), _matrix(name, "A", right)
            if (left.dim() == 3 or right.dim() == 3) and left.shape[:-2] != right.shape[:-2]:
                raise make_error(_abi.NG_ERR_SHAPE, f"layer '{name}': G is {list(left.shape)} and A is {list(right.shape)}, expected "
                                 "the same number of groups")
            self.factors[name], handle = (left, right), c.c_void_p()
            self._check(name, self._library.ng_curvature_create(self._ctx, c.byref(_struct(left, right)), c.byref(handle)))
            self._handles[name] = handle

    @classmethod
    def of(cls, preconditioner, threads=0):
        """Return the curvature of all layers of a preconditioner that have Kronecker factors, from the present running
        averages.  Later steps do not change the result."""
        found = {entry.name: _read_factors(preconditioner._core, entry.index) for entry in preconditioner.entries
                 if isinstance(entry, _layers.Layer) and entry.index >= 0}
        found = {name: pair for name, pair in found.items() if pair is not None}
        if not found:
            raise make_error(_abi.NG_ERR_ABSENT, f"method '{preconditioner._chosen.get('method')}': no layer has Kronecker factors that "
                             "can be read, expected a method such as natgrad or kaisa")
        return cls(found, threads)

    @classmethod
    def accumulate(cls, model, batches, loss, *, reduction="sum", process_group=None, threads=0, **options):
        """Return the curvature of one pass over data at fixed weights.  A and G are the means over all samples, without a
        running average; batches may have any sizes.

            def loss(model, batch):
                images, labels = batch
                return cross_entropy(model(images), labels, reduction="sum")
            curvature = natgrad.Curvature.accumulate(model.eval(), loader, loss)

        loss       a function that returns the sum of the losses of a batch (reduction='mean': their mean).  True labels give the
                   empirical Fisher matrix, labels drawn from the model's output give the Fisher matrix
        options    arguments of natgrad.KFAC, such as skip_layers; spatial = full is set

        The gradients and the mode of the model stay, and preconditioners of the model observe nothing.  With torch.distributed
        all ranks call this function with batches of their own, also different numbers of batches; every rank returns the
        curvature of all samples.  `model` is then passed to loss() without DistributedDataParallel."""
        from .preconditioner import KFAC
        kfac = KFAC(model, reduction=reduction, process_group=process_group, threads=threads,
                    **{"norm_block": "none", "clip": "none", "spatial": "full", "stat_start": "first", **options})
        kfac._observer.observes_eval, kfac._warns_of_passes = True, False
        gradients = [(p, p.grad) for p in kfac.model.parameters()]
        try:
            for p, _ in gradients:
                p.grad = None
            with _pause_preconditioners(kfac.model, but=kfac._observer):
                for batch in batches:
                    loss(kfac.model, batch).backward()
            for p, _ in gradients:  # the step preconditions zeros; its statistics are of all batches
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            if kfac.step() == _abi.NG_SKIPPED:
                raise make_error(_abi.NG_SKIPPED, "an input or an output gradient of a layer is not finite")
            return cls.of(kfac, threads)
        finally:
            for p, g in gradients:
                p.grad = g
            kfac.close()

    def _check(self, layer, status):
        if status < 0:
            raise make_error(status, f"layer '{layer}': {self._library.ng_last_error(self._ctx).decode()}")

    def _handle(self, layer):
        if layer not in self._handles:
            raise make_error(_abi.NG_ERR_ARG, f"there is no layer {short_repr(layer)}; layers: {', '.join(map(str, self._handles))}")
        return self._handles[layer]

    def _shape(self, layer):
        left, right = self.factors[layer]
        return (left.shape[0] if left.dim() == 3 else 1) * left.shape[-1], right.shape[-1]

    def _powers(self, damping, power, split):
        """Return {layer: ng_damped_power}."""
        if isinstance(damping, dict):
            for name in damping:
                self._handle(name)
            missing = [name for name in self._handles if name not in damping]
            if missing:
                raise make_error(_abi.NG_ERR_ARG, f"damping has no layer '{missing[0]}'")
        found = {}
        for name in self._handles:
            found[name] = how = _core.new_struct(_abi.ng_damped_power)
            how.damping = to_float("damping", damping[name] if isinstance(damping, dict) else damping)
            how.power, how.split = to_float("power", power), _core.to_utf8("split", split)
        return found

    def apply(self, matrices, damping, power=-1.0, split="joint"):
        """Return {layer: M D} for {layer: D}, in the dtype of D."""
        powers, found = self._powers(damping, power, split), {}
        for name, D in matrices.items():
            handle, shape = self._handle(name), self._shape(name)
            if not isinstance(D, torch.Tensor) or D.dim() not in (2, 3) or tuple(D.shape[-2:]) != shape:
                got = list(D.shape) if isinstance(D, torch.Tensor) else short_repr(D)
                raise make_error(_abi.NG_ERR_SHAPE, f"layer '{name}': D is {got}, expected [{shape[0]}, {shape[1]}] or "
                                 f"[count, {shape[0]}, {shape[1]}]")
            x = D.detach().to("cpu", torch.float64).contiguous()
            out, count = torch.empty_like(x), x.numel() // (shape[0] * shape[1])
            self._check(name, self._library.ng_curvature_apply(handle, c.byref(powers[name]), x.data_ptr(), count, out.data_ptr()))
            found[name] = out.to(D.dtype)
        return found

    def diagonal(self, damping, power=-1.0, split="joint"):
        """Return {layer: the diagonal of M}, in float64 and the shape of D."""
        found = {}
        for name, how in self._powers(damping, power, split).items():
            found[name] = torch.empty(self._shape(name), dtype=torch.float64)
            self._check(name, self._library.ng_curvature_diagonal(self._handles[name], c.byref(how), found[name].data_ptr()))
        return found

    def _measure(self, damping, power, split):
        """Return the sums over layers of trace and log det of M."""
        total = [0.0, 0.0]
        for name, how in self._powers(damping, power, split).items():
            sums = (c.c_double(), c.c_double())
            self._check(name, self._library.ng_curvature_measure(self._handles[name], c.byref(how), *map(c.byref, sums)))
            total = [old + new.value for old, new in zip(total, sums)]
        return total

    def trace(self, damping=0.0, power=1.0, split="joint"):
        """Return the trace of M, summed over layers."""
        return self._measure(damping, power, split)[0]

    def logdet(self, damping, power=1.0, split="joint"):
        """Return log det M, summed over layers; -inf if M is singular."""
        return self._measure(damping, power, split)[1]

    def save_kronfluence(self, folder, samples, positions=1):
        """Write the factors into the four covariance files of kronfluence; after correct(), also eigenvectors, eigenvalues and Lambda.
        If the folder has no factor_arguments.json, writes one: kronfluence needs this file.

        folder     .../factors_NAME of kronfluence
        samples    the number N of samples of the factors
        positions  the number of positions of each sample, such as output pixels: a number, or {layer: number}, else 1"""
        _exchange.save_kronfluence(self, folder, samples, positions)

    @classmethod
    def load_kronfluence(cls, folder, positions=1, threads=0):
        """Return the curvature of files of kronfluence, corrected if the folder has Lambda.  With the right `positions`, as in
        save_kronfluence, its unit is natgrad's; with 1, G and A are means over positions, as in kronfluence."""
        factors, samples = _exchange.load_kronfluence(folder, positions)
        found = cls(factors, threads)
        if samples is not None:
            found.correct(samples)
        return found

    def to_laplace(self, model, samples):
        """Return the list `kfacs` of laplace.utils.Kron: [N G, A] of each weight, [N G A_bb] of each bias, in the order of
        model.named_modules() and in the dtype of the weights.  laplace-torch has no product of a weight and its bias, so this part of A is lost.

        samples    the number N of samples of the posterior"""
        return _exchange.to_laplace(self.factors, model, samples)

    @classmethod
    def from_laplace(cls, kfacs, model, samples, threads=0):
        """Return the curvature of `H_facs.kfacs` of a fitted KronLaplace of laplace-torch, divided by the number of samples.
        The model has Linear and Conv2d layers only."""
        return cls(_exchange.from_laplace(kfacs, model, samples), threads)

    @contextlib.contextmanager
    def record(self, model):
        """Record what scores() needs, {layer: (left, right)}, in forward and backward passes of `model` inside `with`.

            with curvature.record(model) as samples:
                loss_function(model(images), labels, reduction="sum").backward()

        The loss is the sum of the losses of samples, and the first axis of all arrays counts samples.  Preconditioners of the
        model observe nothing."""
        modules, found, hooks = dict(model.named_modules()), {}, []
        for name in self._handles:
            problem = _record_problem(modules.get(name))
            if problem:
                raise make_error(_abi.NG_ERR_ABSENT, f"layer '{name}': {problem}")

        def observe(name):
            def hook(module, inputs, output):
                def backward(g):
                    rows = _rows_of(module, inputs[0].detach(), g.detach())
                    found[name] = rows if name not in found else tuple(torch.cat(pair, 1) for pair in zip(found[name], rows))
                if output.requires_grad:
                    output.register_hook(backward)
            return hook

        try:
            hooks += [modules[name].register_forward_hook(observe(name)) for name in self._handles]
            with _pause_preconditioners(model):
                yield found
        finally:
            for hook in hooks:
                hook.remove()

    def _samples(self, name, layer, arrays):
        """Return ng_samples of (left, right), and the tensors that own its memory."""
        left, right = (x.shape[-1] for x in self.factors[layer])
        groups = self._shape(layer)[0] // left
        if not (isinstance(arrays, (tuple, list)) and len(arrays) == 2 and all(isinstance(x, torch.Tensor) for x in arrays)):
            raise make_error(_abi.NG_ERR_ARG, f"layer '{layer}': {name} is {short_repr(arrays)}, expected (left, right)")
        got = [list(x.shape) for x in arrays]
        if any(x.dim() != 4 for x in arrays) or got[0] != [*got[0][:2], groups, left] or got[1] != [*got[0][:2], groups, right]:
            raise make_error(_abi.NG_ERR_SHAPE, f"layer '{layer}': the arrays of {name} are {got[0]} and {got[1]}, expected "
                             f"[samples, positions, {groups}, {left}] and [samples, positions, {groups}, {right}]")
        owned = [x.detach().to("cpu", torch.float64).contiguous() for x in arrays]
        struct = _core.new_struct(_abi.ng_samples)
        struct.samples, struct.positions, struct.left, struct.right = *got[0][:2], *(x.data_ptr() for x in owned)
        return struct, owned

    def correct(self, samples):
        """Replace the eigenvalues of K by the second moments of the gradients of samples in the eigenbases (EKFAC, George et al. 2018).
        Call it for every batch of a pass over the data; the mean is over the samples of all calls.  Then split is 'joint'.

            for images, labels in loader:
                with curvature.record(model) as samples:
                    loss_function(model(images), labels, reduction="sum").backward()
                curvature.correct(samples)

        Each process corrects its own object, so with torch.distributed every rank needs all samples."""
        if not isinstance(samples, dict) or samples.keys() != self._handles.keys():
            raise make_error(_abi.NG_ERR_ARG, "samples: expected the layers of the curvature, as recorded by record()")
        found = {name: self._samples("samples", name, arrays) for name, arrays in samples.items()}
        for name, (struct, _) in found.items():
            self._check(name, self._library.ng_curvature_correct(self._handles[name], c.byref(struct)))
        self.is_corrected = True

    def scores(self, x, y=None, *, damping, power=-1.0, split="joint"):
        """Return <D_i, M D_j>, summed over layers, for the gradients D_i of samples i of x and D_j of samples j of y:
        [samples of x, samples of y].  Without y: <D_i, M D_i>, [samples of x].

        x and y are recorded by record().  With power = -1 a score is the influence of a training sample of y on the loss of a test
        sample of x (Koh & Liang 2017, arXiv 1703.04730, equation 2, without its sign).  Gradients of y are not computed;
        so y is the larger set."""
        powers, total = self._powers(damping, power, split), None
        if not isinstance(x, dict) or not x or y is not None and (not isinstance(y, dict) or y.keys() != x.keys()):
            raise make_error(_abi.NG_ERR_ARG, "x and y: expected the same layers in both, as recorded by record()")
        for name in x:
            handle = self._handle(name)
            sides = [self._samples(*side) for side in (("x", name, x[name]), *([("y", name, y[name])] if y is not None else []))]
            size = [struct.samples for struct, _ in sides]
            if total is None:
                total = torch.zeros(size, dtype=torch.float64)
            if list(total.shape) != size:
                raise make_error(_abi.NG_ERR_SHAPE, f"layer '{name}': {size} samples, expected {list(total.shape)} as in other layers")
            self._check(name, self._library.ng_curvature_scores(
                handle, c.byref(powers[name]), c.byref(sides[0][0]), c.byref(sides[1][0]) if y is not None else None,
                total.data_ptr()))
        return total
