#!/usr/bin/env python3
"""natgrad under PyTorch by ctypes alone: no package, nothing to compile.

    40_torch.py [path of libnatgrad.so]

Two convolutions and a linear layer learn which corner of an image has a spot.  The example shows channels-last,
bf16 autocast, gradients freed after each step (set_to_none=True, bound for one step), uneven batches, weight decay
for weights only, and an unused layer without a gradient.  natgrad preconditions and updates the weights in place,
without torch.optim.  A test compares the structs with natgrad.h.
"""
import ctypes as c
import sys

import torch

NG_VERSION = 200  # the version of natgrad.h whose structs follow
NG_F32, NG_F64, NG_F16, NG_BF16 = 1, 2, 3, 4
NG_HOST, NG_COPY = 1, 1
NG_WEIGHT, NG_BIAS = 0, 1
NG_HOLD, NG_ONE_STEP = 1, 2

# ---- natgrad.h -------------------------------------------------------------------------------------


class ng_array(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int), ("mem", c.c_int), ("ndim", c.c_int32),
                ("shape", c.c_void_p), ("stride", c.c_void_p), ("room", c.c_int64 * 8)]


class ng_binding(c.Structure):
    _fields_ = [("index", c.c_int32), ("param", c.c_int), ("grad", c.POINTER(ng_array)),
                ("weight", c.POINTER(ng_array)), ("hold", c.c_int)]


class ng_sgd(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("lr", c.c_double), ("momentum", c.c_double),
                ("dampening", c.c_double), ("weight_decay", c.c_double), ("nesterov", c.c_int32),
                ("decoupled", c.c_int32)]


class ng_report(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("steps", c.c_int64), ("skipped", c.c_int64),
                ("clip", c.c_double), ("inner", c.c_double), ("more_damping", c.c_int64),
                ("in_double", c.c_int64), ("kept_last", c.c_int64), ("plain", c.c_int64),
                ("stations", c.c_int32), ("kept", c.c_int64), ("unobserved", c.c_int64), ("statistics", c.c_int32),
                ("d2", c.c_double), ("pd2", c.c_double), ("scaled", c.c_int64),
                ("scaling_min", c.c_double), ("scaling_25", c.c_double), ("scaling_50", c.c_double),
                ("scaling_75", c.c_double), ("scaling_max", c.c_double), ("scaling_mean", c.c_double),
                ("sent_ms", c.c_double), ("hidden_ms", c.c_double), ("overflowed", c.c_int64),
                ("factors", c.c_int64), ("sums", c.c_int64), ("results", c.c_int64), ("direction", c.c_int64),
                ("moments", c.c_int64), ("scratch", c.c_int64), ("objects", c.c_int64),
                ("waits", c.c_int64)]


class ng_layer_report(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("observe_ms", c.c_double),
                ("solve_ms", c.c_double), ("measure_ms", c.c_double), ("pi", c.c_double),
                ("damping_a", c.c_double), ("damping_g", c.c_double), ("rung", c.c_int32),
                ("observations", c.c_int64), ("kept", c.c_int64), ("frozen", c.c_int32),
                ("unobserved", c.c_int64), ("damping_f", c.c_double), ("block", c.c_char_p),
                ("method", c.c_char_p)]


P, S, I, L, D = c.c_void_p, c.c_char_p, c.c_int32, c.c_int64, c.c_double
CALLS = {  # functions that return a status
    "ng_context_create": [I, P, P, c.c_size_t, P],
    "ng_precond_create": [P, S, P],
    "ng_add_linear": [P, S, L, L, I, P],
    "ng_add_conv2d": [P, S, L, L, P, P, P, P, L, P, I, P],
    "ng_set_group": [P, I, c.c_int, I],
    "ng_bind": [P, P, I],
    "ng_ready": [P],
    "ng_begin_samples": [P, L, D],
    "ng_observe_input": [P, I, P, c.c_int],
    "ng_observe_output_grad": [P, I, P, c.c_int],
    "ng_step_sgd": [P, P, I],
    "ng_report_read": [P, P],
    "ng_report_layer": [P, I, P],
}


def describe_tensor(t):
    """Return an ng_array that points at the tensor's memory, in any strides; valid as long as the tensor."""
    kinds = {"torch.float32": NG_F32, "torch.float64": NG_F64, "torch.float16": NG_F16, "torch.bfloat16": NG_BF16}
    a = ng_array(t.data_ptr(), kinds[str(t.dtype)], NG_HOST, t.dim())
    a.room[0:t.dim()] = t.shape
    a.room[4:4 + t.dim()] = t.stride()
    return a


