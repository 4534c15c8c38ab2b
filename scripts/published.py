#!/usr/bin/env python3
"""Run the tests or a script of a published program with natgrad.compat in place of its package `kfac` (M-FAC: `optim`).

    scripts/published.py FOLDER                  the 14 tests of a clone of gpauloski/kfac-pytorch that use public names
    scripts/published.py FOLDER SCRIPT [ARGS]    a script of the clone, unchanged; also under torchrun

natgrad must be importable (pip install ., or PYTHONPATH=python NATGRAD_LIBRARY=build/libnatgrad.so.0).  Tests need pytest.
"""
import importlib
import os
import pkgutil
import runpy
import sys

TESTS = ("preconditioner_test.py", "training_test.py", "hyperparams_test.py", "scheduler_test.py")


def replace_package():
    """Let `import kfac`, `import kfac.MODULE` and M-FAC's `import optim` find natgrad.compat and its public modules."""
    import natgrad.compat as kfac
    sys.modules["kfac"] = sys.modules["optim"] = kfac
    for module in pkgutil.iter_modules(kfac.__path__):
        if not module.name.startswith("_"):
            sys.modules[f"kfac.{module.name}"] = importlib.import_module(f"natgrad.compat.{module.name}")


def main(arguments):
    if not arguments or not os.path.isdir(arguments[0]):
        print(__doc__, file=sys.stderr)
        return 2
    folder, rest = os.path.abspath(arguments[0]), arguments[1:]
    replace_package()
    if rest:
        script = os.path.join(folder, rest[0])
        sys.path[:0] = [os.path.dirname(script), folder]
        sys.argv = [script, *rest[1:]]
        runpy.run_path(script, run_name="__main__")
        return 0
    import pytest
    sys.path.insert(0, folder)
    os.chdir(folder)
    return pytest.main(["-q", "-p", "no:cacheprovider", *(os.path.join("tests", name) for name in TESTS)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
