#!/usr/bin/env bash
# run.sh CMAKE CC GENERATOR LIBDIR [MPICC], in the build folder: install into a scratch prefix, move the prefix, as a user may,
# then build and run programs that find the library by find_package and by pkg-config, shared and static.
set -euo pipefail
cmake=$1 cc=$2 generator=$3 libdir=$4 mpicc=${5:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $libdir = /* ]]; then
  echo "skipped: CMAKE_INSTALL_LIBDIR is absolute, so the tree cannot be moved"
  exit 77
fi
say() { echo "--- $*"; }
# always TEXT COMMAND..., never TEXT COMMAND...: the output of COMMAND contains the text, or does not.  First read all
# output: grep -q at the end of a pipe could end before COMMAND, which would fail.
always() {
  local text=$1 out
  shift
  out=$("$@")
  [[ $out == *"$text"* ]] || { echo "'$*' should mention $text"; exit 1; }
}
never() {
  local text=$1 out
  shift
  out=$("$@")
  [[ $out != *"$text"* ]] || { echo "'$*' should not mention $text"; exit 1; }
}

say install
"$cmake" --install . --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix

say "the program finds its library"
env -u LD_LIBRARY_PATH "$prefix/bin/natgrad" info >"$work/info"
grep -q '^ *version' "$work/info" || { cat "$work/info"; exit 1; }
never "$PWD" readelf -d "$prefix/bin/natgrad"

say "what the header and the README point at"
doc=$prefix/share/doc/natgrad
missing=0
while read -r named; do
  [[ -s $doc/$named ]] || { echo "natgrad.h names $named, which is not in $doc"; missing=1; }
done < <(grep -oE '(docs|examples)/[A-Za-z0-9_.-]*[A-Za-z0-9]' "$prefix/include/natgrad.h" | sort -u)
while read -r named; do
  [[ -s $doc/$named ]] || { echo "README.md links to $named, which is not in $doc"; missing=1; }
done < <(grep -oE '\]\((docs|examples)/[^)#:]+\)' "$doc/README.md" | tr -d '])(' | sort -u)
for example in "$here"/../../examples/*.{c,cpp,py}; do
  [[ ! -e $example ]] || cmp "$example" "$doc/examples/$(basename "$example")" || missing=1
done
[[ $missing == 0 && -s $doc/docs/algorithms.md ]]

say "configurations come with it, and are found by name"
for file in "$here"/../../configs/*.json; do
  cmp "$file" "$prefix/share/natgrad/configs/$(basename "$file")"
done
(cd "$work" && "$prefix/bin/natgrad" train --config mnist-mlp --data digits --batch 16 --steps 2 >"$work/log") ||
  { cat "$work/log"; exit 1; }

say "the library needs zlib"
always zlib grep -h '' "$prefix/$libdir/pkgconfig/natgrad.pc"

say find_package
"$cmake" -S "$here" -B "$work/cmake" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
  ${mpicc:+"-DMPI_C_COMPILER=$mpicc"} -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -qF "$prefix" "$work/cmake/CMakeCache.txt" || { echo "found another natgrad"; exit 1; }
"$cmake" --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/consumer_shared"
"$work/cmake/consumer_static"
always "$prefix/$libdir/libnatgrad.so.0" ldd "$work/cmake/consumer_shared"
never libnatgrad ldd "$work/cmake/consumer_static"
if [[ -e $prefix/include/natgrad_mpi.h ]]; then
  "$here/../mpirun.sh" 2 "$work/cmake/consumer_mpi"
  always "$prefix/$libdir/libnatgrad_mpi.so.0" ldd "$work/cmake/consumer_mpi"
  never libmpi ldd "$prefix/$libdir/libnatgrad.so.0"
fi

say pkg-config
export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
# shellcheck disable=SC2162 # a backslash stands before a space in a name
read -a flags <<<"$(pkg-config --cflags --libs natgrad)"
"$cc" -std=c11 -Wall -Werror "$here/consumer.c" -o "$work/shared" "${flags[@]}"
LD_LIBRARY_PATH=$prefix/$libdir "$work/shared"
"$cc" -std=c11 -Wall -Werror "$doc/examples/00_hello.c" -o "$work/hello" "${flags[@]}"
LD_LIBRARY_PATH=$prefix/$libdir "$work/hello"
if [[ -e $prefix/include/natgrad_mpi.h ]]; then
  read -a flags <<<"$(pkg-config --cflags --libs natgrad_mpi)"
  "$cc" -std=c11 -Wall -Werror "$here/consumer_mpi.c" -o "$work/mpi" "${flags[@]}"
  LD_LIBRARY_PATH=$prefix/$libdir "$here/../mpirun.sh" 1 "$work/mpi"
fi
# Without the shared library in the folder the linker uses the archive.
rm "$prefix/$libdir"/libnatgrad.so*
read -a flags <<<"$(pkg-config --cflags --libs --static natgrad)"
"$cc" -std=c11 -Wall -Werror "$here/consumer.c" -o "$work/static" "${flags[@]}"
"$work/static"
never libnatgrad ldd "$work/static"
