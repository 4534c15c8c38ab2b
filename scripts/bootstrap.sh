#!/usr/bin/env bash
# Install the missing Debian/Ubuntu packages that natgrad's build and tests need.  --dev adds the tools of `make tidy`,
# `make format` and the fuzz preset.  Without root and sudo, print the command and fail.  PyTorch is not included:
# without it its tests are skipped (apt-get install python3-torch; scripts/torch.sh).
set -euo pipefail

missing=()
# need PACKAGE CHECK...: install the package if the check fails; a tool from another source passes.
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
# A header or library is present if the compiler can use it; without a compiler all packages are needed.
links() {
  local out
  out=$(mktemp) || return 1
  echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c - -o "$out" "$@" && rm -f "$out" && return 0
  rm -f "$out"
  return 1
}

need build-essential command -v "${CC:-cc}"
need g++ command -v c++
need make command -v make
need cmake command -v cmake
need ninja-build command -v ninja
need pkg-config command -v pkg-config
need zlib1g-dev links -lz -include zlib.h
need libcmocka-dev pkg-config --exists cmocka
need librandom123-dev links -include Random123/philox.h
need libjpeg-dev links -ljpeg -include stdio.h -include jpeglib.h
need libpng-dev links -lpng -include png.h
need gnuplot-nox command -v gnuplot
need libopenmpi-dev command -v mpicc
need openmpi-bin command -v mpirun
need libopenblas-dev links -lblas -llapack
if [[ ${1:-} == --dev ]]; then
  need clang command -v clang
  need libclang-rt-dev bash -c 'echo "int main(void) { return 0; }" | clang -fsanitize=address -x c - -o /dev/null'
  need clang-format command -v clang-format
  need clang-tidy command -v clang-tidy
  need cppcheck command -v cppcheck
  need valgrind command -v valgrind
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
install() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive $line >"$log" 2>&1; }
if ! install && ! { "${sudo[@]}" apt-get update >"$log" 2>&1 && install; }; then
  tail -n 20 "$log" >&2
  echo "natgrad: could not install; run by hand:  sudo $line" >&2
  exit 1
fi
