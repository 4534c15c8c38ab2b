#!/usr/bin/env python3
"""migrating.py: print the tables of docs/migrating.md: classes, scripts and arguments of published programs with their states.

    PYTHONPATH=python NATGRAD_LIBRARY=build/libnatgrad.so.0 scripts/migrating.py
    scripts/migrating.py --names SCRIPT    print the names of the package `kfac` that a script uses

States of a class: same: arguments and results as published.  differs: the note or the section of the program lists the
differences.  refused: natgrad.compat has no such name.  A script is "same" if each name of its package that it uses exists in
natgrad.compat, "refused" if one does not.
"""
import ast
import sys

KAISA, LZHANGBV, EVA = "gpauloski/kfac-pytorch", "lzhangbv/kfac_pytorch", "lzhangbv/eva, ffhh927/fused_eva"
EFCP, CHAINER = "IST-DASLab/EFCP", "tyohei/chainerkfac"

CLASSES = (  # (program, published names, state, note)
    (KAISA, "KFACPreconditioner", "differs", "the section of the program lists the differences"),
    (KAISA, "GPTNeoXKFACPreconditioner", "differs", "inverses are rejected"),
    (KAISA, "BaseKFACPreconditioner", "same", "in `base_preconditioner`: for annotations and isinstance"),
    (KAISA, "LambdaParamScheduler exp_decay_factor_averaging AllreduceMethod AssignmentStrategy ComputeMethod "
            "DistributedStrategy", "same", ""),
    (KAISA, "KAISAAssignment KFACBaseLayer KFACEigenLayer KFACInverseLayer", "refused",
     "internal classes; `natgrad plan` prints an assignment"),
    (LZHANGBV, "MPD_KFAC DP_KFAC KFAC_INV KFAC_EIGEN KFAC_INV_DP KFAC_EIGEN_DP", "differs",
     "`exclude_parts` is rejected, except the empty text"),
    (LZHANGBV, "KFACParamScheduler get_kfac_module kfac_mappers", "same", ""),
    (EVA, "EVA Eva KFAC ADASGD SAM", "differs", "`get_kfac_module()` without a name returns `eigen_dp`; `Eva` is a second name"),
    (EVA, "FusedEVA", "differs", "without TF32"),
    (EVA, "ADASGD2", "refused", "also `get_kfac_module(\"adasgd2\")`"),
    ("IST-DASLab/M-FAC", "MFAC", "same", "`moddev`, `optdev`, `gpus` other than the CPU are rejected"),
    (EFCP, "DenseMFAC SparseGradientMFAC GGT", "same", ""),
    (EFCP, "SparseGGT SparseGGT_DenseFormat SparseGGT_SparseFormatSpmm", "same",
     "one class; the last two are the published names, which differ in the storage of gradients"),
    (EFCP, "LowRankMFAC RankOneMFAC", "differs", "momentum and rank 1 work; the published classes fail"),
    (EFCP, "LowRankAggregateMFAC RankOneAggregateMFAC", "differs", "natgrad draws the first Q, independent of the weights"),
    (EFCP, "SparseSGD SparseAdam SparseAdaGrad", "refused", "`natgrad.MFAC(model, method=\"topk-sgd\")`, `topk-adam`, `topk-adagrad`"),
    (EFCP, "AdaGrad ScaledSparseAdaGrad Shampoo MySGD MyAdam SimpleBlockAdamGPU SimpleBlockAdamCPU BatchBlockAdam SWA",
     "refused", "use the first-order methods of PyTorch; `natgrad.Shampoo`"),
    ("IST-DASLab/ISTA-DASLab-Optimizers", "SparseMFAC", "same", ""),
    (CHAINER, "SPNGD", "differs", "a class for PyTorch; the published optimizer is of Chainer"),
)
SCRIPTS = (  # (program, script, state, what replaces it, note)
    (KAISA, "examples/torch_cifar10_resnet.py", "same", "resnet.py", ""),
    (KAISA, "examples/torch_imagenet_resnet.py", "same", "resnet.py --imagenet", ""),
    (KAISA, "examples/torch_language_model.py", "same", "language.py", "needs torchtext"),
    (LZHANGBV, "examples/pytorch_cifar10_resnet.py", "same", "resnet.py --method eigen_dp", "imports Horovod"),
    (LZHANGBV, "examples/pytorch_imagenet_resnet.py", "same", "resnet.py --imagenet --method eigen_dp", "imports Horovod"),
    (LZHANGBV, "examples/pytorch_multi30k_transformer.py", "same", "translate.py --method eigen_dp",
     "imports Horovod; needs `Field` of an old torchtext"),
    (LZHANGBV, "examples/pytorch_squad_bert.py", "same", "bert.py --task answer --method eigen_dp",
     "imports Horovod and `transformers.data.processors`, which transformers 5 does not have"),
    (LZHANGBV, "examples/pytorch_wikitext_rnn.py", "refused", "",
     "calls `kfac.KFAC` with TCov and TInv, which its own package does not have"),
    (EVA, "examples/pytorch_cifar10_resnet.py", "same", "resnet.py --method eva", ""),
    (EVA, "examples/pytorch_imagenet_resnet.py", "same", "resnet.py --imagenet --method eva", ""),
    (EVA, "examples/pytorch_mnist_autoencoder.py", "same", "", ""),
    ("IST-DASLab/M-FAC", "main_optim.py", "differs", "resnet.py --method mfac", "devices other than the CPU are rejected"),
    ("IST-DASLab/M-FAC", "main_prun.py", "refused", "", "pruning"),
    (EFCP, "main.py", "differs", "resnet.py --method efcp",
     "needs GPUs; choices of `--optim` without a class here are refused"),
    (EFCP, "huggingface/examples/MFAC/run_glue.py", "differs", "bert.py --method efcp", "imports modules that commit a33a3a5 does not have"),
    (EFCP, "huggingface/examples/MFAC/run_qa.py", "differs", "bert.py --task answer --method efcp",
     "imports modules that commit a33a3a5 does not have"),
    (CHAINER, "examples/mnist/train.py", "refused", "mnist.py --method spngd", "Chainer; `natgrad train --config` has its keys"),
    (CHAINER, "examples/cifar10/train.py", "refused", "resnet.py --method spngd", "Chainer; as above"),
    (CHAINER, "examples/imagenet/train.py", "refused", "resnet.py --imagenet --method spngd", "Chainer; as above"),
)


