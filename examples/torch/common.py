"""Shared by the examples of this folder: command line, methods, training loop.

    --method sgd | adamw | natgrad | spngd | eva-natgrad     first-order methods; methods of natgrad under its own names
             kaisa | eigen_dp | inverse_dp | eigen | inverse | eva | mfac | efcp
                                                             published programs (natgrad.compat)
             none                                            the optimizer of --optimizer without a preconditioner

On several ranks: torchrun --standalone --nproc-per-node 4 resnet.py ...  Each rank takes its share of the data, --batch-size
samples in each step; rank 0 prints.  The learning rate rises in --warmup-epochs to its product with the number of ranks, as
published.
"""
import argparse
import contextlib
import gc
import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

try:
    import natgrad
    import natgrad.compat as compat
except ImportError as missing:
    sys.exit(f"{missing}: pip install . in the folder of natgrad")


def parse_number_or_none(text):
    return None if text == "none" else float(text)


def make_parser(doc, **standard):
    """Return the parser; `standard` has the published values of this task, which become defaults."""
    values = dict(method="natgrad", optimizer="sgd", epochs=1, batch_size=32, accumulation_steps=1, lr=0.1, lr_decay_alpha=0.1,
                  momentum=0.9, weight_decay=5e-4, label_smoothing=0.0, damping=0.003, damping_alpha=0.5, kl_clip=0.001,
                  stat_decay=0.95, factor_update_steps=1, inv_update_steps=10, update_steps_alpha=10.0, ngrads=32, k_init=0.01,
                  clip_norm=0.0, patience=0, warmup_epochs=0.0, grad_worker_fraction=1.0, seed=1)
    lists = dict(lr_decay=(), damping_decay=(), update_steps_decay=(), skip_layers=())
    lists.update((name, standard.pop(name)) for name in list(standard) if name in lists)
    values.update(standard)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    texts = dict(batch_size="samples of a rank in a step", grad_worker_fraction="share of the ranks with the inverses of a layer",
                 clip_norm="largest norm of the preconditioned gradient; 0: no limit",
                 patience="multiply lr by --lr-decay-alpha after this number of epochs without a lower loss; 0: never",
                 warmup_epochs="epochs in which the learning rate rises to ranks * lr; none: the learning rate is lr")
    for name, value in values.items():
        kind = parse_number_or_none if name in ("kl_clip", "warmup_epochs") else type(value)
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=value, help=texts.get(name))
    for name, value in lists.items():
        parser.add_argument("--" + name.replace("_", "-"), nargs="*", type=str if name == "skip_layers" else int,
                            default=list(value), help="expressions" if name == "skip_layers" else "epochs")
    parser.add_argument("--device", default="cpu", help="device of the model (natgrad supports the CPU)")
    parser.add_argument("--steps", type=int, default=0, help="stop after this number of steps; 0: after --epochs")
    parser.add_argument("--data", help="folder of the data; default: generated data")
    parser.add_argument("--log-folder", "--log", dest="log", help="folder for log.jsonl (torchrun rejects --log)")
    return parser


