#!/usr/bin/env bash
# The README's first program is examples/00_hello.c to the letter (which a test runs), its files
# exist, and what it says the demo prints is what the demo prints.
set -euo pipefail
cd "$NG_SOURCE_DIR"
fail() { echo "readme: $1" >&2; exit 1; }

block() { awk -v start="$1" '$0 == start { on = 1; next } on && $0 == "```" { exit } on' README.md; }
diff <(block '```c') examples/00_hello.c >&2 || fail "the program differs from examples/00_hello.c"
grep -q '@[A-Z]*@' README.md && fail "a placeholder was left"
while read -r link; do
  [[ -e $link ]] || fail "links to $link, which does not exist"
done < <(grep -oE '\]\([^)#:]+\)' README.md | tr -d '])(')

# The figures come from f32 arithmetic in the BLAS at hand: compare the first epoch, to 3 digits.
want=$(awk '/natgrad \+ momentum/ { on = 1 } on && $1 == 1 { print; exit }' README.md)
got=$("$NG_BUILD_DIR/example_10_digits_mlp" data/digits.csv 12 |
  awk '/natgrad \+ momentum/ { on = 1 } on && $1 == 1 { print; exit }')
awk -v a="$want" -v b="$got" 'BEGIN {
  n = split(a, x); if (n != 5 || split(b, y) != 5) exit 1
  for (i = 2; i <= 4; i += 2) if ((x[i] - y[i])^2 > (1e-3 * x[i])^2) exit 1
}' || fail "the demo prints '$got', the README says '$want'"