def make_class_table():
    lines = ["| program | class or function | state | note |", "|---|---|---|---|"]
    for program, names, state, note in CLASSES:
        lines.append(f"| {program} | {', '.join(f'`{name}`' for name in names.split())} | {state} | {note} |")
    return "\n".join(lines) + "\n"


def make_script_table():
    lines = ["| program | script | state | example of natgrad | note |", "|---|---|---|---|---|"]
    for program, script, state, example, note in SCRIPTS:
        example = f"`examples/torch/{example}`" if example else ""
        lines.append(f"| {program} | `{script}` | {state} | {example} | {note} |")
    return "\n".join(lines) + "\n"


def make_table():
    """Return the table of arguments; methods whose argument has the same meaning share a line."""
    import natgrad
    methods = {}
    for method in natgrad.methods():
        for row in natgrad.published(method["name"]):
            methods.setdefault((row["name"], row["option"], row["meaning"].replace("|", "\\|")), []).append(method["name"])
    lines = ["| argument | methods | state | option of natgrad | meaning |", "|---|---|---|---|---|"]
    for (name, option, meaning), names in methods.items():
        state = "refused, except one value" if "only" in meaning and "is accepted" in meaning else "same"
        lines.append(f"| `{name}` | {', '.join(names)} | {state} | {f'`{option}`' if option else ''} | {meaning} |")
    return "\n".join(lines) + "\n"


def find_names(path):
    """Return the names of the package `kfac` that a script uses, without the prefix."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kfac":
            found.update(f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names if name.name.split(".")[0] == "kfac")
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("kfac."):
            found.add(ast.unparse(node))
    return sorted(name[len("kfac."):] for name in found if "." in name and "(" not in name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--names"]:
        print("\n".join(find_names(sys.argv[2])))
    else:
        print("\n".join((make_class_table(), make_script_table(), make_table())), end="")