class Natgrad:
    """A context and a preconditioner.  Method NAME calls ng_NAME with the preconditioner as first argument; an error
    status raises RuntimeError, any other status is returned."""

    def __init__(self, path, options):
        self.lib, self.ctx, self.p = c.CDLL(path), P(), P()
        self.lib.ng_last_error.restype, self.lib.ng_last_error.argtypes = S, [P]
        for name, arguments in CALLS.items():
            getattr(self.lib, name).argtypes = arguments
        why = c.create_string_buffer(256)
        if self.lib.ng_context_create(NG_VERSION, None, why, len(why), c.byref(self.ctx)) < 0:
            raise RuntimeError(why.value.decode())
        self.raise_on_error(self.lib.ng_precond_create(self.ctx, options.encode(), c.byref(self.p)))

    def __getattr__(self, name):
        """Return a function that calls ng_NAME with the preconditioner as first argument."""
        return lambda *arguments: self.raise_on_error(getattr(self.lib, "ng_" + name)(self.p, *arguments))

    def raise_on_error(self, status):
        if status < 0:
            raise RuntimeError(self.lib.ng_last_error(self.ctx).decode())
        return status

    def new_struct(self, struct):
        value, init = struct(c.sizeof(struct)), getattr(self.lib, struct.__name__ + "_init", None)
        if init is not None:  # structs with defaults other than 0 have ng_NAME_init
            init.argtypes, init.restype = [P, c.c_size_t], None
            init(c.byref(value), c.sizeof(value))
        return value

    def close(self):
        self.lib.ng_precond_destroy(c.byref(self.p))
        self.lib.ng_context_destroy(c.byref(self.ctx))

    # ---- modules of PyTorch: layer number i is layers[i]

    def register_layers(self, model):
        self.layers = []
        for name, m in model.named_modules():
            index, bias = len(self.layers), getattr(m, "bias", None) is not None
            if isinstance(m, torch.nn.Conv2d):
                pair = c.c_int64 * 2
                self.add_conv2d(name.encode(), m.in_channels, m.out_channels, pair(*m.kernel_size), pair(*m.stride),
                                pair(*m.padding), pair(*m.dilation), m.groups, None, bias, None)
            elif isinstance(m, torch.nn.Linear):
                self.add_linear(name.encode(), m.in_features, m.out_features, bias, None)
            else:
                continue
            self.layers.append(m)
            if bias:
                self.set_group(index, NG_BIAS, 1)
            m.register_forward_hook(lambda m, given, out, index=index: self.observe_call(index, given[0], out))
        self.bind_all(lambda w: (None, describe_tensor(w.detach())), NG_HOLD)
        self.ready()

    def observe_call(self, index, given, out):
        def observe_gradient(g):
            self.observe_output_grad(index, c.byref(describe_tensor(g)), NG_COPY)

        self.observe_input(index, c.byref(describe_tensor(given.detach())), NG_COPY)
        out.register_hook(observe_gradient)

    def bind_all(self, of, hold):
        """of(parameter) returns the arrays of gradient and weight; None leaves that binding unchanged."""
        rows = []
        for index, m in enumerate(self.layers):
            for which, w in ((NG_WEIGHT, m.weight), (NG_BIAS, m.bias)):
                if w is not None:
                    rows.append((index, which, *(a and c.pointer(a) for a in of(w)), hold))
        self.bind((ng_binding * len(rows))(*rows), len(rows))

    def step(self, *groups):
        """Each group has values for fields of ng_sgd.  zero_grad frees the gradients, so they are bound for this step only."""
        self.bind_all(lambda w: (ng_array() if w.grad is None else describe_tensor(w.grad), None), NG_ONE_STEP)
        how = (ng_sgd * len(groups))()
        for at, numbers in enumerate(groups):
            how[at] = self.new_struct(ng_sgd)
            for name, value in numbers.items():
                setattr(how[at], name, value)
        return self.step_sgd(how, len(how))


# ---- the training loop -----------------------------------------------------------------------------

STEPS, LR, DECAY = 60, 0.03, 0.1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.spare = torch.nn.Linear(8, 8)  # never called, so it has no gradient
        self.fc = torch.nn.Linear(128, 4)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = x * torch.tensor([1, 1, 1, 1, 1, 1, 1, 0], dtype=x.dtype).view(1, 8, 1, 1)  # channel 7 is 0; main checks its weights
        return self.fc(torch.relu(self.conv2(x)).flatten(1))


def make_batch(samples):
    want = torch.randint(4, (samples,))
    x = 0.3 * torch.randn(samples, 1, 8, 8)
    for n in range(samples):
        h, w = 4 * (int(want[n]) // 2) + torch.randint(3, (1,)), 4 * (int(want[n]) % 2) + torch.randint(3, (1,))
        x[n, 0, h:h + 2, w:w + 2] += 1.0
    return x.to(memory_format=torch.channels_last), want


def main():
    torch.manual_seed(1)
    model = Net().to(memory_format=torch.channels_last)
    start = {name: w.detach().clone() for name, w in model.named_parameters()}
    ng = Natgrad(sys.argv[1] if len(sys.argv) > 1 else "libnatgrad.so.0", "update=sgd damping=0.03 missing=keep")
    ng.register_layers(model)
    losses = []
    for step in range(STEPS):
        x, want = make_batch(32 if step % 4 else 20)
        ng.begin_samples(len(x), 1.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.float(), want)
        loss.backward()
        ng.step({"lr": LR, "momentum": 0.9, "weight_decay": DECAY, "decoupled": 1}, {"lr": LR, "momentum": 0.9})
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 10 == 9:
            print(f"step {step + 1:2}: loss {sum(losses[-10:]) / 10:.4f}")

    report, spare = ng.new_struct(ng_report), ng.new_struct(ng_layer_report)
    ng.report_read(c.byref(report))
    ng.report_layer([m is model.spare for m in ng.layers].index(True), c.byref(spare))
    print(f"{report.steps} steps; '{spare.name.decode()}' was kept in {spare.kept} of them")
    ng.close()
    assert sum(losses[-10:]) < 0.2 * 10 * losses[0], "the loss did not fall"
    assert report.steps == STEPS and report.skipped == 0, "a step was skipped"
    assert spare.kept == STEPS and torch.equal(model.spare.weight, start["spare.weight"]), "a weight without a gradient moved"
    # Channel 7 between the convolutions is 0, so its weights have the gradient 0 and only weight decay changes them.
    left = (1 - LR * DECAY) ** STEPS
    for name, at in (("conv1.weight", (7,)), ("conv2.weight", (slice(None), 7)), ("conv1.bias", (7,))):
        expected = start[name][at] * (1 if name.endswith("bias") else left)
        moved = (dict(model.named_parameters())[name][at] - expected).abs().max().item()
        assert moved < 1e-6, f"{name}: differs by {moved} from the weights after decay alone"


if __name__ == "__main__":
    main()
