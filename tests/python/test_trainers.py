"""Optimizers in trainers: wrappers of Lightning and Accelerate (stand-ins, and the real ones if installed), schedulers on
published classes, states that load with weights_only=True."""
import copy
import importlib.util
import inspect
import io
import logging
import os
import tempfile
import unittest

import torch
from torch import nn

import natgrad
import oracle
import ranks
from front import DAMPING, NEW, Case, gradients_of, loss_of, make_preconditioner, random_batch, small_conv_net
from natgrad import compat
from natgrad._methods import CLASSES


def skip_unless_arguments(*packages):
    """The arguments of skipUnless: whether the packages and PyTorch 2 are there, and the reason if not."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return not missing and NEW, f"{', '.join(missing)} not installed" if missing else "they need PyTorch 2"


def save_and_load(state):
    """Save and load by a file, as trainers do; PyTorch 1.13 refuses a float with weights_only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True) if NEW else torch.load(file)


class LikeLightning:
    """Like LightningOptimizer: a class that derives from the optimizer's class, and reads attributes that may be missing."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Lightning" + type(optimizer).__name__, (self.__class__, type(optimizer)), {})

    def step(self, closure=None):
        return self._optimizer.step(closure=closure)

    def __getattr__(self, item):
        return getattr(self._optimizer, item)


class LikeAccelerate(torch.optim.Optimizer):
    """Like AcceleratedOptimizer: saves and loads the state at once, inspects an argument, replaces step()."""

    def __init__(self, optimizer):
        self.optimizer, self.called = optimizer, 0
        optimizer.load_state_dict(save_and_load(optimizer.state_dict()))
        original = optimizer.step

        def count_and_step(*arguments, **more):
            self.called += 1
            return original(*arguments, **more)
        optimizer.step = count_and_step

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=None):
        if set_to_none is None:
            self.optimizer.zero_grad()
        elif "set_to_none" in inspect.signature(self.optimizer.zero_grad).parameters:
            self.optimizer.zero_grad(set_to_none=set_to_none)
        else:
            raise ValueError("`set_to_none` for Optimizer.zero_grad` is not supported by this optimizer.")

    def step(self, closure=None):
        return self.optimizer.step(closure)


MAKERS = dict(SGD=lambda m: natgrad.SGD(m, 0.05, momentum=0.9, clip="none"),
              AdamW=lambda m: natgrad.AdamW(m, 0.01, clip="none"),
              EVA=compat.EVA, KFAC_EIGEN_DP=compat.get_kfac_module("eigen_dp"), SPNGD=compat.SPNGD,
              MFAC=lambda m: compat.MFAC(m.parameters(), 0.05, ngrads=4, damp=0.1),
              SparseGGT=lambda m: compat.SparseGGT(m.parameters(), 0.1, 0.05, 0.0, 4, 0.9, 0.99, 1e-5))


class WrappedOptimizers(Case):
    def train_wrapped(self, name, wrap, by_closure):
        model = small_conv_net()
        optimizer = MAKERS[name](model)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        outer = wrap(optimizer)
        self.assertIsInstance(outer, torch.optim.Optimizer)
        for t in range(4):
            def closure():
                outer.zero_grad(**{} if t % 2 else dict(set_to_none=True))
                loss = loss_of(model, *random_batch(seed=t))
                loss.backward()
                return loss
            if by_closure:
                self.assertIsInstance(outer.step(closure=closure), torch.Tensor)
            else:
                closure()
                outer.step()
            schedule.step()
        self.assertEqual(optimizer.steps, 4)
        self.assertAlmostEqual(outer.param_groups[0]["lr"], optimizer.defaults["lr"] * 0.8**4)
        return model.state_dict(), outer

    def test_a_state_loads_twice(self):
        """PyTorch adds settings to param_groups when it loads a state.  A state may have them or not."""
        self.silence_warnings()
        for name in MAKERS:
            with self.subTest(name):
                optimizer = MAKERS[name](small_conv_net())
                plain = optimizer.state_dict()
                more = {**plain, "param_groups": [{**group, "setting_of_torch": 1} for group in plain["param_groups"]]}
                for state in (plain, plain, more, optimizer.state_dict(), plain):
                    optimizer.load_state_dict(state)
                del more["param_groups"][0]["lr"]
                with self.assert_refused("param_groups\\[0\\] has no 'lr'"):
                    optimizer.load_state_dict(more)

    def test_wrappers_keep_results(self):
        self.silence_warnings()
        for name in MAKERS:
            by_closure = name not in ("EVA", "KFAC_EIGEN_DP")  # these ignore the closure, as published
            expected, _ = self.train_wrapped(name, lambda o: o, by_closure)
            for wrap in (LikeLightning, LikeAccelerate):
                with self.subTest(name, wrap=wrap.__name__):
                    found, outer = self.train_wrapped(name, wrap, by_closure)
                    self.assert_same_tensors(found, expected)
                    if wrap is LikeLightning:
                        self.assertIsInstance(outer, type(outer._optimizer))
                        self.assertEqual(outer.steps, 4)
                        self.assertEqual(len(outer.explain()), 10)
                        with self.assert_refused("param_groups are fixed"):
                            outer.add_param_group(dict(params=[nn.Parameter(torch.zeros(3))]))
                    else:
                        self.assertEqual(outer.called, 4)

    def test_schedulers_work_on_published_classes(self):
        """Each scheduler equals a loop that writes the same values into the groups, and differs from no scheduler."""
        of = torch.optim.lr_scheduler
        makers = [lambda o: of.LambdaLR(o, lambda t: 1 / (1 + t)), lambda o: of.MultiStepLR(o, [1, 3], 0.5),
                  lambda o: of.ExponentialLR(o, 0.7), lambda o: of.CosineAnnealingLR(o, 4),
                  lambda o: of.ReduceLROnPlateau(o, patience=0), lambda o: of.CosineAnnealingWarmRestarts(o, 3),
                  lambda o: of.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=False),
                  lambda o: of.OneCycleLR(o, 0.1, total_steps=6, cycle_momentum=False),
                  lambda o: of.SequentialLR(o, [of.ConstantLR(o, 0.3, 2), of.ExponentialLR(o, 0.7)], [2])]
        self.silence_warnings()
        for name in set(MAKERS) - {"SGD", "AdamW"}:
            for maker in makers:
                torch.manual_seed(1)
                one = nn.Linear(4, 3)
                two, three = copy.deepcopy(one), copy.deepcopy(one)
                scheduled, by_hand, constant = (MAKERS[name](model) for model in (one, two, three))
                schedule, seen = maker(scheduled), set()
                for t in range(5):
                    by_hand.param_groups[0]["lr"] = scheduled.param_groups[0]["lr"]
                    seen.add(by_hand.param_groups[0]["lr"])
                    for model, optimizer in ((one, scheduled), (two, by_hand), (three, constant)):
                        model.zero_grad()
                        loss_of(model, *random_batch(shape=(4,), seed=t)).backward()
                        optimizer.step()
                    schedule.step(*([1.0] if isinstance(schedule, of.ReduceLROnPlateau) else []))
                    with self.subTest(name, schedule=type(schedule).__name__):
                        self.assertTrue(all(torch.equal(a, b) and torch.equal(a.grad, b.grad)
                                            for a, b in zip(one.parameters(), two.parameters())))
                with self.subTest(name, schedule=type(schedule).__name__):
                    self.assertGreater(len(seen), 1)
                    self.assertFalse(torch.equal(one.weight.grad, three.weight.grad) and torch.equal(one.weight, three.weight))


class EachLayerKind(nn.Module):
    """Every kind of layer.  The table is not trained, but has a gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.table, self.body, self.norm, self.head = nn.Embedding(7, 4), nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.body(self.table(x).mean(1)))))


