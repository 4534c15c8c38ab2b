"""The optimizers of IST-DASLab under their published names: recordings, formulas, arguments, groups, state."""
import io
import re
import unittest
import zlib

import torch
from torch import nn

import natgrad
import natgrad.compat as compat
import recording
from front import NEW, Case, random_batch, loss_of, small_conv_net


def make_recorded_optimizer(case, parameters):
    """An optimizer of the published class with the published arguments."""
    config = dict(case["config"])
    kind = {"SparseGGT_DenseFormat": "SparseGGT", "SparseGGT_SparseFormatSpmm": "SparseGGT"}.get(
        config["class"], config["class"])
    for name in ("system", "method", "class", "topk", "ignore_bn_ln_type", "param_groups", "scope"):
        config.pop(name, None)
    groups = [dict(group, params=[parameters[name] for name in group["parameters"]]) for group in case["groups"]]
    for group in groups:
        del group["parameters"]
    return getattr(compat, kind)(groups, **config)


def load_recorded_start(optimizer, arrays, case):
    """Load the initial matrices of the recorded low-rank program into the place of the coming row."""
    state, rank = optimizer.state_dict(), case["config"]["rank"]
    recorded = [(p["name"], p["shape"]) for group in case["groups"] for p in case["parameters"]
                if p["name"] in group["parameters"]]
    names = [f"param_groups[{i}][{k}]" for i, group in enumerate(case["groups"])
             for k in range(len(group["parameters"]))]
    for field, factors in state["natgrad"]["fields"].items():
        key, what = field.rsplit("/", 1)
        if what != "factors":
            continue
        row, at = factors[-1], 0
        for name, (parameter, shape) in zip(names, recorded):
            if key not in ("window", name):  # the parameter has another window
                continue
            rows, cols = (1, shape[0]) if len(shape) == 1 else (shape[0], torch.Size(shape[1:]).numel())
            columns = min(rank, rows, cols)
            if rows > 1:
                q = arrays[f"init.{parameter}.q"].reshape(cols, columns)
                row[at + columns * rows:at + columns * (rows + cols)] = q.t().reshape(-1)
            at += cols if rows == 1 else columns * (rows + cols)
        assert at == len(row)
    restore_checksum(state["natgrad"])
    optimizer.load_state_dict(state)


def restore_checksum(state):
    """Recompute the checksums of a state whose fields were changed."""
    for name, field in state["fields"].items():
        crc = f"{zlib.crc32(field.contiguous().numpy().tobytes()):08x}"
        state["manifest"] = re.sub(rf'("{re.escape(name)}":{{"crc32":)"[0-9a-f]+"', rf'\1"{crc}"', state["manifest"])
    state["crc32"] = f"{zlib.crc32(state['manifest'].encode()):08x}"


def replay_recording(name):
    """Return the largest error of a direction relative to the largest entry of the step; also check the weights."""
    case, arrays = recording.read_recording(name)
    parameters = {p["name"]: nn.Parameter(arrays[f"s0.{p['name']}.before"].reshape(p["shape"]).clone())
                  for p in case["parameters"]}
    optimizer, worst = make_recorded_optimizer(case, parameters), 0.0
    if case["config"]["method"] == "lowrank-mfac":
        load_recorded_start(optimizer, arrays, case)
    for step in range(case["steps"]):
        def recorded(part):
            return torch.cat([arrays[f"s{step}.{n}.{part}"].reshape(-1) for n in parameters])
        for n, p in parameters.items():
            with torch.no_grad():
                p.copy_(arrays[f"s{step}.{n}.before"].reshape(p.shape))
            p.grad = arrays[f"s{step}.{n}.grad"].reshape(p.shape).clone()
        optimizer.step()
        direction = torch.cat([p.grad.reshape(-1) for p in parameters.values()])
        weights = torch.cat([p.detach().reshape(-1) for p in parameters.values()])
        off = (direction - recorded("out")).abs().max().item()
        worst = max(worst, off / recorded("out").abs().max().item() if off == off else float("inf"))
        # weights differ by lr times this error, and by rounding in the update
        moved = (weights - recorded("after")).abs().max().item()
        bound = case["config"]["lr"] * off + 4e-7 * recorded("after").abs().max().item()
        assert moved <= bound, (name, step, moved, bound)
    error = optimizer.state_dict()["natgrad"]["fields"].get("window/error")
    if error is not None and case["config"]["method"] != "lowrank-mfac":  # 1-D parameters have no error feedback in lowrank-mfac
        names = [n for group in case["groups"] for n in group["parameters"]]
        expected = torch.cat([arrays[f"s{step}.{n}.error"].reshape(-1) for n in names])
        assert (error.reshape(-1) - expected).abs().max() <= 1e-6 * expected.abs().max(), name
    return worst


