#!/usr/bin/env bash
# torch_example.sh CC LIBRARY layout | train: test examples/40_torch.py.  layout: compare its structs and constants with
# natgrad.h by sizeof and offsetof, without PyTorch.  train: run the example with the first Python that has PyTorch.
set -euo pipefail
cc=$1 library=$2 what=$3
example=$NG_TEST_SOURCE_DIR/examples/40_torch.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1
first_that_runs() { # the first Python that carries out $1
  local python
  for python in ${NG_TEST_PYTHON:-} python3 /usr/bin/python3; do
    if command -v "$python" >/dev/null && "$python" -c "$1" >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
}

if [[ $what == train ]]; then
  python=$(first_that_runs 'import torch')
  [[ -n $python ]] || { echo "skipped: no PyTorch (apt-get install python3-torch)"; exit 77; }
  "$python" "$example" "$library"
  exit
fi

python=$(first_that_runs 'import ctypes')
[[ -n $python ]] || { echo "skipped: no Python 3 (apt-get install python3)"; exit 77; }
# Print the sizes and offsets of the script, and write a C program that prints the true ones.
"$python" - "$example" "$work/layout.c" >"$work/python" <<'END'
import ctypes, runpy, sys, types
sys.modules["torch"] = torch = types.ModuleType("torch")
torch.nn = types.SimpleNamespace(Module=object)
names = runpy.run_path(sys.argv[1], run_name="layout")
lines = ["#include <natgrad.h>", "#include <stdio.h>", "int main(void) {"]
def row(text, expression, believed):
    print(text, believed)
    lines.append(f'  printf("{text} %lld\\n", (long long)({expression}));')
structs = [s for s in names.values() if isinstance(s, type) and issubclass(s, ctypes.Structure)]
for s in structs:
    row(f"sizeof {s.__name__}", f"sizeof({s.__name__})", ctypes.sizeof(s))
    for field, *_ in s._fields_:
        row(f"{s.__name__}.{field}", f"offsetof({s.__name__}, {field})", getattr(s, field).offset)
        row(f"{s.__name__}.{field} bytes", f"sizeof((({s.__name__} *)0)->{field})", getattr(s, field).size)
constants = [n for n in names if n.startswith("NG_") and n != "NG_VERSION"]
for n in constants:
    row(n, n, names[n])
row("it was written for a header of this age or an older one", f"{names['NG_VERSION']} <= NG_VERSION", 1)
lines += ["  return 0;", "}"]
open(sys.argv[2], "w").write("\n".join(lines) + "\n")
assert len(structs) >= 5 and len(constants) >= 10, "the script has changed: what is looked for is not there"
END
"$cc" -std=c11 -Wall -I"$NG_TEST_SOURCE_DIR/include" "$work/layout.c" -o "$work/layout"
"$work/layout" >"$work/c"
diff -u --label "40_torch.py" --label "natgrad.h" "$work/python" "$work/c"
