"""The examples of examples/torch: each runs some steps, learns, and takes every method."""
import contextlib
import importlib.util
import io
import json
import math
import os
import re
import struct
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch

from front import Case, NEW

SOURCE = os.environ.get("NG_TEST_SOURCE_DIR", os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path.insert(0, os.path.join(SOURCE, "examples", "torch"))

METHODS = ("none", "sgd", "adamw", "natgrad", "spngd", "eva-natgrad", "kaisa", "eigen_dp", "inverse_dp", "eigen", "inverse",
           "eva", "mfac", "efcp")


def can_import(name):
    """Return whether a package can be imported. timm, for example, also needs torchvision."""
    try:
        importlib.import_module(name)
    except Exception:  # torchvision raises RuntimeError beside another build of PyTorch
        return False
    return True


class Examples(Case):
    def run_example(self, name, *arguments):
        before, sys.argv = sys.argv, [name + ".py", *map(str, arguments)]
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                losses = importlib.import_module(name).main()
        finally:
            sys.argv = before
        self.assertTrue(all(loss == loss for loss in losses), losses)
        self.assertRegex(out.getvalue(), "epoch 1: loss ")
        self.printed = out.getvalue()
        return losses

    def assert_loss_falls(self, name, *arguments):
        losses = self.run_example(name, *arguments)
        last = losses[-(len(losses) // 3):]
        self.assertLess(sum(last) / len(last), 0.95 * sum(losses[:5]) / 5, losses)

    def test_mnist_loss_falls(self):
        self.assert_loss_falls("mnist", "--steps", 15, "--optimizer", "sgd", "--lr", 0.05)
        self.run_example("mnist", "--steps", 3)

    def test_mnist_runs_with_each_method(self):
        for method in METHODS:
            with self.subTest(method):
                self.assertEqual(len(self.run_example("mnist", "--steps", 3, "--method", method, "--lr", 0.01, "--ngrads", 8)),
                                 3)
        with self.assertRaisesRegex(SystemExit, "--method noone"):
            self.run_example("mnist", "--method", "noone")

    def test_cifar_loss_falls(self):
        self.assert_loss_falls("resnet", "--steps", 12, "--depth", 8, "--batch-size", 16, "--image", 16, "--lr", 0.05)

    def test_imagenet_runs(self):
        self.assertEqual(len(self.run_example("resnet", "--imagenet", "--steps", 1, "--depth", 18, "--batch-size", 2,
                                              "--method", "eva")), 1)

    def test_sizes_of_residual_networks(self):
        """The numbers of parameters of torchvision, with shortcuts as convolutions."""
        import resnet
        for depth, count in ((18, 11689512), (34, 21797672), (50, 25557032), (101, 44549160), (152, 60192808)):
            with torch.device("meta") if NEW else contextlib.nullcontext():
                self.assertEqual(sum(p.numel() for p in resnet.make_resnet(depth, True).parameters()), count)

    @unittest.skipUnless(can_import("timm"), "timm is not installed")
    def test_networks_of_timm(self):
        for name, image in (("mobilenetv1_100", 32), ("mobilenetv2_100", 32), ("densenet121", 32), ("vit_tiny_patch16_224", 224)):
            with self.subTest(name):
                losses = self.run_example("resnet", "--imagenet", "--model", name, "--image", image, "--batch-size", 2, "--steps", 2)
                self.assertEqual(len(losses), 2)

    def test_translate_loss_falls(self):
        self.assert_loss_falls("translate", "--steps", 15, "--width", 32, "--layers", 1, "--batch-size", 32)

    def test_language_model_loss_falls(self):
        """A Markov chain with three successors of each word: perplexity 3 at best, 50 without learning."""
        small = ("--width", 32, "--hidden", 32, "--layers", 1, "--context", 16, "--batch-size", 10)
        self.assert_loss_falls("language", "--steps", 60, *small, "--method", "kaisa")
        loss, perplexity = map(float, re.search("test loss ([0-9.]+), test perplexity ([0-9.]+)", self.printed).groups())
        self.assertAlmostEqual(perplexity, math.exp(loss), delta=1e-3 * perplexity)
        self.assertTrue(3 <= perplexity < 25, perplexity)
        for method in ("natgrad", "eva", "mfac", "adamw"):
            self.run_example("language", "--steps", 2, *small, "--method", method, "--ngrads", 4)

    def test_language_model_reads_a_file_or_a_folder(self):
        import language
        with tempfile.TemporaryDirectory() as folder:
            text = "".join(f"a b c{i % 3}\n" for i in range(40))
            for name in ("text", "wiki.train.tokens", "wiki.valid.tokens"):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text[:28] if "valid" in name else text)
            for data, words in ((folder, (160, 16)), (os.path.join(folder, "text"), (144, 16))):  # four words a line
                self.assertEqual(tuple(map(len, language.read_words(data))), words)
                self.run_example("language", "--data", data, "--context", 4, "--batch-size", 4, "--steps", 2, "--width", 16)
            inputs, labels = language.make_samples("a b a d a b".split(), dict(a=1, b=2), 2)
            self.assertEqual((inputs.tolist(), labels.tolist()), ([[1, 2], [1, 0]], [[2, 1], [0, 1]]))
            with self.assertRaisesRegex(SystemExit, "a text has 16 words, expected more than --context 16"):
                self.run_example("language", "--data", folder, "--context", 16)
            os.remove(os.path.join(folder, "wiki.valid.tokens"))
            with self.assertRaisesRegex(SystemExit, "has no file with valid in its name"):
                self.run_example("language", "--data", folder)

    def test_bert_loss_falls(self):
        for task in ("classify", "answer"):
            self.assert_loss_falls("bert", "--steps", 30, "--task", task)
        for method in ("kaisa", "efcp"):
            self.run_example("bert", "--steps", 2, "--method", method, "--lr", 0.001)

    def test_unsupported_device_is_refused(self):
        for name in ("mnist", "resnet", "translate", "bert", "language"):
            with self.assert_refused("is on meta: only the CPU and CUDA are supported"):
                self.run_example(name, "--device", "meta", "--steps", 1)

    def test_data_files_are_read(self):
        """Files in the formats of MNIST and CIFAR-10."""
        with tempfile.TemporaryDirectory() as folder:
            for part, count in (("train", 128), ("t10k", 256)):
                for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
                    with open(os.path.join(folder, f"{part}-{name}-ubyte"), "wb") as file:
                        body = torch.randint(10, shape, dtype=torch.uint8)
                        file.write(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body.numpy().tobytes())
            self.run_example("mnist", "--data", folder, "--epochs", 1, "--log", os.path.join(folder, "log"))
            self.assertTrue(os.path.exists(os.path.join(folder, "log", "log.jsonl")))
            for i in (1, 3):  # two of the five files
                with open(os.path.join(folder, f"data_batch_{i}.bin"), "wb") as file:
                    file.write(torch.randint(10, (8, 3073), dtype=torch.uint8).numpy().tobytes())
            small = ("resnet", "--data", folder, "--depth", 8, "--batch-size", 4, "--epochs", 1)
            self.assertEqual(len(self.run_example(*small)), 4)
            self.assertNotIn("test", self.printed)
            os.rename(os.path.join(folder, "data_batch_3.bin"), os.path.join(folder, "test_batch.bin"))
            self.assertEqual(len(self.run_example(*small, "--samples", 4)), 1)
            self.assertIn("test accuracy", self.printed)
            for language, text in (("en", "a man walks .\nthe dog runs\n"), ("de", "ein mann geht .\nder hund rennt\n")):
                with open(os.path.join(folder, f"train.{language}"), "w", encoding="utf-8") as file:
                    file.write(text * 4)
            small = ("translate", "--data", folder, "--batch-size", 4, "--width", 16, "--layers", 1)
            self.run_example(*small, "--steps", 2)
            self.assertNotIn("BLEU", self.printed)
            for language in ("en", "de"):
                os.link(os.path.join(folder, f"train.{language}"), os.path.join(folder, f"test.{language}"))
            self.run_example(*small, "--epochs", 40)  # four German words and a full stop are learnt by heart
            self.assertIn("test BLEU 100.0 %", self.printed)
            with open(os.path.join(folder, "test.de"), "a", encoding="utf-8") as file:
                file.write("zu viel\n")  # the same file as train.de
            with self.assertRaisesRegex(SystemExit, "train.en has 8 lines, train.de 9: expected the same number"):
                self.run_example(*small)
            data = dict(tokens=torch.randint(1, 64, (8, 12)), labels=torch.randint(2, (8,)))
            torch.save(data, os.path.join(folder, "texts.pt"))
            small = ("bert", "--data", os.path.join(folder, "texts.pt"), "--batch-size", 4, "--steps", 2)
            self.run_example(*small)
            self.assertNotIn("test", self.printed)
            torch.save(dict(data, test_tokens=data["tokens"], test_labels=data["labels"]), os.path.join(folder, "texts.pt"))
            self.run_example(*small)
            self.assertRegex(self.printed, "test accuracy [0-9.]+ %, test F1 [0-9.]+ %")
            with self.assertRaisesRegex(SystemExit, "--data: a folder needs --model"):
                self.run_example("bert", "--data", folder)


@unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
class TextsOfBert(Case):
    """Files in the formats of GLUE and SQuAD, with a tokenizer of eleven words."""
    run_example = Examples.run_example

    def setUp(self):
        import transformers
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, words = folder.name, "[PAD] [UNK] [CLS] [SEP] [MASK] who what ran ate a cat dog fish . ? red".split()
        with open(os.path.join(self.folder, "vocab.txt"), "w", encoding="ascii") as file:
            file.write("\n".join(words) + "\n")
        torch.manual_seed(1)
        transformers.BertForQuestionAnswering(transformers.BertConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)).save_pretrained(self.folder)
        transformers.BertTokenizerFast(os.path.join(self.folder, "vocab.txt")).save_pretrained(self.folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.small = ("bert", "--data", self.folder, "--model", self.folder, "--lr", 0.05, "--length", 24, "--batch-size", 8)

    def write_questions(self, name, answers=True):
        asked = []
        for subject, thing in (("cat", "red fish"), ("dog", "fish"), ("fish", "cat"), ("cat", "dog")):
            context = f"A {subject} ran . The {subject} ate a {thing} ."
            asked.append(dict(context=context, qas=[
                dict(id="1", question="who ran?", answers=[dict(text=subject, answer_start=2)] * answers),
                dict(id="2", question="what ate?", answers=[dict(text=thing, answer_start=context.index(thing, 20))] * answers)]))
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            json.dump(dict(data=[dict(paragraphs=asked)]), file)
        return os.path.join(self.folder, name)

    def test_questions(self):
        import texts
        path = self.write_questions("train-v1.1.json")
        for length, stride, windows in ((24, 4, 1), (14, 4, 2)):
            found = texts.Questions(path, self.tokenizer, length, stride)
            self.assertEqual(len(found.answers), 8)
            self.assertGreaterEqual(len(found.tokens), 8 * windows)
            seen = set()
            for i, number in enumerate(found.question.tolist()):
                begin, end = found.begin[i].item(), found.end[i].item()
                if begin:
                    seen.add(number)
                    text = found.contexts[number][found.places[i, begin, 0]:found.places[i, end, 1]]
                    self.assertEqual(text, found.answers[number][0])
            self.assertEqual(seen, set(range(8)))

    def test_scores_of_answers(self):
        """A model that knows the first and the last token of each answer, and one whose answers end a token late."""
        import texts
        found = texts.Questions(self.write_questions("dev-v1.1.json"), self.tokenizer, 14, 4)
        rows = {tuple(row): (b, e) for row, b, e in zip(found.tokens.tolist(), found.begin.tolist(), found.end.tolist())}

        def make_model(late):
            def model(tokens, segments):
                output = torch.zeros(*tokens.shape, 2)
                output[:, 1:3] = 99.0  # words of the question, which are no answer
                for i, row in enumerate(tokens.tolist()):
                    begin, end = rows[tuple(row)]
                    if begin:
                        output[i, begin, 0] = output[i, end + late, 1] = 9.0
                return output
            return model
        args = types.SimpleNamespace(rank=0, ranks=1, device="cpu")
        self.assertEqual(found.make_test(args)(make_model(0)), dict(EM=1, F1=1))
        # one word more, except the full stop after the four things: 4 times (1 of 2 words, 1 of 1), else the same
        late = found.make_test(args)(make_model(1))
        self.assertEqual(late["EM"], 0.5)
        self.assertAlmostEqual(late["F1"], (4 + 4 * 2 / 3) / 8, 12)
        with mock.patch.object(texts, "LONGEST_ANSWER", 1):  # one of the two words of "red fish"
            short = found.make_test(args)(make_model(0))
        self.assertEqual(short["EM"], 7 / 8)
        self.assertAlmostEqual(short["F1"], (7 + 2 / 3) / 8, 12)

    def test_squad_runs(self):
        for name in ("train-v1.1.json", "dev-v1.1.json"):
            self.write_questions(name)
        self.assertEqual(len(self.run_example(*self.small, "--task", "answer", "--epochs", 1)), 1)
        self.assertRegex(self.printed, "test EM [0-9.]+ %, test F1 [0-9.]+ %")
        self.write_questions("dev-v1.1.json", answers=False)
        with self.assertRaisesRegex(SystemExit, "question 1 has no answer, expected the format of SQuAD 1.1"):
            self.run_example(*self.small, "--task", "answer")
        os.remove(os.path.join(self.folder, "dev-v1.1.json"))
        with self.assertRaisesRegex(SystemExit, "has 0 files dev.*json, expected one"):
            self.run_example(*self.small, "--task", "answer")

    def test_glue(self):
        import bert
        import texts
        for name in ("train.tsv", "dev.tsv"):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write('index\tsentence1\tsentence2\tgold\n' + '0\ta "cat\ta red dog\tno\n1\twho\twhat\tyes\n' * 4)
        path, columns = os.path.join(self.folder, "dev.tsv"), ("--columns", "sentence1", "sentence2", "--label", "gold")
        tokens, segments, labels = texts.read_table(path, ("sentence1", "sentence2"), "gold", self.tokenizer, 12)
        self.assertEqual(labels, ["no", "yes"] * 4)
        self.assertEqual(tokens[0].tolist(), [2, 9, 1, 10, 3, 9, 15, 11, 3, 0, 0, 0])  # a quote is an unknown word
        self.assertEqual(segments[0].tolist(), [0] * 5 + [1] * 4 + [0] * 3)
        self.assertEqual(len(self.run_example(*self.small, *columns, "--epochs", 1)), 1)
        self.assertRegex(self.printed, "test accuracy [0-9.]+ %, test F1 [0-9.]+ %")
        with self.assertRaisesRegex(SystemExit, "train.tsv has no column label"):
            self.run_example(*self.small, *columns[:3])
        # four classes found for labels 0 1 1 1: two right; of class 1 one is found, which is right, and three are expected
        args, found = types.SimpleNamespace(rank=0, ranks=1, device="cpu"), torch.eye(2)[[0, 1, 0, 0]]
        test = [torch.arange(4)[:, None], torch.zeros(4, 1), torch.tensor([0, 1, 1, 1])]
        scores = bert.make_class_test(args, test, 2)(lambda tokens, segments: found[tokens[:, 0]])
        self.assertEqual(scores, dict(accuracy=0.5, F1=2 * 1 / (1 + 3)))


class PublishedOptions(Case):
    """The arguments of the published scripts."""

    def parse_arguments(self, *arguments, published=(), **defaults):
        """Parse the command line of an example with these defaults; published: the defaults of each method's own script."""
        import common
        before, sys.argv = sys.argv, ["x", *map(str, arguments)]
        try:
            return common, common.parse_arguments(common.make_parser("", **defaults), published)
        finally:
            sys.argv = before

    def make_method(self, *arguments, **standard):
        common, args = self.parse_arguments(*arguments, **standard)
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        return common.Method(args, model)

    def test_published_defaults(self):
        import resnet
        for method, imagenet, expected in (
                ("kaisa", False, dict(batch_size=128, lr=0.1, damping=0.003, inv_update_steps=10, lr_decay=[35, 75, 90])),
                ("eigen_dp", False, dict(damping=0.03, inv_update_steps=1, lr=0.1)),
                ("eva", True, dict(damping=0.001, batch_size=64, factor_update_steps=1, label_smoothing=0.1)),
                ("kaisa", True, dict(damping=0.001, factor_update_steps=10, inv_update_steps=100, lr=0.0125, epochs=55)),
                ("mfac", False, dict(lr=0.001, damping=1e-5, ngrads=512, weight_decay=0.003, momentum=0.0, epochs=164))):
            found = []

            def record_arguments(args, *rest):
                found.append(args)
                return [1.0]
            with mock.patch("common.train", record_arguments), mock.patch.object(resnet, "make_resnet"), \
                    mock.patch.object(resnet, "make_image_batches", return_value=(None, None)):
                before, sys.argv = sys.argv, ["resnet.py", "--method", method] + ["--imagenet"] * imagenet
                try:
                    resnet.main()
                finally:
                    sys.argv = before
            self.assertEqual({name: getattr(found[0], name) for name in expected}, expected, (method, imagenet))
        _, args = self.parse_arguments("--method", "eva", "--damping", 0.5, published=dict(eva=dict(damping=0.03, lr=0.2)))
        self.assertEqual((args.damping, args.lr), (0.5, 0.2))  # the command line wins

    def test_published_schedules(self):
        lists = ("--lr-decay", 1, 3, "--damping-decay", 1, "--update-steps-decay", 2)
        for name in ("kaisa", "eigen_dp"):
            method, found = self.make_method("--method", name, *lists, lr=1.0, damping=0.5), []
            for _ in range(4):
                k = method.preconditioner
                group = k.param_groups[0] if name == "eigen_dp" else dict(
                    damping=k.damping, kfac_update_freq=k.inv_update_steps, lr=k.lr)
                found.append([round(method.optimizer.param_groups[0]["lr"], 6), round(group["lr"], 6), group["damping"],
                              group["kfac_update_freq"]])
                method.end_epoch()
            self.assertEqual(found, [[1, 1, 0.5, 10], [0.1, 0.1, 0.25, 10], [0.1, 0.1, 0.25, 100], [0.01, 0.01, 0.25, 100]],
                             name)
        for name in ("natgrad", "mfac", "none"):
            method = self.make_method("--method", name, "--lr-decay", 1)
            method.end_epoch()
            self.assertAlmostEqual(method.optimizer.param_groups[0]["lr"], 0.01)
            if name == "natgrad":
                self.assertAlmostEqual(method.preconditioner.lr(0), 0.01)
            with self.assertRaisesRegex(SystemExit, "--damping-decay needs --method kaisa, eigen_dp"):
                self.make_method("--method", name, "--damping-decay", 2)

    def test_plateau_reduces_the_learning_rate(self):
        for name in ("none", "eva"):
            method, found = self.make_method("--method", name, "--patience", 1, lr=1.0), []
            for loss in (3.0, 2.0, 2.5, 2.5, 1.0):
                method.end_epoch(loss)
                found.append(round((method.preconditioner or method.optimizer).param_groups[0]["lr"], 6))
            self.assertEqual(found, [1, 1, 1, 0.1, 0.1], name)
        with self.assertRaisesRegex(SystemExit, "--patience: expected 0 with --lr-decay"):
            self.make_method("--patience", 1, "--lr-decay", 2)

    def test_norm_of_preconditioned_gradient_is_clipped(self):
        method = self.make_method("--method", "kaisa", "--clip-norm", 1e-3, lr=1.0, momentum=0.0, weight_decay=0.0)
        parameters = [p for group in method.optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in parameters]
        torch.nn.functional.cross_entropy(method.preconditioner.model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
        method.step()
        moved = sum((p - q).square().sum().item() for p, q in zip(parameters, before))**0.5
        self.assertAlmostEqual(moved, 1e-3, delta=1e-6)
        with self.assertRaisesRegex(SystemExit, "--clip-norm needs --method"):
            self.make_method("--method", "mfac", "--clip-norm", 1)

    def test_noam_schedule(self):
        """lr = 2 width^-1/2 min(n^-1/2, n warmup^-3/2) in step n, as a factor of lr = 2."""
        import translate
        common, args = self.parse_arguments("--method", "none", lr=2.0)
        method, found = common.Method(args, torch.nn.Linear(2, 2), step_factor=translate.make_noam_factor(16, 4)), []
        for _ in range(9):
            found.append(method.optimizer.param_groups[0]["lr"])
            method.step()
            method.end_epoch(1.0)
        for n, expected in ((1, 0.0625), (2, 0.125), (4, 0.25), (9, 1 / 6)):
            self.assertAlmostEqual(found[n - 1], expected, 12)

    def test_bleu(self):
        """Counted by hand: 5/7 + 5/5 words, 3/6 + 4/4 pairs, 1/5 + 3/3 triples, 0/4 + 2/2 of four words."""
        import metrics
        pairs = [("the cat the cat on the mat", "the cat is on the mat"), ("a b c d e", "a b c d e f")]
        counts = [metrics.bleu_counts(*(text.split() for text in pair)) for pair in pairs]
        self.assertEqual(counts[0], [5, 3, 1, 0, 7, 6, 5, 4, 7, 6])
        total = [a + b for a, b in zip(*counts)]
        self.assertAlmostEqual(metrics.bleu(total), (10 / 12 * 7 / 10 * 4 / 8 * 2 / 6)**0.25, 12)
        self.assertEqual(metrics.bleu(counts[0]), 0)  # no four words in a row
        self.assertAlmostEqual(metrics.bleu(metrics.bleu_counts("abcd", "abcdef")), math.exp(1 - 6 / 4), 12)  # too short
        self.assertAlmostEqual(metrics.bleu(metrics.bleu_counts("abcdef", "abcd")), (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3)**0.25, 12)
        self.assertEqual(metrics.bleu([0] * 10), 0)

    def test_exact_match_and_f1(self):
        """As SQuAD compares: without case, punctuation and articles; the best of several answers."""
        import metrics
        self.assertEqual(metrics.normalize("The Cat, (an) O'Neil's A-team."), ["cat", "oneils", "ateam"])
        words = metrics.normalize("the red cat sat")
        self.assertEqual(metrics.exact_and_f1(words, [["dog"], ["red", "cat", "cat"]]), (0.0, 2 * 2 / (3 + 3)))
        self.assertEqual(metrics.exact_and_f1(words, [["dog"], ["red", "cat", "sat"]]), (1.0, 1.0))
        self.assertEqual(metrics.exact_and_f1([], [["dog"]]), (0.0, 0.0))
        # three right of four found and six expected: precision 3/4, recall 1/2
        self.assertAlmostEqual(metrics.f1(3, 4, 6), 2 * 0.75 * 0.5 / 1.25, 12)

    def test_skip_layers_is_passed_on(self):
        for name in ("kaisa", "natgrad", "eva-natgrad", "spngd"):
            k = self.make_method("--method", name, "--skip-layers", "^0$").preconditioner
            rows = {row["name"]: row["why"] for row in k.explain()}
            self.assertIn("skip_layers", rows["0.weight"])
            self.assertNotIn("skip_layers", rows["2.weight"])
        with self.assertRaisesRegex(SystemExit, "--skip-layers needs"):
            self.make_method("--method", "eva", "--skip-layers", "^0$")
        common, args = self.parse_arguments("--method", "eva")
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
        rows = {row["name"]: row["why"] for row in common.Method(args, model, vocabulary=3).preconditioner.explain()}
        self.assertIn("skip_layers", rows["1.weight"])

    def test_kl_clip_none_disables_clip(self):
        for name in ("kaisa", "natgrad", "eva-natgrad"):
            self.assertEqual(self.make_method("--method", name, "--kl-clip", "none").preconditioner._core.get("clip"), "none")

    def test_micro_batches_match_whole_batch(self):
        x, y, found = torch.randn(32, 4), torch.randint(3, (32,)), []
        for size, parts in ((16, 1), (8, 2)):
            common, args = self.parse_arguments("--method", "natgrad", "--batch-size", size, "--accumulation-steps", parts,
                                                "--damping", 0.1)
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
            with contextlib.redirect_stdout(io.StringIO()):
                losses = common.train(args, model, lambda: [[x[:16], y[:16]], [x[16:], y[16:]]],
                                      common.make_classification_loss(args))
            found.append(torch.tensor(losses + [p.sum().item() for p in model.parameters()]))
        self.assertLess((found[0] - found[1]).abs().max().item(), 1e-4)  # sums in another order, through two inverses
        common, args = self.parse_arguments("--batch-size", 8, "--accumulation-steps", 2)
        self.assertEqual([len(batch[0]) for batch in common.shuffled_batches(args, x)()], [16, 16])

    def test_label_smoothing_matches_pytorch(self):
        model, batch = torch.nn.Linear(4, 3), [torch.randn(6, 4), torch.randint(3, (6,))]
        common, args = self.parse_arguments("--label-smoothing", 0.1)
        expected = torch.nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
        self.assertEqual(common.make_classification_loss(args)(model, batch)[0].item(), expected.item())


if __name__ == "__main__":
    unittest.main()
