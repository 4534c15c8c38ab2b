#!/usr/bin/env bash
# header.sh CC: natgrad.h alone, twice included, as C11 and C++17 with all warnings as errors, and with
# no header of its own but stddef.h and stdint.h.
set -euo pipefail
cc=$1
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#include <natgrad.h>\n#include <natgrad.h>\nint main(void) { ng_options o; return ng_options_init(&o) == NG_OK ? 0 : 1; }\n' >"$work/a.c"
cp "$work/a.c" "$work/a.cc"

warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wundef -Werror)
"$cc" -std=c11 "${warnings[@]}" -Wstrict-prototypes -I"$root/include" -c "$work/a.c" -o "$work/a.o"

others=$(grep -E '^ *# *include' "$root/include/natgrad.h" | grep -vE '<std(def|int)\.h>' || true)
[[ -z $others ]] || { echo "natgrad.h includes more than it may: $others"; exit 1; }

cxx=${CXX:-}
for candidate in c++ g++ clang++; do
  [[ -n $cxx ]] || ! command -v $candidate >/dev/null || cxx=$candidate
done
[[ -n $cxx ]] || { echo "skipped: no C++ compiler"; exit 77; }
"$cxx" -std=c++17 "${warnings[@]}" -Wold-style-cast -Wzero-as-null-pointer-constant -I"$root/include" -c "$work/a.cc" -o "$work/a.o"
