#!/usr/bin/env bash
# torch.sh [--where]: a virtual environment with a current PyTorch for the tests of the Python package, made once
# and kept in the cache folder of the user.  --where prints the folder and makes nothing.
set -euo pipefail
version=2.13.0
folder=${NATGRAD_TORCH:-${XDG_CACHE_HOME:-~/.cache}/natgrad/torch-$version}
if [[ ${1:-} == --where ]]; then
  echo "$folder"
  exit
fi
[[ $# -eq 0 ]] || { echo "usage: scripts/torch.sh [--where]" >&2; exit 2; }
if "$folder/bin/python" -c 'import torch' 2>/dev/null; then exit 0; fi
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet "torch==$version" numpy
"$folder/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
