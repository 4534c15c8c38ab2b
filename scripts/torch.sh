#!/usr/bin/env bash
# torch.sh: make a virtual environment with a current PyTorch for the tests of the Python package, once, in the user's
# cache folder.
#   torch.sh --where    print that folder and make nothing
#   torch.sh --tests    for `make check-all`: first install Debian's Python and its older python3-torch (as root); a PyTorch
#                       that cannot be installed is reported in one line, and its tests are skipped
set -euo pipefail
version=2.13.0
folder=${NATGRAD_TORCH:-${XDG_CACHE_HOME:-~/.cache}/natgrad/torch-$version}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install_current_torch() {
  "$folder/bin/python" -c 'import torch' 2>/dev/null && return
  python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet "torch==$version" numpy
  "$folder/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
}
install_debian_torch() {
  /usr/bin/python3 -c 'import ensurepip, torch' 2>/dev/null && return
  [[ $(id -u) == 0 ]] || { echo "not root"; return 1; }
  apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-torch python3-venv
}

case ${1:-} in
--where) echo "$folder" ;;
'') install_current_torch ;;
--tests)
  export -f install_current_torch install_debian_torch
  export version folder
  timeout 900 bash -ec install_debian_torch >"$log" 2>&1 || echo "natgrad: no PyTorch 1.x, its tests are skipped: $(tail -n 1 "$log")"
  timeout 900 bash -ec install_current_torch >"$log" 2>&1 || echo "natgrad: no PyTorch 2.x, its tests are skipped: $(tail -n 1 "$log")" ;;
*) echo "usage: scripts/torch.sh [--where | --tests]" >&2; exit 2 ;;
esac
