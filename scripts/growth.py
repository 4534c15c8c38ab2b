#!/usr/bin/env python3
"""Measure how the time of a training step grows with the batch, the size of the image and the width of the network.

    scripts/growth.py measure FILE.json [--program build/natgrad] [--threads 2]
    scripts/growth.py draw FILE.json PICTURE.svg      needs gnuplot
    scripts/growth.py table FILE.json

Each point is `natgrad train` with sgd and with natgrad (all settings at their defaults) on synthetic data, alternately: 30 steps,
of which the first 10 are not counted, so the mean has two solves.  The smaller mean of two runs counts.  `measure` continues a
FILE that has some of the points.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STEPS, FIRST, RUNS, METHODS = 30, 10, 2, ("sgd", "natgrad")
# name of the growth: unit, sizes, and the model, image and batch of a size
GROWTHS = {
    "batch": ("samples", (16, 32, 64, 128, 256), lambda n: ("resnet20", "32x32x3", n)),
    "image": ("pixels", (16, 24, 32, 48, 64), lambda n: ("resnet20", f"{n}x{n}x3", 32)),
    "width": ("units", (256, 512, 1024, 2048), lambda n: (f"mlp-{n}-2", "32x32x3", 64)),
    "channels": ("times 16 channels", (1, 2, 4), lambda n: (f"wrn-16-{n}", "32x32x3", 32)),
}


def measure_step(program, method, model, image, batch):
    """Return the mean time of a step in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "run")
        subprocess.run([program, "train", "--data", f"synthetic:classes=10,image={image},train={STEPS * batch},test=10", "--model", model,
                        "--batch", str(batch), "--method", method, "--steps", str(STEPS), "--log-every", "1", "--out", out],
                       check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(out, "log.jsonl"), encoding="utf-8") as log:
            steps = [sum(line["ms"].values()) for line in map(json.loads, log) if line["event"] == "step"]
    return sum(steps[FIRST:]) / len(steps[FIRST:])


def measure(file, program):
    found = json.loads(file.read_text()) if file.exists() else {}
    for growth, (_, sizes, case) in GROWTHS.items():
        for size in sizes:
            key = f"{growth} {size}"
            if key in found:
                continue
            runs = [[measure_step(program, method, *case(size)) for method in METHODS] for _ in range(RUNS)]
            found[key] = dict(zip(METHODS, (min(times) for times in zip(*runs))))
            print(key, *(f"{name} {ms:.1f}" for name, ms in found[key].items()), file=sys.stderr)
            file.write_text(json.dumps(found, indent=1))


def draw(file, picture):
    found, parts = json.loads(file.read_text()), []
    for growth, (unit, sizes, case) in GROWTHS.items():
        model, image, batch = case("N")
        title = {"batch": f"{model}, {image}, batch N", "image": f"{model}, NxNx3, batch {batch}"}.get(growth, f"{model}, batch {batch}")
        lines = ["$%s << END" % growth, *(f"{n} {found[f'{growth} {n}']['sgd']} {found[f'{growth} {n}']['natgrad']}" for n in sizes), "END",
                 f'set title "{title}"', f'set xlabel "N, {unit}"', f"set xtics ({', '.join(map(str, sizes))})",
                 f"set xrange [{sizes[0] * 0.8}:{sizes[-1] * 1.25}]",
                 f'plot ${growth} using 1:2 with linespoints title "sgd", ${growth} using 1:3 with linespoints title "natgrad"']
        parts.append("\n".join(lines))
    script = "\n".join(['set terminal svg size 900,620 background "white"', f'set output "{picture}"', "set logscale xy", "set key left top",
                        'set ylabel "ms a step"', "set grid", "set multiplot layout 2,2", *parts, "unset multiplot", ""])
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def table(file):
    found = json.loads(file.read_text())
    print("| growth with | size | sgd, ms | natgrad, ms | ratio |\n|---|--:|--:|--:|--:|")
    for growth, (unit, sizes, _) in GROWTHS.items():
        for n in sizes:
            ms = found[f"{growth} {n}"]
            print(f"| {growth} | {n} {unit} | {ms['sgd']:.3g} | {ms['natgrad']:.3g} | {ms['natgrad'] / ms['sgd']:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "draw", "table"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("picture", nargs="?")
    parser.add_argument("--program", default="build/natgrad")
    parser.add_argument("--threads", default="2")
    given = parser.parse_args()
    if given.what == "measure":
        os.environ["NG_THREADS"] = given.threads
        measure(given.file, given.program)
    elif given.what == "draw":
        if not given.picture:
            parser.error("draw needs the name of the picture")
        draw(given.file, given.picture)
    else:
        table(given.file)


if __name__ == "__main__":
    main()