def parse_arguments(parser, published=()):
    """Return the arguments, with rank and ranks.  `published` maps a method to the defaults of its own script for this task, where
    they differ."""
    method = parser.parse_known_args()[0].method
    parser.set_defaults(**dict(published).get(method, {}))
    args = parser.parse_args()
    for given, flag, methods in ((args.damping_decay, "--damping-decay", KAISA + LZHANGBV),
                                 (args.update_steps_decay, "--update-steps-decay", KAISA + LZHANGBV),
                                 (args.skip_layers, "--skip-layers", KAISA + OWN),
                                 (args.clip_norm, "--clip-norm", ("none", "sgd", "adamw") + KAISA + LZHANGBV + OWN),
                                 (args.grad_worker_fraction != 1, "--grad-worker-fraction", KAISA + ("natgrad",))):
        if given and args.method not in methods:
            sys.exit(f"{flag} needs --method {', '.join(methods)}")
    if args.patience and (args.lr_decay or args.warmup_epochs):
        sys.exit("--patience: expected 0 with --lr-decay or --warmup-epochs")
    args.is_started_by_torchrun = int(os.environ.get("WORLD_SIZE", 1)) > 1 and not distributed.is_initialized()
    if args.is_started_by_torchrun:
        distributed.init_process_group("gloo")
    args.rank, args.ranks = (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
    return args


KAISA, LZHANGBV, OWN = ("kaisa",), ("eigen_dp", "inverse_dp", "eigen", "inverse", "eva"), ("natgrad", "spngd", "eva-natgrad")
WINDOWS = ("mfac", "efcp")


def make_lr_factor(args):
    """Return the factor of the learning rate in an epoch e.  On W ranks the warm-up has (e (W - 1) / epochs + 1) / W."""
    def factor(epoch):
        if args.ranks > 1 and args.warmup_epochs and epoch < args.warmup_epochs:
            return (epoch * (args.ranks - 1) / args.warmup_epochs + 1) / args.ranks
        return args.lr_decay_alpha**sum(epoch >= decay for decay in args.lr_decay)
    return factor


class Method:
    """A preconditioner (or None), its optimizer, and their schedules.  `vocabulary` is the width of the output layer that
    lzhangbv's scripts do not precondition.  `step_factor` is the factor of the learning rate as a function of the step; without it
    the learning rate changes once an epoch."""

    def __init__(self, args, model, vocabulary=None, step_factor=None):
        name, self.preconditioner, self.schedulers, self.step_schedulers = args.method, None, [], []
        self.clip_norm = args.clip_norm
        periods = dict(factor_update_steps=args.factor_update_steps, inv_update_steps=args.inv_update_steps)
        rate = args.lr if args.warmup_epochs is None else args.ranks * args.lr
        number = dict(lr=rate, damping=args.damping, kl_clip=args.kl_clip)
        kind = "adamw" if name == "adamw" else "sgd" if name == "sgd" else args.optimizer
        if name == "mfac":
            self.optimizer = compat.MFAC(model.parameters(), lr=rate, momentum=args.momentum, damp=args.damping,
                                         weight_decay=args.weight_decay, ngrads=args.ngrads)
        elif name == "efcp":
            self.optimizer = compat.SparseGradientMFAC(model.parameters(), ngrads=args.ngrads, k_init=args.k_init, lr=rate,
                                                       damp=args.damping, wd_type="wd", weight_decay=args.weight_decay,
                                                       momentum=args.momentum)
        elif kind == "adamw":
            self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=args.weight_decay)
        elif kind == "adadelta":
            self.optimizer = torch.optim.Adadelta(model.parameters(), lr=rate, weight_decay=args.weight_decay)
        elif kind == "sgd":
            self.optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=args.momentum,
                                             weight_decay=args.weight_decay)
        else:
            sys.exit(f"--optimizer {kind}: expected sgd, adamw or adadelta")
        own = dict(damping=args.damping, skip_layers=args.skip_layers, accumulation_steps=args.accumulation_steps,
                   lr=lambda step: self.optimizer.param_groups[0]["lr"])
        clip = dict(clip="none") if args.kl_clip is None else dict(kl_clip=args.kl_clip)
        if name in KAISA:
            self.preconditioner = compat.KFACPreconditioner(
                model, **periods, damping=args.damping, kl_clip=args.kl_clip, factor_decay=args.stat_decay, lr=own["lr"],
                accumulation_steps=args.accumulation_steps, skip_layers=args.skip_layers,
                grad_worker_fraction=args.grad_worker_fraction)
            self.schedulers.append(self.make_kaisa_scheduler(args))
        elif name in LZHANGBV:
            self.preconditioner = compat.get_kfac_module(name)(
                model, **number, factor_decay=args.stat_decay, fac_update_freq=args.factor_update_steps,
                kfac_update_freq=args.inv_update_steps, exclude_vocabulary_size=vocabulary)
            self.schedulers.append(compat.KFACParamScheduler(self.preconditioner, args.damping_alpha, args.damping_decay,
                                                             args.update_steps_alpha, args.update_steps_decay))
        elif name == "spngd":
            self.preconditioner = natgrad.SPNGD(model, **own)
        elif name == "natgrad":
            self.preconditioner = natgrad.KFAC(model, **own, **clip, stat_decay=args.stat_decay,
                                               stat_period=args.factor_update_steps, solve_period=args.inv_update_steps,
                                               grad_worker_fraction=args.grad_worker_fraction)
        elif name == "eva-natgrad":
            self.preconditioner = natgrad.Eva(model, **own, **clip, stat_decay=args.stat_decay)
        elif name not in ("none", "sgd", "adamw") + WINDOWS:
            sys.exit(f"--method {name}: expected a method of the list in --help or common.py")
        self.reporter = self.preconditioner or (self.optimizer if name in WINDOWS else None)
        for one in [self.optimizer] + ([self.preconditioner] if name in LZHANGBV else []):
            if step_factor is not None:
                self.step_schedulers.append(torch.optim.lr_scheduler.LambdaLR(one, step_factor))
            elif args.patience:
                self.schedulers.append(torch.optim.lr_scheduler.ReduceLROnPlateau(one, factor=args.lr_decay_alpha,
                                                                                  patience=args.patience, min_lr=1e-4))
            else:
                self.schedulers.append(torch.optim.lr_scheduler.LambdaLR(one, make_lr_factor(args)))

    def make_kaisa_scheduler(self, args):
        """Return KAISA's scheduler.  It multiplies the current value, so the factor is alpha in the listed epochs only, else 1."""
        self.epochs = 0

        def factor_in_epochs(epochs, alpha):
            return lambda step: alpha if self.epochs in epochs else 1
        steps = factor_in_epochs(args.update_steps_decay, args.update_steps_alpha)
        return compat.LambdaParamScheduler(self.preconditioner,
                                           damping_lambda=factor_in_epochs(args.damping_decay, args.damping_alpha),
                                           factor_update_steps_lambda=steps, inv_update_steps_lambda=steps)

    def end_epoch(self, loss=None):
        """Step the schedules; `loss` is the test loss if the script has one, else the loss of the epoch."""
        self.epochs = getattr(self, "epochs", 0) + 1
        for scheduler in self.schedulers:
            scheduler.step(*([loss] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))

    def step(self):
        if self.preconditioner is not None:
            self.preconditioner.step()
        if self.clip_norm:
            torch.nn.utils.clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], self.clip_norm)
        self.optimizer.step()
        for scheduler in self.step_schedulers:
            scheduler.step()

    def close(self):
        if self.reporter is not None:
            getattr(self.reporter, "preconditioner", self.reporter).close()


