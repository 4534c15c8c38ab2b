#!/usr/bin/env bash
# python_wheel.sh: run the README's commands for PyTorch and its example in a fresh environment with packages of the
# Python index; check that the wheel has a BLAS of its own.  The environment uses a PyTorch of this machine
# (scripts/torch.sh, Debian), because PyTorch is large; without PyTorch the steps that need it are skipped.  The second
# command runs some tests of each kind (-k).  Takes minutes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v python3 >/dev/null && python3 -m venv "$work/env" 2>/dev/null || { echo "skipped: no Python 3 with venv"; exit 77; }
"$work/env/bin/pip" download --quiet --no-deps -d "$work" "scikit-build-core>=0.10" scipy-openblas32 >/dev/null 2>&1 ||
  { echo "skipped: the Python index does not answer"; exit 77; }
rm -rf "$work/env"
mkdir "$work/tree" # a copy: the build is in the tree
tar -C "$NG_TEST_SOURCE_DIR" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$work/tree" -xf -
cd "$work/tree"

mapfile -t commands < <(awk '/^## PyTorch/ { on = 1; next } on && /^    / { sub(/ +#.*/, ""); sub(/^ +/, ""); print; next }
                             on && /^```/ { exit }' README.md)
[[ ${#commands[@]} -eq 2 && ${commands[0]} == *' && '* ]] || { echo "the README has other commands: ${commands[*]}" >&2; exit 1; }
make=${commands[0]%% && *} install=${commands[0]#* && } run_tests=${commands[1]}
unset NATGRAD_LIBRARY NG_TEST_SOURCE_DIR PYTHONPATH
$make
for python in "$(scripts/torch.sh --where)/bin/python" python3 /usr/bin/python3; do
  packages=$("$python" -c 'import numpy, os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null) || continue
  [[ $("$python" -c 'import sys; print(sys.version_info[:2])') == $(env/bin/python -c 'import sys; print(sys.version_info[:2])') ]] || continue
  echo "$packages" >"$(env/bin/python -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
  torch=1
  break
done
[[ -n ${torch:-} ]] || install=${install/ torch/}
$install | tail -1
env/bin/python - <<'END'
import ctypes, glob, os, natgrad
assert natgrad.__file__.startswith(os.path.join(os.getcwd(), "env")), natgrad.__file__
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
if command -v nvcc >/dev/null; then
  env/bin/pip wheel --quiet --no-deps -w "$work" ./python/natgrad-cuda
  files=$(env/bin/python -m zipfile -l "$work"/natgrad_cuda-*.whl | awk '/^natgrad_cuda/ && !/dist-info/ { print $1 }')
  [[ $files == natgrad_cuda/libnatgrad_cuda.so.0 ]] || { echo "natgrad-cuda has other files: $files" >&2; exit 1; }
  env/bin/pip install --quiet --no-deps "$work"/natgrad_cuda-*.whl
else
  echo "natgrad-cuda is not built: nvcc (CUDA's compiler) is not installed"
fi
(cd env && bin/python) <<'END'
import glob, os, natgrad
from natgrad import _core, _cuda_libraries
assert not glob.glob(os.path.join(os.path.dirname(natgrad.__file__), "lib", "*cuda*")), "natgrad itself has a library of GPUs"
_cuda_libraries.load()
with_library = bool(_cuda_libraries.folders("natgrad_cuda"))
try:
    _core.Precond(_core.Options(), linalg="cuda")
except natgrad.Error as error:
    print(error)
    assert ("library does not open: libnatgrad_cuda.so.0" in str(error)) != with_library, error
else:
    assert with_library, "a context without the library natgrad_cuda"
END
if [[ -z ${torch:-} ]]; then
  echo "no PyTorch: tests that need none"
  cd tests/python && ../../env/bin/python -m unittest -q test_core test_abi
  exit
fi
cat >example.py <<'END'
import re
import torch
text = re.search(r"```python\n(.*?)```", open("README.md", encoding="utf-8").read(), re.S).group(1)
torch.manual_seed(1)
model, loss_function = torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(32, 6), torch.randint(3, (32,))
before, batches = loss_function(model(batch[0]), batch[1]).item(), [batch] * 20
exec(text)
after = loss_function(model(batch[0]), batch[1]).item()
print(f"the README's example on PyTorch {torch.__version__}: loss {before:.3f} to {after:.3f}")
assert after < before
END
env/bin/python example.py
$run_tests -q -k test_core -k test_abi -k Readme -k test_imports -k test_passes