class StatesOfMethods(Case):
    """States of every method, with and without a fused update: after loading, training continues with the same bits."""

    def train(self, model, k, steps):
        for t in steps:
            model.zero_grad()
            torch.manual_seed(20 + t)
            nn.functional.cross_entropy(model(torch.randint(7, (6, 4))), torch.randint(3, (6,))).backward()
            k.step()

    def test_state_of_each_method_restores_bits(self):
        self.silence_warnings()
        family = {row["name"]: row["family"] for row in natgrad.methods()}
        kinds = {family[method]: getattr(natgrad, name) for name, method, _ in reversed(CLASSES)}
        for row in natgrad.methods():
            more = {} if row["name"].startswith("topk") else dict(window=3) if "window" in row["traits"] else dict(stat_period=2)
            kind_of_family = [kinds[row["family"]]] if row["family"] in kinds else []
            for kind in (*kind_of_family, lambda m, **o: natgrad.SGD(m, 0.05, momentum=0.9, **o)):
                def make(model):
                    return kind(model, method=row["name"], damping=0.1, **more)
                with self.subTest(row["name"], kind=kind):
                    whole, half, other = EachLayerKind(), EachLayerKind(), EachLayerKind()
                    k = make(whole)
                    self.train(whole, k, range(5))
                    k = make(half)
                    self.train(half, k, range(3))
                    state = save_and_load(dict(k=k.state_dict(), model=half.state_dict()))
                    k = make(other)
                    other.load_state_dict(state["model"])
                    k.load_state_dict(state["k"])
                    self.train(other, k, range(3, 5))
                    self.assert_same_tensors(other.state_dict(), whole.state_dict())
                    self.assert_same_tensors({n: p.grad for n, p in other.named_parameters()},
                                             {n: p.grad for n, p in whole.named_parameters()})


