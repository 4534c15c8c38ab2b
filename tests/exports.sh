#!/usr/bin/env bash
# exports.sh LIBRARY [NAME]: the symbols that the shared library exports, abi/NAME.syms and the functions that NAME.h
# declares are the same.  NAME: natgrad.
set -euo pipefail
library=$1 name=${2:-natgrad}
root=$(cd "$(dirname "$0")/.." && pwd)
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Symbols with their version, without the name of the version (kind A).
nm -D --defined-only "$library" | awk '$(NF-1) != "A" { print $NF }' >"$work/versioned"
sed 's/@.*//' "$work/versioned" | sort >"$work/library"

# Declarations: remove comments and directives, join lines, print the text from NG_API to the bracket of the arguments.
grep -v '^ *#' "$root/include/$name.h" | tr '\n' ' ' |
  sed -E 's:/\*([^*]|\*+[^*/])*\*+/: :g' | grep -oE 'NG_API [^;({]*\(' |
  grep -oE '[A-Za-z0-9_]+ *\($' | tr -d ' (' | sort -u >"$work/header"

bad=0
for side in library header; do
  if ! diff -u --label "abi/$name.syms" --label "$side" "$root/abi/$name.syms" "$work/$side"; then
    echo "the $side differs from abi/$name.syms; if the change is meant, change the list with it"
    bad=1
  fi
done
if grep -v '@@NATGRAD_0$' "$work/versioned"; then
  echo "the symbols above carry no version; see src/natgrad.map"
  bad=1
fi
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
if [[ $soname != "lib$name.so.0" ]]; then
  echo "soname is '$soname', expected lib$name.so.0"
  bad=1
fi
# natgrad_mpi finds natgrad by the path of the build folder, or, installed, in its own folder.
if readelf -d "$library" | grep -E "TEXTREL$([[ $name != natgrad ]] || echo '|RPATH|RUNPATH')"; then
  echo "the library carries the entries above"
  bad=1
fi
exit $bad
