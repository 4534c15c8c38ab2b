#!/usr/bin/env bash
# On a terminal natgrad train draws a progress bar and erases it.  77: no terminal available.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
if ! script -qec true /dev/null >out 2>&1 </dev/null; then
  echo "skipped: no pseudo-terminal, or no script(1): $(head -1 out)"
  exit 77
fi
script -qec "'$natgrad' train --data digits --model mlp --epochs 10" /dev/null >out 2>&1 </dev/null || fail "on a terminal: $(cat out)"
grep -q 'epoch [0-9]*/10  loss .*  accuracy .* %  [0-9]* samples/s  ETA 0:' out || fail "no bar"
first=$(grep 'epoch 1/10  step 22 ' out) # the bar was there since step 1
[[ ${first##*$'\r\033[K'} == 'epoch 1/10  step 22 '* ]] || fail "the bar stays: $first"
finish
