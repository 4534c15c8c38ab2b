#!/usr/bin/env bash
# The bench of saving and loading: its lines, and where it cannot work.  What it costs is in t_state_growth: of the
# processor's time in proportion to the layers, of the system's calls one for many arrays.
. "$(dirname "$0")/lib.sh"
"$natgrad" bench state --layers 20 --repeat 1 --json >"$scratch/lines" || fail "bench state --json"
"$helper" json case bench layers:n bytes:n median_ms:n floor_ms:n least_ms:n <"$scratch/lines" || fail "bench state --json"
[[ $(wc -l <"$scratch/lines") == 3 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 3"
grep -q '"layers":21,' "$scratch/lines" || fail "not 20 layers and a convolution: $(cat "$scratch/lines")"
expect 0 'bench state: method eva, 20 linear layers of 16 x 16, 1 depthwise*save *load *' \
  "$natgrad" bench state --layers 20 --repeat 1 --no-floors --method eva
expect 2 "*bench state: no folder can be made in *" env TMPDIR=/no/such "$natgrad" bench state --layers 20
expect 2 "*--layers: '0' is no whole number from 1*" "$natgrad" bench state --layers 0
finish
