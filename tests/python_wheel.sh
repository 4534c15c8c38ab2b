#!/usr/bin/env bash
# python_wheel.sh: `pip install .` into a fresh environment, on what the Python index has; then the tests that need
# no PyTorch on what was installed, and that it has a BLAS of its own.  Takes a minute.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v python3 >/dev/null && python3 -m venv "$work/env" 2>/dev/null || { echo "skipped: no Python 3 with venv"; exit 77; }
"$work/env/bin/pip" download --quiet --no-deps -d "$work" "scikit-build-core>=0.10" scipy-openblas32 >/dev/null 2>&1 ||
  { echo "skipped: the Python index does not answer"; exit 77; }
mkdir "$work/tree" # a copy: the build is in the tree
tar -C "$NG_TEST_SOURCE_DIR" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$work/tree" -xf -
"$work/env/bin/pip" install --quiet "$work/tree"
cd "$work"
unset NATGRAD_LIBRARY
export PYTHONPATH=$NG_TEST_SOURCE_DIR/tests/python NG_TEST_SOURCE_DIR
"$work/env/bin/python" - <<'END'
import ctypes, glob, os, natgrad
built = natgrad.build_info()
print(built["blas"], "kernels", built["kernel"])
assert built["linalg"] == "cpu" and built["blas"].startswith("OpenBLAS"), built
lib = os.path.join(os.path.dirname(natgrad.__file__), "lib")
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "blas" in line}
assert mapped == {os.path.join(lib, "libscipy_openblas.so")}, mapped
try:
    ctypes.CDLL(None).sgemm_
except AttributeError:
    pass
else:
    raise AssertionError("sgemm_ is visible in the process: the package brought a BLAS under its usual name")
END
"$work/env/bin/python" -m unittest -q test_core test_abi
