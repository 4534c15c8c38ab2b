#!/usr/bin/env bash
# Limits of address space (ulimit -v) around the size of OpenBLAS's buffers: the program succeeds or prints one line,
# without delay.  OpenBLAS alone would retry for ever without memory for a buffer.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
grep -qa -e __asan_init -e __tsan_init "$natgrad" && finish # they take terabytes of addresses
tiny=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp --batch 8 --lr-schedule constant)
OPENBLAS_NUM_THREADS=1 "$natgrad" train "${tiny[@]}" --epochs 1 --quiet --out whole || fail "whole"

# Columns: threads of OpenBLAS, ranks, first limit in kB, last limit, step.
refused=0 ran=0
while read -r threads ranks from to by; do
  for ((memory = from; memory <= to; memory += by)); do
    rm -rf T
    (export OPENBLAS_NUM_THREADS=$threads
     ulimit -v $memory && exec timeout -s KILL $patience "$natgrad" train "${tiny[@]}" --ranks "$ranks" --epochs 1 --quiet --out T >out 2>err)
    got=$?
    [[ $got == 0 || ($got == 2 && $(wc -l <err) == 1 && $(cat err) == 'natgrad: '*) || $got == 127 ]] ||
      fail "$memory kB, $ranks ranks, $threads threads: exit $got: $(cat err)"
    [[ $got == 2 ]] && ((refused++))
    [[ $got == 0 ]] && ((ran++))
    [[ $got != 0 || $ranks != 1 || $threads != 1 ]] || checkpoints_match T whole ||
      fail "$memory kB: other weights"
  done
done <<END
1 1 168000 240000 6000
1 3 430000 660000 10000
2 1 310000 500000 10000
2 3 460000 720000 10000
END
# If the stack is too small for OpenBLAS's kernels, the program raises a soft limit, and refuses a hard limit in one
# line.
for ranks in 1 4; do
  rm -rf T
  (ulimit -S -s 64 && exec timeout $patience "$natgrad" train "${tiny[@]}" --method spngd --ranks $ranks --epochs 1 --quiet --out T) ||
    fail "a soft stack limit of 64 kB, $ranks ranks: exit $?"
  (ulimit -s 128 && exec "$natgrad" train "${tiny[@]}" --method spngd --ranks $ranks --epochs 1 --quiet 2>err)
  [[ $? == 2 && $(cat err) == 'natgrad: the stack limit (ulimit -s) is 128 kB, expected at least 1024' ]] ||
    fail "a hard stack limit of 128 kB, $ranks ranks: $(cat err)"
done
# Another BLAS runs with all limits.
((ran > 0)) || fail "nothing ran with any limit, $refused refused"
finish
