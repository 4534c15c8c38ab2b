#!/usr/bin/env bash
# natgrad train with --refresh-tolerance 0.1 tells what it saved, at the end and in log.jsonl: of A, G and the norms' F
# how often one was made anew and passed over, over a resume, and the bytes that were not sent.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
export OPENBLAS_NUM_THREADS=1 NG_THREADS=1
how=(--data synthetic:classes=3,image=8x8x1,train=240,test=30 --model mlp --method spngd --batch 48 --lr 0.001 --lr-schedule constant --refresh-tolerance 0.1)

# of DIR KIND NAME: a number of the last line
of() { tail -n 1 "$1/log.jsonl" | sed -nE "s/.*\"statistics\": .*\"$2\": \{([^}]*)\}.*/\1/p" | sed -nE "s/.*\"$3\": ([0-9]+).*/\1/p"; }

# Nothing is like anything: three layers, each step anew.  All is alike: refreshes of each in the same steps.
expect 0 '*statistics refreshed: A 100.0 % of 60, G 100.0 % of 60*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1e-30 --out never
expect 0 '*statistics refreshed: A *' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --out alike
anew=$(of alike A refreshed)
[[ $anew -gt 0 && $anew -lt 30 && $((anew % 3)) == 0 && $(of alike G refreshed) == "$anew" ]] || fail "alike: $anew A, $(of alike G refreshed) G"
[[ $(of alike A passed) == $((60 - anew)) && $(of alike A bytes_sent) == 0 && $(of alike A bytes_passed) == 0 ]] || fail "alike: $(tail -n 1 alike/log.jsonl)"
expect 0 "*statistics refreshed: A $(awk "BEGIN { printf \"%.1f\", 100 * $anew / 60 }") % of 60, G *" \
  "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000

# Stopped and resumed, the totals are of the whole run; on two ranks bytes are those of the steps.
expect 0 '*' "$natgrad" train "${how[@]}" --steps 7 --refresh-tolerance 1000 --out parts
expect 0 '*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --out parts --resume
for kind in A G; do
  for name in refreshed passed; do
    [[ $(of parts $kind $name) == $(of alike $kind $name) ]] || fail "resumed: $kind $name: $(of parts $kind $name), not $(of alike $kind $name)"
  done
done
expect 0 '* MB were not sent*' "$natgrad" train "${how[@]}" --steps 20 --refresh-tolerance 1000 --ranks 2 --out two
for kind in A G; do
  [[ $(of two $kind bytes_passed) -gt 0 &&
    $(($(of two $kind bytes_passed) * $(of two $kind refreshed))) == $(($(of two $kind bytes_sent) * $(of two $kind passed))) ]] ||
    fail "two ranks: $kind: $(tail -n 1 two/log.jsonl | grep -o '"statistics": .*, "ranks"')"
done

# Norms apart; where nothing is adaptive nothing is said.
expect 0 '*statistics refreshed: A *, G *, F *' "$natgrad" train --data synthetic:classes=3,image=8x8x3,train=64,test=6 --model resnet20 \
  --method spngd --batch 32 --lr 0.001 --steps 2 --refresh-tolerance 0.1
expect 0 '*' "$natgrad" train "${how[@]}" --refresh-tolerance 0 --steps 3 --out period
grep -q 'statistics made' "$scratch/out" && fail "period: $(cat "$scratch/out")"
grep -q '"statistics": {' period/log.jsonl && fail "period: $(tail -n 1 period/log.jsonl)"
finish