def train(args, model, batches, loss_of, accuracy_of=None, evaluate=None, vocabulary=None, step_factor=None):
    """Train, print a line for each epoch, and return the losses of all steps of this rank.  batches() yields this rank's batches of
    an epoch; loss_of(model, batch) returns (loss, output).  evaluate(model) returns numbers by name, equal on all ranks, after each
    epoch: "loss" and "perplexity", or shares such as "accuracy"."""
    model.to(args.device)
    method = Method(args, model, vocabulary, step_factor)
    losses = run_epochs(args, model, method, batches, loss_of, accuracy_of, evaluate)
    method.close()
    if args.is_started_by_torchrun:  # end the threads of the group before Python ends: PyTorch 1.13 may abort otherwise
        gc.collect()
        distributed.barrier()
        distributed.destroy_process_group()
    return losses


def run_epochs(args, model, method, batches, loss_of, accuracy_of, evaluate):
    losses, parts = [], args.accumulation_steps
    wrapped = DistributedDataParallel(model) if args.ranks > 1 else model
    if args.ranks > 1:
        torch.manual_seed(args.seed + args.rank)  # a different dropout mask on each rank
    log = None
    if args.log and method.reporter is not None and args.rank == 0:
        log = natgrad.Log(os.path.join(args.log, "log.jsonl"), method.reporter)
    for epoch in range(args.epochs):
        model.train()
        begin, right, count = len(losses), 0.0, 0
        for batch in batches():
            method.optimizer.zero_grad()
            whole = 0.0
            for i, part in enumerate(zip(*(tensor.to(args.device).chunk(parts) for tensor in batch))):
                with contextlib.nullcontext() if args.ranks == 1 or i == parts - 1 else wrapped.no_sync():
                    loss, output = loss_of(wrapped, part)
                    (loss / parts).backward()
                whole += loss.item() / parts
                if accuracy_of is not None:
                    right, count = right + accuracy_of(output, part), count + 1
            lr = method.optimizer.param_groups[0]["lr"]
            method.step()
            losses.append(whole)
            if log is not None:
                log.step(epoch, lr, losses[-1])
            if args.steps and len(losses) >= args.steps:
                break
        mean = mean_over_ranks(args, sum(losses[begin:]), len(losses) - begin)
        accuracy = mean_over_ranks(args, right, count) if count else None
        model.eval()
        with torch.no_grad():
            tested = evaluate(model) if evaluate else {}
        if args.rank == 0:
            print(f"epoch {epoch + 1}: loss {mean:.4f}" + ("" if accuracy is None else f", accuracy {100 * accuracy:.1f} %")
                  + "".join(f", test {name} " + (f"{value:.4f}" if name in ("loss", "perplexity") else f"{100 * value:.1f} %")
                            for name, value in tested.items()), flush=True)
        if log is not None:
            log.epoch(epoch, lr, mean, accuracy, test_loss=tested.get("loss"), test_accuracy=tested.get("accuracy"))
        if args.steps and len(losses) >= args.steps:
            break
        method.end_epoch(tested.get("loss", mean))
    if log is not None:
        log.end()
    return losses