class WindowRecordings(Case):
    def test_each_recording_is_reproduced(self):
        found = recording.recording_names("window-*")
        self.assertEqual(len(found), 18)
        for name in found:
            with self.subTest(name):
                self.assertLess(replay_recording(name), recording.read_recording(name)[0].get("tolerance", recording.TOLERANCE))


def cosine_wave(s, size):
    """The inputs of the golden numbers, sin((i + 1) (s + 0.5))."""
    return torch.sin((torch.arange(size, dtype=torch.float64) + 1) * (s + 0.5))


class GoldenSums(Case):
    """Golden numbers, computed from the formulas in double."""

    def check_golden_sums(self, make, size, rows):
        p = nn.Parameter(cosine_wave(2.0, size).float())
        optimizer = make([p])
        for t, row in enumerate(rows):
            p.grad = cosine_wave(0.3 + 0.9 * t, size).float()
            before = p.detach().clone()
            optimizer.step()
            self.assertLess((p.grad.double() - torch.tensor(row, dtype=torch.float64)).abs().max().item(),
                            1e-4 * max(map(abs, row)))  # the condition of lambda I + G G' is about 1e2, of GGT 1e3
            self.assertTrue(torch.equal(p, before - 0.5 * p.grad))

    def test_mfac_golden_sums(self):
        self.check_golden_sums(lambda ps: compat.MFAC(ps, 0.5, ngrads=4, damp=0.1), 5, (
            (0.973955598, 1.357122799, 0.917077521, -0.079254675, -1.027512049),
            (1.599325308, 0.022564893, -0.999432396, 0.644285564, 0.798034353),
            (0.804341689, -1.032799144, 1.162094362, -0.957208192, 0.550344013),
            (0.15453088, -0.874337866, -0.475476242, 1.072367153, -1.752714911),
            (-0.81539598, 1.335805481, -0.367895769, -1.416912282, 0.742939315),
            (-1.332027747, -1.005624881, -0.102233279, 0.778541663, 0.900811797)))

    def test_sparse_mfac_golden_sums(self):
        self.check_golden_sums(lambda ps: compat.SparseGradientMFAC(ps, 4, 0.25, 0.5, 0.05, "wd", 0, 0), 8, (
            (0, 1.824462814, 0, 0, 0, -1.818240577, 0, 0),
            (1.46015183, 0, 0, 0, 0, 0, -1.067464518, 0),
            (0, -0.546839322, 0, 0, 0, -0.456671679, 0, 1.68057633),
            (-1.614007194, 0.892839304, 0, 0, 0, 0.745620162, -2.358927567, 0.506061151),
            (-0.314737008, -0.327050751, 0, 0, 0, 2.747656611, -0.291072065, -0.185372304)))

    def test_ggt_golden_sums(self):
        self.check_golden_sums(lambda ps: compat.GGT(ps, 0.5, 0, 3, 0.9, 0.95, 0.01), 6, (
            (0.037935485, 0.052859814, 0.035720089, -0.003086963, -0.040021504, -0.052679539),
            (-0.604806215, -0.910117121, -0.646002164, 0.072867315, 0.713967236, 0.867736353),
            (-2.114236383, -1.435069959, -0.381710002, -0.296566861, 0.566770334, 2.303639973),
            (6.105708757, 6.103816681, 5.642643821, -0.023897615, -7.486682339, -3.602673144),
            (6.738133228, 7.285125639, 1.983787719, -1.961988594, -1.902773354, -1.036256114)))

    def test_sparse_ggt_golden_sums(self):
        self.check_golden_sums(lambda ps: compat.SparseGGT(ps, 1 / 3, 0.5, 0, 3, 0.9, 0.95, 0.01), 6, (
            (0, 0.703379342, 0, 0, 0, -0.700980503),
            (0.943789585, -0.084869401, 0, 0, 0, -0.301918791),
            (-0.087249721, -0.696148297, 0.651083728, 0, 0, -0.258280286),
            (0.172070292, -0.184585061, -0.623264799, 0, 0, 0.72881977)))


