"""The optimizer of tyohei/chainerkfac (SP-NGD), for PyTorch models."""
import torch
from torch import nn

from .. import _abi, _core, _layers
from .._core import make_error
from .._wrapped import PreconditioningOptimizer
from ..preconditioner import Preconditioner


class _SPNGDPreconditioner(Preconditioner):
    def __init__(self, model, chosen, loss_scale, process_group, layer_options):
        self._functions = {}
        self._setup(model, chosen, grad_scaler=None if loss_scale is None else lambda: loss_scale,
                    process_group=process_group, layer_options=layer_options, exclusion_reason=_exclusion_reason)


def _exclusion_reason(_name, module):
    if not isinstance(module, (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)):
        return f"chainerkfac has no {type(module).__name__}"
    return ""


class SPNGD(PreconditioningOptimizer):
    """SP-NGD of chainerkfac, with the arguments of its optimizer.

    The update is v <- m v - lr PD, w <- w + v, with momentum m and weights w.  adjust_momentum multiplies m by
    min(1, lr / lr of the step before).  With acc_iters = n, every n-th step() updates the weights with the mean of n
    gradients.  weight_decay is added to the gradient, as by Chainer's hook.  loss_scale is the factor of the loss.
    diagonalize: names of layers that get a diagonal output factor, or of batch norms that get a diagonal block.
    """

    def __init__(self, model, lr=0.001, momentum=0.9, cov_ema_decay=0.99, damping=0.03, stab_coeff=16.0,
                 pi_type="tracenorm", use_cholesky=True, loss_scale=None, adjust_momentum=False, acc_iters=1,
                 weight_decay=0.0, communicate_after_forward=False, only_pic_update_weight=True, *, diagonalize=(),
                 process_group=None):
        chosen = _core.Options()
        chosen.set_system("chainerkfac", "spngd")
        for name, value in dict(lr=lr, momentum=momentum, cov_ema_decay=cov_ema_decay, damping=damping,
                                stab_coeff=stab_coeff, pi_type=pi_type, use_cholesky=use_cholesky, loss_scale=loss_scale,
                                adjust_momentum=adjust_momentum, acc_iters=acc_iters, weight_decay=weight_decay,
                                communicate_after_forward=communicate_after_forward,
                                only_pic_update_weight=only_pic_update_weight).items():
            chosen.set_published(name, value)
        modules = dict(_layers.unwrap(model).named_modules())
        if not isinstance(diagonalize, (list, tuple, set)):
            raise make_error(_abi.NG_ERR_ARG, f"diagonalize is {_core.short_repr(diagonalize)}, expected a list of layer names")
        for name in diagonalize:
            if name not in modules:
                raise make_error(_abi.NG_ERR_ARG, f"diagonalize: no layer '{name}'")
        norms = (nn.BatchNorm1d, nn.BatchNorm2d)
        own = {name: "norm_block=diagonal" if isinstance(modules[name], norms) else "output_factor=diagonal"
               for name in diagonalize}
        super().__init__(list(_layers.unwrap(model).parameters()), dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.loss_scale, self.adjust_momentum, self.acc_iters = loss_scale, bool(adjust_momentum), acc_iters
        self._previous_lr, self._sums, self._batches_summed = None, {}, 0
        self.preconditioner = _SPNGDPreconditioner(model, chosen, loss_scale, process_group, own)

    def _add_micro_batch(self):
        """Add a micro-batch to the sums.  Return True after the last one: then p.grad is the mean over the
        micro-batches, divided by the loss scale, plus weight decay."""
        parameters = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        if self.acc_iters > 1:
            for p in parameters:
                part = p.grad / self.acc_iters
                self._sums[p] = part if self._batches_summed == 0 else self._sums[p].add_(part)
            self._batches_summed = (self._batches_summed + 1) % self.acc_iters
            self.preconditioner._observer.sums_outside = self._batches_summed > 0
            if self._batches_summed:
                return False
            for p in parameters:
                p.grad.copy_(self._sums[p])
            self._sums = {}
        for p in parameters:
            if self.loss_scale is not None:
                p.grad /= self.loss_scale
            if self.param_groups[0]["weight_decay"]:
                p.grad.add_(p, alpha=self.param_groups[0]["weight_decay"])
        return True

    @torch.no_grad()
    def step(self, closure=None):
        """Add a micro-batch; after acc_iters micro-batches take a step.  `note` is its status, or None without a
        step."""
        loss, self.note = self._evaluate_closure(closure), None
        if not self._add_micro_batch():
            return loss
        group = self.param_groups[0]
        self.note = self.preconditioner.step(group["lr"])
        if self.note == _abi.NG_SKIPPED:
            return loss
        momentum, before = group["momentum"], self._previous_lr
        if self.adjust_momentum and before is not None and group["lr"] < before:
            momentum *= group["lr"] / before
        self._previous_lr = group["lr"]
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            p.add_(state["momentum_buffer"].mul_(momentum).add_(p.grad, alpha=-group["lr"]))
        return loss

    def _reset_sums(self):
        self._sums, self._batches_summed = {}, 0
        self.preconditioner._observer.sums_outside = False

    def reset_batch(self):
        """Discard the observations and the sums of micro-batches since the last step."""
        super().reset_batch()
        self._reset_sums()

    def state_dict(self):
        return {**super().state_dict(), "lr_before": self._previous_lr}

    def load_state_dict(self, state_dict):
        own = isinstance(state_dict, dict)  # otherwise all ranks will reject the state
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "lr_before"} if own
                                else state_dict)
        self._previous_lr = state_dict.get("lr_before")
        self._reset_sums()
