#!/usr/bin/env python3
"""The first tables of docs/scaling.md from `natgrad plan --json`:

    natgrad plan --model resnet50 --ranks 1,4,16,64,256,1024,4096 --json | bench/plan_tables.py

"64 / 4" ranks: 64 ranks in model groups of 4.  A cell has the GB of the rank with most memory, the MB that a rank passes to
collectives in a step, and the milliseconds that the method adds to a step."""

import json
import sys

COLUMNS = {
    "natgrad, comm-opt": "comm-opt GB, MB, ms",
    "natgrad, mem-opt": "mem-opt",
    "natgrad, statistics=owner": "`statistics = owner`",
    "natgrad, statistics=local": "`statistics = local` (DP-KFAC)",
    "kaisa, comm-opt": "KAISA, comm-opt",
}


def format_cell(row):
    return f"{row['held_most'] / 1e9:.2f}, {row['sent_a_step'] / 1e6:.0f}, {row['added_ms']:.1f}"


def format_fastest(rows):
    name, row = min(rows.items(), key=lambda item: item[1]["added_ms"])
    return f"{name.removeprefix('natgrad, ').removeprefix('statistics=')}, {row['added_ms']:.1f} ms"


def main():
    ranks = {}
    for line in sys.stdin:
        row = json.loads(line)
        if "strategy" in row:  # the line with the recommendation has no strategy
            ranks.setdefault((row["ranks"], row["model_parallel"]), {})[row["strategy"]] = row
    heads = ["ranks", "step without, ms", *COLUMNS.values(), "fastest with averages everywhere", "fastest of ours"]
    print("| " + " | ".join(heads) + " |")
    print("|--:|--:|" + "---|" * (len(heads) - 2))
    for (n, members), rows in ranks.items():
        ours = {k: v for k, v in rows.items() if k.startswith("natgrad") and "local" not in k}
        everywhere = {k: v for k, v in ours.items() if "statistics" not in k}
        row = next(iter(rows.values()))
        cells = [f"{n:,}" if members == 1 else f"{n:,} / {members}", f"{row['compute_ms'] + row['parts_ms']['gradients']:.0f}"]
        for name in COLUMNS:
            alone = n == 1 and not name.endswith("comm-opt")
            cells.append("-" if alone or name not in rows else format_cell(rows[name]))
        print("| " + " | ".join([*cells, format_fastest(everywhere), format_fastest(ours)]) + " |")


if __name__ == "__main__":
    main()