def make_small_bert():
    from transformers import BertConfig, BertForSequenceClassification
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


def train_and_resume_by_trainer(rank, world, folder):
    """Train two epochs; repeat the second from a checkpoint. Return (steps, status, whether the weights are equal) of both."""
    from transformers import Trainer, TrainingArguments
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="localhost", MASTER_PORT="1")
    torch.manual_seed(1)
    data = [dict(input_ids=torch.randint(50, (8,)), labels=torch.tensor(i % 2)) for i in range(32 * world)]
    found, first = [], None
    for more in (dict(), dict(resume_from_checkpoint=f"{folder}/checkpoint-4")):
        model = make_small_bert()
        trainer = Trainer(model, TrainingArguments(
            folder, per_device_train_batch_size=8, num_train_epochs=2, report_to=[], save_strategy="epoch", use_cpu=True,
            disable_tqdm=True), train_dataset=data, optimizer_cls_and_kwargs=(
                natgrad.SGD, dict(model=model, lr=0.05, momentum=0.9, damping=0.03)))
        trainer.train(**more)
        optimizer = trainer.optimizer.optimizer  # the Trainer has a wrapper of Accelerate
        first = first or {name: tensor.clone() for name, tensor in model.state_dict().items()}
        # DDP changes the order of its sums after the first backward pass
        same = all((first[name] - tensor).abs().max() <= (world - 1) * 1e-5 for name, tensor in model.state_dict().items())
        found.append((optimizer.report()["steps"], optimizer.note, same))
    return found


