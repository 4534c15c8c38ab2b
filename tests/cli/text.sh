#!/usr/bin/env bash
# natgrad train on a text: refusals, ranks, a resumed run, plan and bench of the model.
. "$(dirname "$0")/lib.sh"
cd "$scratch" || exit 1
train() { expect "$1" "$2" "$natgrad" train --model gpt-char-16-2-2 --batch 8 --quiet "${@:3}"; }
head -c 3000 "$NG_SOURCE_DIR/README.md" >text
data=text:text,context=16

: >empty
printf 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' >same
train 2 'natgrad: --data: empty: is empty' --data text:empty
train 2 'natgrad: --data: same: has one distinct character, expected at least 2' --data text:same,context=16
train 2 'natgrad: --data: text: has 3000 characters, context=3000 needs at least 3001' --data text:text,context=3000
train 2 'natgrad: --model: gpt-char-16-2-2 needs a text, and the data has images or features' --data digits
expect 2 'natgrad: --model: mlp needs images or features, and the data has tokens' "$natgrad" train --data $data
train 2 'natgrad: --augment: flip needs images, text has none' --data $data --augment flip
train 2 'natgrad: --mixup-alpha: needs images or features, text has tokens' --data $data --mixup-alpha 0.2
train 2 'natgrad: --positions: has no effect, model gpt-char-16-2-2 has no convolutions' --data $data --positions reduce

# Every method trains.  Curvature of embeddings: natgrad, spngd; else their weights are tensors.
for method in sgd adamw natgrad kfac-adam spngd kaisa eva mfac muon newton-muon; do
  train 0 '' --data $data --steps 3 --method $method --out "$method"
done
layers() { grep -ao "transformer.wte/[A-Z_a-z]*" "$(newest_checkpoint "$1")" | sort -u | tr '\n' ' '; }
[[ $(layers natgrad) == *wte/A\ *wte/G\ * ]] || fail "natgrad: no statistics of the embedding: $(layers natgrad)"
[[ $(layers spngd) == *wte/A\ *wte/G\ * ]] || fail "spngd: no statistics of the embedding: $(layers spngd)"
[[ $(layers kaisa)$(layers eva) == '' ]] || fail "kaisa or eva: statistics of the embedding"

# Losses of three ranks equal the losses of one, up to rounding; the batch of 8 is uneven.
losses() { grep -oE '"(train_loss|test_loss|train_accuracy)": [^,}]*' "$1/log.jsonl" | awk '{ printf "%s %.4f\n", $1, $2 }'; }
for rows in natgrad 'natgrad --optimizer adamw' 'natgrad --fisher sampled' eva; do
  for ranks in 1 3; do
    rm -rf "run$ranks"
    # shellcheck disable=SC2086 # options are words
    train 0 '' --data $data --steps 12 --ranks $ranks --out run$ranks --method $rows
  done
  diff <(losses run1) <(losses run3) >diff || fail "$rows: losses of three ranks differ: $(head -4 diff)"
done

# A run of 6 steps that is continued to 12 equals a run of 12 steps, bit for bit.
for rows in natgrad mfac; do
  train 0 '' --data $data --steps 12 --lr-schedule constant --method $rows --out whole.$rows
  train 0 '' --data $data --steps 6 --lr-schedule constant --method $rows --out half.$rows
  train 0 '' --steps 12 --resume --data $data --lr-schedule constant --method $rows --out half.$rows
  checkpoints_match whole.$rows half.$rows || fail "$rows: the resumed run differs"
done
tail -c +2 text >other && head -c 1 text >>other
train 2 'natgrad: --data: *other* has other samples than the run *' --steps 14 --resume --data text:other,context=16 \
  --lr-schedule constant --method natgrad --out half.natgrad

expect 0 '*text, gpt-char-16-2-2, batch 8, 4 steps, seeds 1 to 2;*sgd *natgrad *difference to sgd*' "$natgrad" compare --data $data \
  --model gpt-char-16-2-2 --methods sgd,natgrad --seeds 2 --steps 4 --batch 8 --out compared
expect 0 '*gpt-char on 4 ranks*natgrad, comm-opt*' "$natgrad" plan --model gpt-char --ranks 4
expect 0 '*gpt-char-16-2-2, batch 2, 10720 parameters*norm blocks*' \
  "$natgrad" bench train --model gpt-char-16-2-2 --batch 2 --repeat 2 --no-floors
finish
