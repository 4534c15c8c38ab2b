#!/usr/bin/env bash
# mixup_ranks.sh [RANKS]: mixup and random erasing on several ranks: threads, or RANKS processes under mpirun.  A
# checkpoint stores the previous mixed batch, which does not depend on weights.  Its bytes are the same for any number
# of ranks, with uneven shards and micro-batches, also if a run resumes with another number of ranks.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
counts=${processes:-2 3 5}
n=${processes:-3}
data=(--data synthetic:classes=4,image=12x10x3,train=300,test=30)

# mixed NAME OPTIONS...: 9 steps on one rank and on several ranks, with a checkpoint after 5 steps
mixed() {
  local name=$1 ranks
  local how=("${data[@]}" --model logreg --method sgd --batch 23 --seed 3 --augment crop+flip --log-every 1 --lr 0.01 --quiet "${@:2}")
  expect 0 '' train_on 1 "${how[@]}" --steps 9 --lr-schedule constant --out "$name.1"
  for ranks in $counts; do
    expect 0 '' train_on "$ranks" "${how[@]}" --steps 9 --lr-schedule constant --out "$name.$ranks"
    checkpoints_match "$name.1" "$name.$ranks" natgrad.mixup || fail "$name: $ranks ranks mix other data than one"
    must_be_near "$name on $ranks ranks" "$name.1" "$name.$ranks" 9
  done
  for first in 1 "$n"; do # 5 steps on so many ranks, the rest on the others
    expect 0 '' train_on "$first" "${how[@]}" --steps 5 --lr-schedule constant --out "$name.half$first"
    expect 0 '*' train_on $((n + 1 - first)) "${how[@]}" --steps 9 --lr-schedule constant --out "$name.half$first" --resume
    checkpoints_match "$name.1" "$name.half$first" natgrad.mixup ||
      fail "$name: 5 steps on $first of $n ranks, then 4 on the others: other data"
  done
}
mixed running --mixup-alpha 0.6 --running-mixup --erase-rate 0.5 --label-smoothing 0.1 --acc-iters 2
[[ -n $processes ]] || mixed plain --mixup-alpha 0.4

# All ranks refuse the file by name, and nothing changes.
cp -r running.1 hurt
"$helper" hurt hurt/checkpoint-9.safetensors natgrad.mixup.targets || fail "no batch"
find hurt -type f -exec cksum {} + | sort >before
got=0
train_on "$n" --out hurt --resume --steps 12 >/dev/null 2>said || got=$?
[[ $got == 2 && $(grep '^natgrad: ' said) == *"hurt/checkpoint-9.safetensors: tensor 'natgrad.mixup.targets' is damaged"* ]] || fail "damaged: exit $got: $(cat said)"
find hurt -type f -exec cksum {} + | sort | cmp before - || fail "refused, but changed"
[[ -n $processes ]] && finish

# A published configuration with a smaller network and smaller images.
"$NG_BUILD_DIR/cli_pictures" folder 4 40
[[ $? == 77 ]] && finish # without the libraries for images: cli_image_ranks says so
for ranks in 1 2; do
  expect 0 '' train_on "$ranks" --config resnet50-bs32k --data images:folder,size=16,resize=20 --model resnet20 --acc-iters 2 --batch 16 \
    --steps 3 --log-every 1 --quiet --out "published.$ranks"
done
checkpoints_match published.1 published.2 natgrad.mixup || fail "a published configuration sees other data on 2 ranks"
finish
