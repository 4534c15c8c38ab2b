#!/usr/bin/env bash
# The bench of saving and loading: its lines, and where it cannot work.
. "$(dirname "$0")/lib.sh"
"$natgrad" bench state --layers 20 --repeat 1 --json >"$scratch/lines" || fail "bench state --json"
"$helper" json case bench layers:n bytes:n median_ms:n floor_ms:n least_ms:n floor_least_ms:n cpu_ms:n \
  floor_cpu_ms:n <"$scratch/lines" || fail "bench state --json"
[[ $(wc -l <"$scratch/lines") == 2 ]] || fail "$(wc -l <"$scratch/lines") lines instead of 2"
grep -q '"layers":21,' "$scratch/lines" || fail "not 20 layers and a convolution: $(cat "$scratch/lines")"
# Processor time beside that of the bytes alone, the least of several, which others stretch least: 5 and 5 times
# seen on a quiet machine, 7 and 10 on a busy one.
if ! grep -qa -e __asan_init -e __tsan_init "$natgrad"; then
  "$natgrad" bench state --layers 2000 --repeat 9 --json >"$scratch/lines" || fail "bench state --layers 2000"
  awk -F'[:,}]' '{
    for (i = 1; i < NF; i++) {
      if ($i == "\"cpu_ms\"") own = $(i + 1)
      if ($i == "\"floor_cpu_ms\"") floor = $(i + 1)
    }
    if (!(floor > 0 && own <= 20 * floor)) slow = 1
  } END { exit slow }' "$scratch/lines" || fail "slow beside its bytes: $(cat "$scratch/lines")"
fi
expect 0 'bench state: method eva, 20 linear layers of 16 x 16, 1 depthwise*save *load *' \
  "$natgrad" bench state --layers 20 --repeat 1 --no-floors --method eva
expect 2 "*bench state: no folder can be made in *" env TMPDIR=/no/such "$natgrad" bench state --layers 20
expect 2 "*--layers: '0' is no whole number from 1*" "$natgrad" bench state --layers 0
finish
