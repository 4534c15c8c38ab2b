#!/usr/bin/env bash
# natgrad train with --refresh-tolerance 0.1 records the saving in log.jsonl: how often A, G and F of norms were refreshed
# and passed over, over a resume, and the bytes that were not sent.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
export OPENBLAS_NUM_THREADS=1 NG_THREADS=1
how=(--data synthetic:classes=3,image=8x8x1,train=240,test=30 --model mlp --method spngd --batch 48 --lr 0.001 --lr-schedule constant --refresh-tolerance 0.1)

# of DIR KIND NAME: print a number of the last line of the log
of() { tail -n 1 "$1/log.jsonl" | sed -nE "s/.*\"statistics\": .*\"$2\": \{([^}]*)\}.*/\1/p" | sed -nE "s/.*\"$3\": ([0-9]+).*/\1/p"; }

# If no statistics are similar, each of three layers is refreshed in every step; if all are, in the same few steps.
expect 0 '*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1e-30 --out never
[[ $(of never A refreshed) == 60 && $(of never G refreshed) == 60 && $(of never A passed) == 0 ]] || fail "never: $(tail -n 1 never/log.jsonl)"
expect 0 '*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --out alike
anew=$(of alike A refreshed)
[[ $anew -gt 0 && $anew -lt 30 && $((anew % 3)) == 0 && $(of alike G refreshed) == "$anew" ]] || fail "alike: $anew A, $(of alike G refreshed) G"
[[ $(of alike A passed) == $((60 - anew)) && $(of alike A bytes_sent) == 0 && $(of alike A bytes_passed) == 0 ]] || fail "alike: $(tail -n 1 alike/log.jsonl)"

# After a resume the totals count the whole run; on two ranks the bytes belong to the refreshed steps.
expect 0 '*' "$natgrad" train "${how[@]}" --steps 7 --refresh-tolerance 1000 --out parts
expect 0 '*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --out parts --resume
for kind in A G; do
  for name in refreshed passed; do
    [[ $(of parts $kind $name) == $(of alike $kind $name) ]] || fail "resumed: $kind $name: $(of parts $kind $name), not $(of alike $kind $name)"
  done
done
expect 0 '*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --ranks 2 --out two
for kind in A G; do
  [[ $(of two $kind bytes_passed) -gt 0 &&
    $(($(of two $kind bytes_passed) * $(of two $kind refreshed))) == $(($(of two $kind bytes_sent) * $(of two $kind passed))) ]] ||
    fail "two ranks: $kind: $(tail -n 1 two/log.jsonl | grep -o '"statistics": .*, "ranks"')"
done

# Norms have their own entry; without adaptive intervals there is no entry.
expect 0 '*' "$natgrad" train --data synthetic:classes=3,image=8x8x3,train=64,test=6 --model resnet20 \
  --method spngd --batch 32 --lr 0.001 --steps 2 --refresh-tolerance 0.1 --out norms
[[ $(of norms F refreshed) -gt 0 ]] || fail "norms: $(tail -n 1 norms/log.jsonl)"
expect 0 '*' "$natgrad" train "${how[@]}" --refresh-tolerance 0 --steps 3 --out period
grep -q '"statistics": {' period/log.jsonl && fail "period: $(tail -n 1 period/log.jsonl)"
finish
