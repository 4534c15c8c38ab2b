#!/usr/bin/env bash
# torch.sh: make a virtual environment with a current PyTorch for the tests of the Python package, once, in the user's
# cache folder.
#   torch.sh --where    print that folder and make nothing
#   torch.sh --tests    for `make check-all`: first install Debian's Python and its older python3-torch (as root), then the
#                       packages of integration tests; what cannot be installed is reported in one line, and its tests are
#                       skipped
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
# torchvision, which three of these packages ask for and do not need here, would replace PyTorch by a build for CUDA.
install_partners() {
  "$folder/bin/python" -c 'import transformers, accelerate, lightning, peft, kronfluence, laplace' 2>/dev/null && return
  "$folder/bin/pip" install --quiet transformers==5.24.0 accelerate==1.15.0 lightning==2.6.6 peft==0.21.2 datasets \
    einops opt-einsum linear-operator pytest
  "$folder/bin/pip" install --quiet --no-deps timm==1.0.31 kronfluence==1.0.1 einconv laplace-torch==0.3 asdfghjkl==0.1a4 \
    backpack-for-pytorch==1.7.1 curvlinops-for-pytorch unfoldNd
  "$folder/bin/python" -c 'import transformers, accelerate, lightning, peft, kronfluence, laplace'
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
  export -f install_current_torch install_debian_torch install_partners
  export version folder
  timeout 900 bash -ec install_debian_torch >"$log" 2>&1 || echo "natgrad: no PyTorch 1.x, its tests are skipped: $(tail -n 1 "$log")"
  timeout 900 bash -ec install_current_torch >"$log" 2>&1 || echo "natgrad: no PyTorch 2.x, its tests are skipped: $(tail -n 1 "$log")"
  timeout 600 bash -ec install_partners >"$log" 2>&1 ||
    echo "natgrad: packages of trainers are missing, their tests are skipped: $(tail -n 1 "$log")" ;;
*) echo "usage: scripts/torch.sh [--where | --tests]" >&2; exit 2 ;;
esac
