#!/usr/bin/env bash
# The bench of saving and loading: its lines and its errors.  t_state_growth tests the costs: CPU time in proportion to
# the layers, one system call for many arrays.
. "$(dirname "$0")/lib.sh"
"$natgrad" bench state --model 5120 --repeat 1 --json >"$scratch/lines" || fail "bench state --json"
"$helper" json case bench layers:n bytes:n median_ms:n floor_ms:n least_ms:n <"$scratch/lines" || fail "bench state --json"
[[ $(wc -l <"$scratch/lines") == 3 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 3"
grep -q '"layers":20,' "$scratch/lines" || fail "not 20 layers: $(cat "$scratch/lines")"
expect 0 'bench state: method eva, 5120, 20 layers*save *load *' \
  "$natgrad" bench state --model 5120 --repeat 1 --no-floors --method eva
expect 2 "*bench state: cannot create a folder in *" env TMPDIR=/no/such "$natgrad" bench state --model 5120
expect 2 "*--model: 7 parameters, expected 16 to 1e9" "$natgrad" bench state --model 7
finish
