#!/usr/bin/env bash
# The README's C program equals examples/00_hello.c (which a test runs), its links exist, docs/first-steps.md quotes
# examples/20_three_layers.c, and docs/reproduce.md shows the tables that `make demo` prints.
set -euo pipefail
cd "$NG_TEST_SOURCE_DIR"
fail() { echo "readme: $1" >&2; exit 1; }

block() { awk -v start="$1" '$0 == start { on = 1; next } on && $0 == "```" { exit } on' README.md; }
diff <(block '```c') examples/00_hello.c >&2 || fail "the program differs from examples/00_hello.c"
grep -q '@[A-Z]*@' README.md && fail "a placeholder was left"
while read -r link; do
  [[ -e $link ]] || fail "links to $link, which does not exist"
done < <(grep -oE '\]\([^)#:]+\)' README.md | tr -d '])(')

page=docs/reproduce.md
steps=docs/first-steps.md
while IFS= read -r line; do
  grep -qF -- "$line" examples/20_three_layers.c || fail "$steps has a line that the example has not: $line"
done < <(grep -oE '[^ ].*/\* [0-9]+ \*/$' $steps)
[[ $(grep -cE '/\* [0-9]+ \*/$' $steps) == 12 ]] || fail "$steps shows other lines than the twelve of the example"

# The demo: docs/reproduce.md quotes the command of the Makefile and its output.  A short run is compared by the names
# of methods and columns, because figures depend on the machine and the BLAS.
made() { # of make's recipe: one line, with build for $(BUILD)
  awk '/^demo:/ { on = 1; next } on && !/^\t/ { exit } on' Makefile | grep -v '^	@' |
    sed -e 's/^\t//' -e 's/\\$//' -e 's/\$(BUILD)/build/g' | tr -s ' \n' ' ' | sed 's/ $//'
}
quoted() { # the same from the page
  awk '/^\$ make demo/ { on = 1; next } on && !/^(build|  )/ { exit } on' $page |
    sed -e 's/\\$//' | tr -s ' \n' ' ' | sed 's/ $//'
}
[[ -n $(made) && $(made) == "$(quoted)" ]] || fail "the Makefile runs '$(made)', $page says '$(quoted)'"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
read -ra command <<<"$(made)"
# On a busy machine threads of OpenBLAS wait for each other a hundred times longer than they compute.
export OPENBLAS_NUM_THREADS=1
short=("$NG_TEST_PROGRAM" "${command[@]:1}" --grid-epochs 1 --epochs 1 --seeds 2 --quiet --out "$out/demo")
"${short[@]}" >"$out/got" 2>"$out/err" || fail "the demo, shortened, fails: $(cat "$out/err")"
shape() { # headings without the target, labels, the constant part of the second table's heading
  sed -E 's/ to [0-9.]+ %/ to X/g' | awk '
    /^method +runs/ { gsub(/  +/, " | "); print; on = 1; next }
    /^difference/         { print; on = 1; next }
    /^method +ms/   { print $1, $2, $3, $4, $(NF - 1), $NF; on = 1; next }
    NF == 0 || /^curves/ { on = 0 }
    on              { print $1 }'
}
diff <(shape <"$out/got") <(awk '/^\$ make demo/ { on = 1 } on && $0 == "```" { exit } on' $page | shape) >&2 ||
  fail "the demo prints another table than $page"