# The published signatures: (argument, default); ... marks a required argument.
NEEDED = ...
MFAC = dict(lr=1e-3, momentum=0, weight_decay=0, ngrads=1024, damp=1e-5, moddev=None, optdev=None)
LOWRANK = dict(lr=1e-3, momentum=0, weight_decay=0, num_grads=1024, damp=1e-5, moddev=None, optdev=None)
DENSE = dict(ngrads=NEEDED, lr=NEEDED, damp=NEEDED, wd_type=NEEDED, weight_decay=NEEDED, momentum=NEEDED)
PUBLISHED = {
    "MFAC": dict(MFAC, gpus=(), sparse=False),
    "DenseMFAC": dict(DENSE, sparse=False, dev=None, gpus=None),
    "SparseGradientMFAC": dict(ngrads=NEEDED, k_init=NEEDED, lr=NEEDED, damp=NEEDED, wd_type=NEEDED, weight_decay=NEEDED,
                               momentum=NEEDED, sparse=False, dev=None, gpus=None),
    "SparseMFAC": dict(lr=NEEDED, damp=NEEDED, m=NEEDED, k_init=NEEDED, weight_decay=NEEDED, use_bf16=NEEDED),
    "GGT": dict(lr=NEEDED, wd=NEEDED, r=NEEDED, beta1=NEEDED, beta2=NEEDED, eps=NEEDED),
    "SparseGGT": dict(k_init=NEEDED, lr=NEEDED, wd=NEEDED, r=NEEDED, beta1=NEEDED, beta2=NEEDED, eps=NEEDED),
    "RankOneMFAC": MFAC, "LowRankMFAC": dict(MFAC, rank=1),
    "RankOneAggregateMFAC": LOWRANK, "LowRankAggregateMFAC": dict(LOWRANK, rank=1)}
VALUES = dict(ngrads=3, num_grads=3, m=3, lr=0.1, damp=0.1, wd_type="reg", weight_decay=0.01, momentum=0.5, k_init=0.3, wd=0.01,
              r=3, beta1=0.9, beta2=0.9, eps=0.1, use_bf16=False, rank=1)
# Another value of each argument, which changes directions or weights, or is refused.
OTHER = dict(ngrads=2, num_grads=2, m=2, lr=0.2, damp=0.2, wd_type="both", weight_decay=0.02, momentum=0.25, k_init=0.6, wd=0.02,
             r=2, beta1=0.5, beta2=0.5, eps=0.2, use_bf16=True, rank=2, sparse=True, topk_lr_on_update=False,
             precondition_sparse_grad=False)
DEVICES = ("moddev", "optdev", "gpus", "dev")


def train_steps(kind, values, count=5):
    """Return the directions and weights of `count` steps."""
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(*shape)) for shape in ((4, 3), (4, 4))]
    with torch.no_grad():
        parameters[0][1] = 0
    optimizer, found = getattr(compat, kind)(parameters, **values), []
    for t in range(count):
        torch.manual_seed(10 + t)
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
        found += [x.detach().clone() for p in parameters for x in (p, p.grad)]
    return found


