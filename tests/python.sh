#!/usr/bin/env bash
# python.sh LIBRARY any | 1 | 2 TEST...: run tests of the Python package, tests/python/TEST.py, with the first Python 3
# (any), or the first Python with PyTorch 1.x or 2.x.  The package comes from the tree, the library from the build.  The
# Pythons are NG_TEST_PYTHON, the Python of scripts/torch.sh, python3, /usr/bin/python3.
set -euo pipefail
library=$1 major=$2
shift 2
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$NG_TEST_SOURCE_DIR/python:$NG_TEST_SOURCE_DIR/tests/python
export NATGRAD_LIBRARY=$library OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 # small networks, on machines that are shared
cached=$("$NG_TEST_SOURCE_DIR/scripts/torch.sh" --where)/bin/python
for python in ${NG_TEST_PYTHON:-} "$cached" python3 /usr/bin/python3; do
  command -v "$python" >/dev/null || continue
  if [[ $major == any ]]; then
    version=$("$python" -c 'import ctypes, sys; print(sys.version.split()[0])' 2>/dev/null) || continue
  else
    version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) || continue
    [[ $version == "$major".* ]] || continue
  fi
  [[ $major == any ]] && echo "Python $version, $python" || echo "PyTorch $version, $python"
  for test in "$@"; do
    "$python" -W error::ResourceWarning -m unittest -q "$test"
  done
  exit
done
case $major in
  any) echo "skipped: no Python 3 (apt-get install python3)" ;;
  1) echo "skipped: no PyTorch 1.x (apt-get install python3-torch on Debian 12)" ;;
  *) echo "skipped: no PyTorch $major.x (scripts/torch.sh)" ;;
esac
exit 77
