#!/usr/bin/env python3
"""Make the tables of docs/performance.md from the JSON of `natgrad bench`.

    scripts/performance.py measure FOLDER [--program build/natgrad] [--only NAME ...]
    scripts/performance.py tables FOLDER [--write docs/performance.md]

`measure` runs the commands of TABLES and stores the lines of each in FOLDER/NAME.jsonl.  `tables` prints one table for
each file, or writes them into the page: a table replaces the text between `<!-- table NAME -->` and `<!-- end NAME -->`.
Times of a peer come from FOLDER/NAME.peer.json, {"peer": "PyTorch 2.13", "ms": {"CASE": 12.3}}, as written by
bench/vs_torch.py, bench/vs_torch_train.py and bench/vs_kaisa.py with --peer FILE.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

# name of the table: arguments of `natgrad bench`, and a pattern of the cases to print
TABLES = {
    "kfac": ("kfac --model resnet18 --batch 32", r"/sum/"),
    "kfac-layers": ("kfac --model resnet18 --batch 32", r"(?<!/sum)/\w+$"),
    "window-f32": ("window --method mfac --window 1024 --repeat 15", r"^[^/]*$"),
    "window-bf16": ("window --method mfac --window 1024 --window-dtype bf16 --repeat 15", r"^[^/]*$"),
    "window-topk": ("window --method efcp --model 11.2e6 --window 1024 --window-dtype bf16 --window-topk block", r""),
    "eva": ("fused-eva", r""),
    "train": ("train --model resnet18 --batch 32", r""),
    "norms": ("train --model resnet50 --batch 8 --repeat 3", r"norm|both"),
    "state": ("state", r""),
}


def run_benchmarks(folder, program, only):
    folder.mkdir(parents=True, exist_ok=True)
    lines = {}
    for name, (arguments, _) in TABLES.items():
        if only and name not in only:
            continue
        if arguments not in lines:
            print(f"natgrad bench {arguments}", file=sys.stderr)
            command = [program, "bench", *arguments.split(), "--json"]
            lines[arguments] = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
        (folder / f"{name}.jsonl").write_text(lines[arguments])


def format_ms(ms):
    return "" if ms is None else f"{ms:,.0f}" if ms >= 1000 else f"{ms:.3g}"


def make_table(folder, name):
    arguments, cases = TABLES[name]
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    machine = next(line["machine"] for line in lines if "machine" in line)
    peer_file = folder / f"{name}.peer.json"
    peer = json.loads(peer_file.read_text()) if peer_file.exists() else {"peer": None, "ms": {}}
    out = [f"    natgrad bench {arguments}", "",
           f"{machine['processor']}, {machine['threads']} threads, {machine['blas'].split(' NO_')[0]} (kernel {machine['kernel']}), "
           f"commit {machine['commit']}; median and distance between the quartiles of {machine['repeat']} rounds.", ""]
    head = ["work", "median, ms", "spread, ms", "lower bound, ms", "ratio to the bound"]
    if peer["peer"]:
        head += [f"{peer['peer']}, ms", "ratio to the peer"]
    out += ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for line in lines:
        if "case" not in line or not re.search(cases, line["case"]):
            continue
        ratio = line["ratio"]
        cells = [f"`{line['case']}`", format_ms(line["median_ms"]), format_ms(line["spread_ms"]), format_ms(line["floor_ms"]),
                 "" if ratio is None else f"{ratio:.2f}"]
        if peer["peer"]:
            theirs = peer["ms"].get(line["case"])
            cells += [format_ms(theirs), "" if theirs is None else f"{line['median_ms'] / theirs:.2f}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "tables"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/natgrad")
    parser.add_argument("--only", nargs="*", choices=TABLES)
    parser.add_argument("--write", type=pathlib.Path, metavar="PAGE")
    args = parser.parse_args()
    if args.what == "measure":
        run_benchmarks(args.folder, args.program, args.only)
        return
    page = args.write.read_text() if args.write else None
    for name in TABLES:
        if not (args.folder / f"{name}.jsonl").exists():
            continue
        text = make_table(args.folder, name)
        if page is None:
            print(f"<!-- table {name} -->\n{text}<!-- end {name} -->\n")
        elif f"<!-- table {name} -->" in page:
            start = page.index(f"<!-- table {name} -->") + len(f"<!-- table {name} -->")
            end = page.index(f"<!-- end {name} -->", start)
            page = page[:start] + "\n" + text + page[end:]
    if page is not None:
        args.write.write_text(page)


if __name__ == "__main__":
    main()
