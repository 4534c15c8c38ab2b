#!/usr/bin/env bash
# Install the missing Debian/Ubuntu packages that natgrad's build and tests need.  --dev adds the tools of `make tidy`,
# `make format` and the fuzz preset.  Without root and sudo, print the command and fail.  PyTorch is not included:
# without it its tests are skipped (apt-get install python3-torch; scripts/torch.sh).
set -euo pipefail

missing=()
# install_unless_found PACKAGE CHECK...: install the package if the check fails; a tool from another source passes.
install_unless_found() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
# A header or library is present if the compiler can use it; without a compiler all packages are needed.
can_link() {
  local out
  out=$(mktemp) || return 1
  echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c - -o "$out" "$@" && rm -f "$out" && return 0
  rm -f "$out"
  return 1
}

install_unless_found build-essential command -v "${CC:-cc}"
install_unless_found g++ command -v c++
install_unless_found make command -v make
install_unless_found cmake command -v cmake
install_unless_found ninja-build command -v ninja
install_unless_found pkg-config command -v pkg-config
install_unless_found zlib1g-dev can_link -lz -include zlib.h
install_unless_found libcmocka-dev pkg-config --exists cmocka
install_unless_found librandom123-dev can_link -include Random123/philox.h
install_unless_found libjpeg-dev can_link -ljpeg -include stdio.h -include jpeglib.h
install_unless_found libpng-dev can_link -lpng -include png.h
install_unless_found gnuplot-nox command -v gnuplot
install_unless_found libopenmpi-dev command -v mpicc
install_unless_found openmpi-bin command -v mpirun
install_unless_found libopenblas-dev can_link -lblas -llapack
if [[ ${1:-} == --dev ]]; then
  install_unless_found clang command -v clang
  install_unless_found libclang-rt-dev bash -c 'echo "int main(void) { return 0; }" | clang -fsanitize=address -x c - -o /dev/null'
  install_unless_found clang-format command -v clang-format
  install_unless_found clang-tidy command -v clang-tidy
  install_unless_found cppcheck command -v cppcheck
  install_unless_found valgrind command -v valgrind
elif [[ $# -gt 0 ]]; then
  echo "usage: scripts/bootstrap.sh [--dev]" >&2
  exit 2
fi

[[ ${#missing[@]} -eq 0 ]] && exit 0

line="apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
  echo "natgrad: missing here (Debian/Ubuntu names): ${missing[*]}" >&2
  exit 1
fi
if [[ $(id -u) -eq 0 ]]; then
  sudo=()
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
  sudo=(sudo)
else
  echo "natgrad: packages are missing; run" >&2
  echo "  sudo $line" >&2
  exit 1
fi

echo "natgrad: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# The list of packages may be absent or stale: ask for a new one only when the old one fails.
install_packages() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive $line >"$log" 2>&1; }
if ! install_packages && ! { "${sudo[@]}" apt-get update >"$log" 2>&1 && install_packages; }; then
  tail -n 20 "$log" >&2
  echo "natgrad: could not install; run by hand:  sudo $line" >&2
  exit 1
fi
