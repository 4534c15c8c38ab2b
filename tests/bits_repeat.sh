#!/usr/bin/env bash
# bits_repeat.sh BITS: the program of scripts/same_bits.sh prints equal lines when repeated, and different lines for
# different cases.
set -euo pipefail
bits=$1
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

"$bits" --every 30 >"$work/one"
"$bits" --every 30 >"$work/two"
diff "$work/one" "$work/two"
cases=$(wc -l <"$work/one")
hashes=$(cut -d ' ' -f 1 "$work/one" | sort -u | wc -l)
# A few options have no effect in some cases.
if ((cases < 100 || 2 * hashes < cases)); then
  echo "$cases cases with $hashes hashes, expected 100 or more, and half as many hashes"
  exit 1
fi
"$bits" 'natgrad damping=0.1' 'natgrad damping=0.10001' >"$work/pair"
if [[ $(grep -c '^[0-9a-f]\{16\}$' "$work/pair") != 2 || $(grep '^[0-9a-f]\{16\}$' "$work/pair" | sort -u | wc -l) != 2 ]]; then
  echo "another damping gives the same bits:"
  cat "$work/pair"
  exit 1
fi
