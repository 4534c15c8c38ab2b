"""What the examples of this folder share: options, methods by their published arguments, the loop.

    --method sgd | adamw | natgrad | spngd | eva-natgrad     natgrad's own
             kaisa | eigen_dp | inverse | eva | mfac | efcp  published programs by their own names (natgrad.compat)
"""
import argparse
import os
import sys

import torch

try:
    import natgrad
    import natgrad.compat as compat
except ImportError as missing:
    sys.exit(f"{missing}: pip install . in the folder of natgrad")


def options(doc, **standard):
    """The parser; `standard` are the published numbers of this task."""
    values = dict(method="natgrad", epochs=1, batch_size=32, lr=0.1, momentum=0.9, weight_decay=5e-4, damping=0.003,
                  kl_clip=0.001, stat_decay=0.95, factor_update_steps=1, inv_update_steps=10, ngrads=32, seed=1)
    values.update(standard)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in values.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--device", default="cpu", help="of the model; natgrad says which it supports")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many; 0: after the epochs")
    parser.add_argument("--data", help="a folder; none: generated data")
    parser.add_argument("--log", help="a folder for log.jsonl")
    return parser


class Method:
    """A preconditioner, if there is one, and the optimizer behind it."""

    def __init__(self, args, model):
        name, self.preconditioner = args.method, None
        periods = dict(factor_update_steps=args.factor_update_steps, inv_update_steps=args.inv_update_steps)
        number = dict(lr=args.lr, damping=args.damping, kl_clip=args.kl_clip)
        if name == "mfac":
            self.optimizer = compat.MFAC(model.parameters(), lr=args.lr, momentum=args.momentum, damp=args.damping,
                                         weight_decay=args.weight_decay, ngrads=args.ngrads)
        elif name == "efcp":
            self.optimizer = compat.SparseGradientMFAC(model.parameters(), ngrads=args.ngrads, k_init=0.01, lr=args.lr,
                                                       damp=args.damping, wd_type="wd", weight_decay=0.0,
                                                       momentum=args.momentum)
        elif name == "adamw":
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
        else:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum,
                                             weight_decay=args.weight_decay)
        if name == "kaisa":
            self.preconditioner = compat.KFACPreconditioner(model, **periods, **number, factor_decay=args.stat_decay)
        elif name in ("eigen_dp", "inverse_dp", "eigen", "inverse", "eva"):
            self.preconditioner = compat.get_kfac_module(name)(
                model, **number, factor_decay=args.stat_decay, fac_update_freq=args.factor_update_steps,
                kfac_update_freq=args.inv_update_steps)
        elif name == "spngd":
            self.preconditioner = natgrad.SPNGD(model, lr=args.lr, damping=args.damping)
        elif name == "natgrad":
            self.preconditioner = natgrad.KFAC(model, **number, stat_decay=args.stat_decay,
                                               stat_period=args.factor_update_steps, solve_period=args.inv_update_steps)
        elif name == "eva-natgrad":
            self.preconditioner = natgrad.Eva(model, **number, stat_decay=args.stat_decay)
        elif name not in ("sgd", "adamw", "mfac", "efcp"):
            sys.exit(f"--method {name}: expected one of those in common.py")
        self.teller = self.preconditioner or (self.optimizer if name in ("mfac", "efcp") else None)

    def step(self):
        if self.preconditioner is not None:
            self.preconditioner.step()
        self.optimizer.step()


def train(args, model, batches, loss_of, accuracy_of=None, test=None):
    """Trains; batches() yields the batches of an epoch, loss_of(model, batch) gives (loss, output); prints a line an
    epoch.  Returns the losses of all steps."""
    model.to(args.device)
    method, losses = Method(args, model), []
    log = None
    if args.log and method.teller is not None:
        log = natgrad.Log(os.path.join(args.log, "log.jsonl"), method.teller)
    for epoch in range(args.epochs):
        model.train()
        begin, right, count = len(losses), 0.0, 0
        for batch in batches():
            batch = [part.to(args.device) for part in batch]
            method.optimizer.zero_grad()
            loss, output = loss_of(model, batch)
            loss.backward()
            method.step()
            losses.append(loss.item())
            if accuracy_of is not None:
                right, count = right + accuracy_of(output, batch), count + 1
            if log is not None:
                log.step(epoch, args.lr, losses[-1])
            if args.steps and len(losses) >= args.steps:
                break
        mean = sum(losses[begin:]) / max(len(losses) - begin, 1)
        accuracy = right / count if count else None
        tested = tested_by(model, test, loss_of, accuracy_of, args.device) if test else None
        print(f"epoch {epoch + 1}: loss {mean:.4f}" + ("" if accuracy is None else f", accuracy {100 * accuracy:.1f} %")
              + ("" if tested is None else f", test {100 * tested:.1f} %"), flush=True)
        if log is not None:
            log.epoch(epoch, args.lr, mean, accuracy, test_accuracy=tested)
        if args.steps and len(losses) >= args.steps:
            break
    if log is not None:
        log.end()
    return losses


def tested_by(model, test, loss_of, accuracy_of, device):
    model.eval()
    with torch.no_grad():
        found = [accuracy_of(loss_of(model, batch)[1], batch)
                 for batch in ([part.to(device) for part in parts] for parts in test())]
    return sum(found) / len(found)


def shuffled(size, *tensors):
    """batches() over tensors, in another order each epoch; incomplete ones are left out."""
    def batches():
        order = torch.randperm(len(tensors[0]))
        for i in range(0, len(order) - size + 1, size):
            yield [tensor[order[i:i + size]] for tensor in tensors]
    return batches


def classify(model, batch):
    output = model(batch[0])
    return torch.nn.functional.cross_entropy(output, batch[1]), output


def share_right(output, batch):
    return (output.argmax(1) == batch[1]).float().mean().item()
