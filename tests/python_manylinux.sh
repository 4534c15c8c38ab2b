#!/usr/bin/env bash
# python_manylinux.sh: build the source distribution and the wheels of manylinux_2_28 with .ci/wheels.  Takes minutes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env" 2>/dev/null || { echo "skipped: no Python 3 with venv"; exit 77; }
"$work/env/bin/pip" download --quiet --no-deps -d "$work" ziglang >/dev/null 2>&1 ||
  { echo "skipped: the Python index does not answer"; exit 77; }
[[ $(uname -m) == x86_64 ]] || { echo "skipped: the processor is not x86_64"; exit 77; }
mkdir "$work/tree" # a copy: the build leaves no files in the tree
tar -C "$NG_TEST_SOURCE_DIR" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$work/tree" -xf -
unset NATGRAD_LIBRARY PYTHONPATH NG_TEST_SOURCE_DIR
"$work/tree/.ci/wheels" "$work/dist"