class Arguments(Case):
    def test_signatures_are_published(self):
        for kind, published in PUBLISHED.items():
            needed = {n: VALUES[n] for n, v in published.items() if v is NEEDED}
            p = [nn.Parameter(torch.ones(3, 3))]
            getattr(compat, kind)(p, *needed.values())  # in the published order
            self.assertEqual([n for n, _ in getattr(compat, kind).arguments][:len(published)], list(published), kind)
            for name, default in getattr(compat, kind).arguments:
                if name in published and published[name] is not NEEDED:
                    self.assertEqual(default, published[name], (kind, name))
            for name in needed:
                with self.assertRaisesRegex(TypeError, name, msg=(kind, name)):
                    getattr(compat, kind)(p, **{n: v for n, v in needed.items() if n != name})
            with self.assertRaisesRegex(TypeError, "nesterov"):
                getattr(compat, kind)(p, *needed.values(), nesterov=True)

    def test_each_argument_works_or_is_refused(self):
        for kind, published in PUBLISHED.items():
            names = [n for n, _ in getattr(compat, kind).arguments]
            base = {n: VALUES[n] for n in names if n in VALUES}
            plain = train_steps(kind, base)
            for name in names:
                with self.subTest(kind, name=name):
                    if name in DEVICES:
                        with self.assert_refused(f"{name}: .*on the CPU"):
                            getattr(compat, kind)([nn.Parameter(torch.ones(3))], **base, **{name: "cuda:0"})
                        getattr(compat, kind)([nn.Parameter(torch.ones(3, 3))], **base, **{name: torch.device("cpu")})
                        continue
                    other = train_steps(kind, {**base, name: OTHER[name]})
                    same = all(torch.equal(a, b) for a, b in zip(plain, other))
                    # EFCP accepts and ignores the two arguments of sparse GGT
                    self.assertEqual(same, kind == "SparseGGT" and name.startswith("beta"))

    def test_errors_name_wrong_values(self):
        p = [nn.Parameter(torch.ones(3, 3))]
        for kind, values, pattern in (
                ("MFAC", dict(ngrads=0), "ngrads"), ("MFAC", dict(damp=0), "damp"), ("MFAC", dict(momentum=1), "momentum"),
                ("MFAC", dict(weight_decay=-1), "weight_decay"), ("DenseMFAC", dict(wd_type="l2"), "wd_type"),
                ("SparseGradientMFAC", dict(k_init=0), "k_init"), ("SparseMFAC", dict(k_init=7), "k_init"),
                ("SparseMFAC", dict(use_bf16="yes"), "use_bf16"),
                ("LowRankMFAC", dict(rank=0), "rank"), ("GGT", dict(beta2=2), "beta2")):
            base = {n: VALUES[n] for n, _ in getattr(compat, kind).arguments if n in VALUES}
            with self.assert_refused(pattern):
                getattr(compat, kind)(p, **{**base, **values})
        with self.assert_refused("5 axes"):
            compat.LowRankMFAC([nn.Parameter(torch.ones(2, 2, 2, 2, 2))])
        with self.assert_refused("weight_decay of param_groups.0.: MFAC has one"):
            compat.MFAC([dict(params=p, weight_decay=0.1)])
        with self.assert_refused("different lr"):
            compat.SparseGradientMFAC([dict(params=p), dict(params=[nn.Parameter(torch.ones(2))], lr=0.2)], 3, 0.5, 0.1, 0.1,
                                      "wd", 0, 0, topk_lr_on_update=False)

    def test_k_init_counts_entries(self):
        """EFCP and sparse GGT: k_init above 1 is int(k_init) entries, of 16 here."""
        for kind in ("SparseGradientMFAC", "SparseGGT"):
            base = {n: VALUES[n] for n, _ in getattr(compat, kind).arguments if n in VALUES}
            ends = []
            for k in (0.25, 4, 4.9, 3):
                torch.manual_seed(1)
                p = nn.Parameter(torch.randn(4, 4))
                optimizer = getattr(compat, kind)([p], **{**base, "k_init": k})
                for _ in range(4):
                    p.grad = torch.randn(4, 4)
                    optimizer.step()
                ends.append(p.detach().clone())
            self.assertTrue(torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2]), kind)
            self.assertFalse(torch.equal(ends[0], ends[3]), kind)

    def test_sparse_mfac_of_ista(self):
        torch.manual_seed(1)
        p = nn.Parameter(torch.randn(70000))
        optimizer = compat.SparseMFAC([p], lr=0.1, damp=0.1, m=2, k_init=1e-4, weight_decay=0, use_bf16=False)
        p.grad = torch.cat([torch.rand(32768), torch.rand(37232) / 10])
        optimizer.step()
        kept = p.grad.nonzero().reshape(-1)
        self.assertEqual([int(((kept >= 32768 * b) & (kept < 32768 * (b + 1))).sum()) for b in range(3)], [4, 4, 1])
        self.assertEqual(compat.SparseMFAC([p], 0.1, 0.1, 2, 0.1, 0, True)._chosen.get("window_dtype"), "bf16")

    def test_param_groups_and_schedulers(self):
        """EFCP: w <- (1 - wd) w - lr u with the numbers of the group, ISTA: (1 - lr wd) w."""
        for kind, values, factor in (("DenseMFAC", dict(wd_type="wd"), lambda lr, wd: 1 - wd),
                                     ("DenseMFAC", dict(wd_type="both"), lambda lr, wd: 1 - wd),
                                     ("DenseMFAC", dict(wd_type="reg"), lambda lr, wd: 1),
                                     ("SparseMFAC", {}, lambda lr, wd: 1 - lr * wd)):
            torch.manual_seed(1)
            ps = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
            base = {n: VALUES[n] for n, _ in getattr(compat, kind).arguments if n in VALUES}
            optimizer = getattr(compat, kind)([dict(params=ps[:1], weight_decay=0), dict(params=ps[1:], lr=0.3)],
                                              **{**base, **values})
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            for t in range(3):
                before = [p.detach().clone() for p in ps]
                for p in ps:
                    p.grad = torch.randn_like(p)
                optimizer.step()
                for p, old, lr, wd in zip(ps, before, (0.1, 0.3), (0, 0.01)):
                    lr *= 0.5**t
                    self.assertLess((p - (old * factor(lr, wd) - lr * p.grad)).abs().max().item(), 1e-6)
                schedule.step()

    def test_published_script_trains(self):
        model, first = small_conv_net(), None
        optimizer = compat.MFAC(model.parameters(), lr=0.01, ngrads=8, damp=0.1, momentum=0.5)
        self.assertIsInstance(optimizer, torch.optim.Optimizer)

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, *random_batch())
            loss.backward()
            return loss
        for _ in range(20):
            last = optimizer.step(closure).item()
            first = last if first is None else first
        self.assertLess(last, 0.8 * first)
        self.assertEqual(optimizer.steps, 20)
        self.assertEqual({row["family"] for row in optimizer.explain()}, {"window"})
        self.assertGreater(optimizer.memory_usage()["total"], 4 * 8 * sum(p.numel() for p in model.parameters()))

    def test_non_finite_step_is_skipped(self):
        p = nn.Parameter(torch.ones(3))
        optimizer = compat.MFAC([p], ngrads=2)
        p.grad = torch.tensor([1.0, float("inf"), 0.0])
        optimizer.step()
        self.assertEqual(optimizer.note, 2)
        self.assertTrue(torch.equal(p, torch.ones(3)))

    def test_frozen_weights_keep_values(self):
        """sparse=True: weights that are 0 at the beginning stay 0."""
        ps = [nn.Parameter(torch.tensor([1.0, 0.0, 2.0])), nn.Parameter(torch.ones(2), requires_grad=False)]
        optimizer = compat.MFAC(ps, ngrads=2, sparse=True, damp=0.1)
        for _ in range(3):
            ps[0].grad = torch.ones(3)
            optimizer.step()
        self.assertEqual(ps[0][1].item(), 0)
        self.assertNotEqual(ps[0][0].item(), 1)
        self.assertTrue(torch.equal(ps[1], torch.ones(2)))


    def test_weights_frozen_for_some_steps(self):
        """Every class: a parameter that is frozen between steps is ignored, whatever its gradient is."""
        for kind in PUBLISHED:
            base = {n: VALUES[n] for n, _ in getattr(compat, kind).arguments if n in VALUES}
            torch.manual_seed(1)
            ps = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 4))]
            optimizer = getattr(compat, kind)(ps, **base)
            for step in range(6):
                ps[1].requires_grad_(step not in (2, 3))
                for p in ps:
                    p.grad = torch.randn(p.shape)
                if step == 3:
                    ps[1].grad = None
                before = [p.detach().clone() for p in ps]
                optimizer.step()
                with self.subTest(kind=kind, step=step):
                    self.assertFalse(torch.equal(ps[0], before[0]))
                    self.assertEqual(torch.equal(ps[1], before[1]), step in (2, 3))