class InstalledTrainers(Case):
    """The real trainers."""

    @unittest.skipUnless(*skip_unless_arguments("transformers", "accelerate"))
    def test_transformers_trainer_resumes(self):
        """Two epochs give the weights of one epoch, a checkpoint and one more epoch; the Trainer makes the schedule.  On two
        processes the Trainer saves on one of them only."""
        import transformers  # noqa: F401  once, before the forks
        for world in (1, 2):
            with self.subTest(world), tempfile.TemporaryDirectory() as folder:
                for found in ranks.run_on_ranks(world, train_and_resume_by_trainer, folder):
                    self.assertEqual(found, [(8, 0, True)] * 2)

    @unittest.skipUnless(*skip_unless_arguments("accelerate"))
    def test_accelerate_saves_and_loads_twice(self):
        """Steps 2 and 3 have the same weights after each load_state() as in the first run."""
        from accelerate import Accelerator
        self.silence_warnings()
        accelerator, model = Accelerator(cpu=True), small_conv_net()
        model, optimizer = accelerator.prepare(model, natgrad.SGD(model, lr=0.05, momentum=0.9, damping=0.03))

        def train(steps):
            for t in steps:
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, *random_batch(seed=t)))
                optimizer.step()
            return {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            train(range(2))
            accelerator.save_state(folder)
            expected = train(range(2, 4))
            for _ in range(2):
                accelerator.load_state(folder)
                self.assert_same_tensors(train(range(2, 4)), expected)

    @unittest.skipUnless(*skip_unless_arguments("transformers", "accelerate"))
    def test_transformers_callback_preconditions(self):
        """KFAC with an optimizer of PyTorch, as in docs/pytorch.md."""
        from transformers import Trainer, TrainerCallback, TrainingArguments
        model = make_small_bert()
        preconditioner = natgrad.KFAC(model, damping=0.03, missing="keep")

        class Precondition(TrainerCallback):
            def on_pre_optimizer_step(self, args, state, control, **more):
                preconditioner.step(more["optimizer"].param_groups[0]["lr"])
        data = [dict(input_ids=torch.randint(50, (8,)), labels=torch.tensor(i % 2)) for i in range(32)]
        with tempfile.TemporaryDirectory() as folder:
            Trainer(model, TrainingArguments(folder, per_device_train_batch_size=8, num_train_epochs=2, report_to=[],
                                             save_strategy="no", use_cpu=True, disable_tqdm=True, optim="adamw_torch"),
                    train_dataset=data, callbacks=[Precondition()]).train()
        self.assertEqual(preconditioner.report()["steps"], 8)

    @unittest.skipUnless(*skip_unless_arguments("lightning"))
    def test_lightning_matches_plain_loop(self):
        """Automatic optimization, manual optimization and KFAC in on_before_optimizer_step, each equals a plain loop;
        with a checkpoint in between."""
        import lightning
        self.silence_warnings()
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        data = [random_batch(seed=10 + t) for t in range(3)]  # two epochs

        class Module(lightning.LightningModule):
            def __init__(self, how):
                super().__init__()
                self.body, self.how, self.automatic_optimization = small_conv_net(), how, how != "manual"

            def forward(self, x):
                return self.body(x)

            def training_step(self, data, _index):
                loss = loss_of(self, *data)
                if self.how == "manual":
                    optimizer = self.optimizers()
                    optimizer.zero_grad()
                    self.manual_backward(loss)
                    optimizer.step()
                return loss

            def configure_optimizers(self):
                if self.how == "beside":
                    self.k = natgrad.KFAC(self, clip="none", damping=0.1)
                    return torch.optim.SGD(self.parameters(), 0.05)
                return natgrad.SGD(self, 0.05, momentum=0.9, clip="none", damping=0.1)

            def on_before_optimizer_step(self, _optimizer):
                if self.how == "beside":
                    self.k.step()

        def trainer(folder, epochs):
            return lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                                     enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
        for how in ("automatic", "manual", "beside"):
            loader = torch.utils.data.DataLoader(data, batch_size=None)
            one, two = Module(how), Module(how)
            optimizer = two.configure_optimizers()
            for x, y in data + data:
                optimizer.zero_grad()
                loss_of(two, x, y).backward()
                two.on_before_optimizer_step(optimizer)
                optimizer.step()
            with self.subTest(how), tempfile.TemporaryDirectory() as folder:
                trainer(folder, 2).fit(one, loader)
                self.assert_same_tensors(one.state_dict(), two.state_dict())
                if how == "automatic":
                    other, half = Module(how), trainer(folder, 1)
                    half.fit(other, loader)
                    half.save_checkpoint(f"{folder}/half.ckpt")
                    other = Module(how)
                    trainer(folder, 2).fit(other, loader, ckpt_path=f"{folder}/half.ckpt", weights_only=True)
                    self.assert_same_tensors(other.state_dict(), two.state_dict())


@unittest.skipUnless(*skip_unless_arguments("peft"))
class Peft(Case):
    def test_lora_factors_equal_kfac_in_float64(self):
        """The low-rank factors of peft are linear layers; the layers around them are frozen."""
        peft = importlib.import_module("peft")
        torch.manual_seed(1)
        base = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        model = peft.get_peft_model(base, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0", "2"], init_lora_weights=False))
        x, y = torch.randn(8, 5, 6), torch.randint(4, (8, 5))  # samples, positions

        def losses(m):
            yield nn.functional.cross_entropy(m(x.to(next(m.parameters()).dtype)).flatten(0, 1), y.flatten())
        names = [name for name, module in model.named_modules() if name.endswith(".default") and isinstance(module, nn.Linear)]
        self.assertEqual([name.split("model.")[-1] for name in names], [f"{i}.lora_{c}.default" for i in (0, 2) for c in "AB"])
        expected = oracle.kfac_gradients(model, names, losses, DAMPING)
        frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
        self.assertEqual(len(frozen), 4)
        k = make_preconditioner(model)
        next(losses(model)).backward()
        self.assertEqual(k.step(), 0)
        self.assert_near_oracle(gradients_of(model), expected)
        self.assertEqual(sorted(gradients_of(model)), [name + ".weight" for name in sorted(names)])
        optimizer = natgrad.SGD(model, lr=0.1, damping=DAMPING)
        next(losses(model)).backward()
        optimizer.step()
        self.assert_same_tensors({name: p for name, p in model.named_parameters() if not p.requires_grad}, frozen)


if __name__ == "__main__":
    unittest.main()
