#!/usr/bin/env python3
"""migrating.py: print the table of the arguments of published programs for docs/migrating.md.

    PYTHONPATH=python NATGRAD_LIBRARY=build/libnatgrad.so.0 scripts/migrating.py
"""
import natgrad


def make_table():
    """Return the table; methods whose argument has the same meaning share a line."""
    methods = {}
    for method in natgrad.methods():
        for row in natgrad.published(method["name"]):
            methods.setdefault((row["name"], row["option"], row["meaning"].replace("|", "\\|")), []).append(method["name"])
    lines = ["| argument | methods | option of natgrad | meaning |", "|---|---|---|---|"]
    for (name, option, meaning), names in methods.items():
        lines.append(f"| `{name}` | {', '.join(names)} | {f'`{option}`' if option else ''} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(make_table(), end="")