class State(Case):
    def test_resumed_training_has_same_bits(self):
        for kind in PUBLISHED:
            base = {n: VALUES[n] for n, _ in getattr(compat, kind).arguments if n in VALUES}
            found = []
            for stop in (False, True):
                torch.manual_seed(1)
                ps = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 4))]
                optimizer = getattr(compat, kind)(ps, **base)
                for t in range(6):
                    if stop and t == 4:
                        file = io.BytesIO()
                        torch.save(optimizer.state_dict(), file)
                        file.seek(0)
                        optimizer = getattr(compat, kind)(ps, **base)
                        optimizer.load_state_dict(torch.load(file, weights_only=NEW))
                    torch.manual_seed(10 + t)
                    for p in ps:
                        p.grad = torch.randn_like(p)
                    optimizer.step()
                found.append([p.detach().clone() for p in ps])
            for a, b in zip(*found):
                self.assertTrue(torch.equal(a, b), kind)


class WindowsOfLayers(Case):
    def test_window_beside_factors(self):
        """A window of some layers and K-FAC of the others equal separate preconditioners, also after save and load."""
        lines = dict(per_layer="Linear: method=mfac window=3 damping=0.1", damping=0.2, clip="none", solve_period=1)
        both, alone, factors = small_conv_net(), small_conv_net(), small_conv_net()
        made = [natgrad.KFAC(both, **lines),
                natgrad.MFAC(alone, window=3, damping=0.1, skip_layers=["^[023]"]),
                natgrad.KFAC(factors, damping=0.2, clip="none", solve_period=1, skip_layers=["Linear"])]
        rows = {row["name"]: row for row in made[0].explain()}
        self.assertEqual([rows["0.weight"]["method"], rows["6.weight"]["method"]], ["natgrad", "mfac"])
        self.assertEqual([rows["0.weight"]["block"], rows["8.weight"]["block"]], ["0", "window.6"])
        kept = None
        for step in range(6):
            for model, k in zip((both, alone, factors), made):
                model.zero_grad()
                loss_of(model, *random_batch(seed=step)).backward()
                k.step()
            grads = {name: p.grad.clone() for name, p in both.named_parameters()}
            for name, g in grads.items():
                other = dict((factors if name[0] in "023" else alone).named_parameters())[name].grad
                self.assertTrue(torch.equal(g, other), (step, name))
            if step == 2:
                kept = made[0].state_dict()
        again = small_conv_net()
        k = natgrad.KFAC(again, **lines)
        k.load_state_dict(kept)
        for step in range(3, 6):
            again.zero_grad()
            loss_of(again, *random_batch(seed=step)).backward()
            k.step()
        for name, p in again.named_parameters():
            self.assertTrue(torch.equal(p.grad, grads[name]), name)

    def test_wrong_layer_options_are_refused(self):
        for text, part in (("fc", "expected GLOBS"), ("x: damping=1", "'x' applies to no layer"),
                           ("2*: method=mfac solver=eigen", "solver = eigen"), ("^2: damping=1", "regular expressions are not")):
            with self.assertRaisesRegex(Exception, part):
                natgrad.KFAC(small_conv_net(), per_layer=text)


if __name__ == "__main__":
    unittest.main()