def sum_over_ranks(args, values):
    sums = torch.tensor(values, dtype=torch.float64)
    if args.ranks > 1:
        distributed.all_reduce(sums)
    return sums.tolist()


def mean_over_ranks(args, total, count):
    """Return the mean of `count` values of each rank, which sum to `total` there."""
    total, count = sum_over_ranks(args, [total, count])
    return total / max(count, 1)


def share_of_rank(args, tensors, size=256):
    """Yield batches of at most `size` samples; together the ranks yield each sample once, in order on one rank."""
    for i in range(args.rank * size, len(tensors[0]), args.ranks * size):
        yield [tensor[i:i + size].to(args.device) for tensor in tensors]


def make_accuracy_test(args, *tensors):
    """Return the evaluate() of train() for a classifier of tensors[0] with the labels tensors[1]."""
    def evaluate(model):
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in share_of_rank(args, tensors))
        return dict(accuracy=sum_over_ranks(args, [right])[0] / len(tensors[1]))
    return evaluate


def shuffled_batches(args, *tensors):
    """Return a function that yields this rank's batches of an epoch, in a new random order, without an incomplete last batch.  The
    order is the same on all ranks, and each step takes a batch of every rank from it."""
    size, generator = args.batch_size * args.accumulation_steps, torch.Generator().manual_seed(args.seed)

    def batches():
        order = torch.randperm(len(tensors[0]), generator=generator)
        for i in range(0, len(order) - args.ranks * size + 1, args.ranks * size):
            mine = order[i + args.rank * size:i + (args.rank + 1) * size]
            yield [tensor[mine] for tensor in tensors]
    return batches


def make_classification_loss(args):
    def loss_of(model, batch):
        output = model(batch[0])
        return torch.nn.functional.cross_entropy(output, batch[1], label_smoothing=args.label_smoothing), output
    return loss_of


def accuracy_of_batch(output, batch):
    return (output.argmax(1) == batch[1]).float().mean().item()
