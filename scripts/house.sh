#!/usr/bin/env bash
# Check rules of this project that no compiler checks, in base/, src/, io/, cuda/ and cli/ of this tree or of the given folder.
# Print one line "file:line: rule: text" for each mistake; exit code 1 if there is any.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

longest=550 # lines of a file; split a longer file by subject

# Blank comments; keep line numbers and quoted text.
blank_comments() {
  awk '
    { line = $0; out = ""
      while (line != "") {
        if (inside) {
          at = index(line, "*/")
          if (!at) break
          line = substr(line, at + 2); inside = 0; continue
        }
        if (match(line, /^"([^"\\]|\\.)*"/)) { out = out substr(line, 1, RLENGTH); line = substr(line, RLENGTH + 1); continue }
        if (match(line, /^\047([^\047\\]|\\.)*\047/)) { out = out substr(line, 1, RLENGTH); line = substr(line, RLENGTH + 1); continue }
        two = substr(line, 1, 2)
        if (two == "/*") { inside = 1; line = substr(line, 3); continue }
        if (two == "//") break
        out = out substr(line, 1, 1); line = substr(line, 2)
      }
      print out }' "$1"
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad=0
# report FILE RULE, "line:text" on standard input
report() {
  local at
  while IFS= read -r at; do
    echo "$1:${at%%:*}: $2: ${at#*:}"
    bad=1
  done
}
# forbid FILE RULE REGEX: not as part of a longer name, nor as a member (config.free, t->abort).
forbid() { report "$1" "$2" < <(grep -nE "(^|[^A-Za-z0-9_.>])($3)" "$work/bare" || true); }

files=()
for folder in base src io cuda cli; do
  if [[ -d $folder ]]; then
    while IFS= read -r file; do files+=("$file"); done < <(find $folder -name '*.[ch]' | LC_ALL=C sort)
  fi
done
[[ ${#files[@]} -gt 0 ]] || { echo "house.sh: no files under base, src, io, cuda, cli in $PWD" >&2; exit 1; }

for file in "${files[@]}"; do
  blank_comments "$file" >"$work/code"
  sed -E 's/"([^"\\]|\\.)*"/""/g' "$work/code" >"$work/bare" # without quoted text
  forbid "$file" "use the generator, never rand" '(s?rand|rand_r|random|drand48)[[:space:]]*\('
  forbid "$file" "use strto* and check the end" '(atoi|atol|atoll|atof)[[:space:]]*\('
  forbid "$file" "use a bounded copy" '(strcpy|strcat|sprintf|vsprintf|gets)[[:space:]]*\('
  report "$file" "a size does not fit %d" < <(
    grep -nE '%[-0-9]*[di].*\(int(32_t)?\) *\(*(sizeof|strlen|[A-Za-z0-9_.>-]*(bytes|size|count|rows|cols|length|elements)\b)' "$work/code" || true)
  report "$file" "finish it" < <(grep -nE '\b(TODO|FIXME|XXX|HACK)\b|[Nn]ot implemented|[Uu]nimplemented|\b[Ss]tub\b' "$file" || true)
  # OpenBLAS of the Python package prefixes all symbols.
  if grep -q NG_BLAS_NAME "$work/code"; then
    report "$file" "a function of BLAS without a #define ... NG_BLAS_NAME" < <(
      grep -nE '^extern [a-z0-9_]+ \**[a-z0-9]+_\(' "$work/code" | while IFS= read -r line; do
        name=$(sed -E 's/.*[ *]([a-z0-9]+_)\(.*/\1/' <<<"$line")
        grep -q "^#define $name NG_BLAS_NAME($name)" "$file" || echo "$line"
      done)
  fi
  lines=$(wc -l <"$file")
  if ((lines > longest)); then
    echo "$file:$lines: longer than $longest lines"
    bad=1
  fi
  case $file in
    base/* | src/* | io/* | cuda/*)
      forbid "$file" "a library does not end the process" '(_?exit|_Exit|quick_exit|abort|raise)[[:space:]]*\('
      forbid "$file" "a library does not print" '(fputs|fputc|putc|fwrite|v?fprintf)[[:space:]]*\([^;]*(stdout|stderr)'
      forbid "$file" "a library does not print" '(v?printf|puts|putchar|perror)[[:space:]]*\('
      ;;
    cli/*)
      report "$file" "the program uses natgrad.h only" < <(grep -nE '^#include "(.*/)?(core|linalg|comm|option|stat|model|family|step|state|api)\.h"' "$file" || true)
      ;;
  esac
  case $file in
    src/core/memory.c) ;;  # the default allocator
    src/comm/threads.c | src/comm/mpi.c) ;; # a group of ranks is made before any context, which has the allocator
    src/*)
      forbid "$file" "use ng_alloc and ng_free" '(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf|vasprintf)[[:space:]]*\('
      ;;
  esac
  case $file in
    src/core/core.h) ;; # NG_ASSERT
    base/* | src/* | io/* | cuda/*) forbid "$file" "use NG_ASSERT for invariants, a status for the rest" 'assert[[:space:]]*\(' ;;
  esac
done
exit $bad
