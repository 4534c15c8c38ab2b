#!/usr/bin/env bash
# Checkpoints with random faults: files of three runs, each at two steps, are exchanged, renamed, removed, truncated or
# edited in their metadata.  --resume must refuse such a run with the name of a file, or find a complete checkpoint and
# end with the weights of its run.
#   NG_TEST_SEED=N repeats a sequence; NG_TEST_MULT=N multiplies the number of trials; the script prints counts
. "$(dirname "$0")/lib.sh"
seed=${NG_TEST_SEED:-$RANDOM}
RANDOM=$seed
trials=$((40 * ${NG_TEST_MULT:-1}))
cd "$scratch" || exit 1
tiny=(--data synthetic:classes=3,features=6,train=64,test=16 --model mlp-8-1 --batch 8 --epochs 2
  --lr-schedule constant --log-every 2 --mixup-alpha 1 --running-mixup)

# Runs a and b have different seeds, c equals a.  Each run is copied when a closed output stopped the run, and at its end.
for run in a b c; do
  "$natgrad" train "${tiny[@]}" --seed $([[ $run == b ]] && echo 2 || echo 1) --out run >&- 2>err && fail "run $run was not stopped"
  cp -a run $run.8
  "$natgrad" train --out run --resume --quiet || fail "run $run"
  mv run $run.16
done
runs=(a.8 a.16 b.8 b.16 c.8 c.16)
parts=(config.json log.jsonl checkpoint)

# path RUN PART [FOLDER]: the path of a file of a run.
path() {
  local step=${1#*.}
  case $2 in
    checkpoint) echo "${3:-$1}/$2-$step.safetensors" ;;
    *) echo "${3:-$1}/$2" ;;
  esac
}
any() { local -n list=$1 && echo "${list[$((RANDOM % ${#list[@]}))]}"; }

# edit FILE: change one byte of the metadata.
edit() {
  local file=$1 size at byte
  size=$(stat -c %s "$file")
  ((size > 8)) || return 1 # cut before
  if [[ $file == *.safetensors ]]; then
    at=$((8 + $(od -An -t u8 -N 8 "$file")))
    ((at > 8 && at < size)) && size=$at
  fi
  at=$((RANDOM * 32768 % size + RANDOM % 64))
  ((at < size)) || at=$((size - 1))
  byte=$(od -An -t u1 -j $at -N 1 "$file")
  printf "\\x$(printf %x $(((byte + 1 + RANDOM % 255) % 256)))" | dd of="$file" bs=1 seek=$at conv=notrunc 2>/dev/null
}

swapped=0 renamed=0 missing=0 edited=0 cut=0 refused=0 whole=0
for ((trial = 0; trial < trials && failures == 0; trial++)); do
  base=$(any runs)
  rm -rf run && cp -a "$base" run
  did=
  for ((k = RANDOM % 3; k >= 0; k--)); do
    part=$(any parts)
    from=$(any runs)
    file=$(path "$base" "$part" run)
    case $((RANDOM % 6)) in
      0 | 1) cp "$(path "$from" "$part")" "$file" && swapped=$((swapped + 1)) && did+=" $part<$from" ;;
      2) # under the name it had there
        cp "$(path "$from" "$part")" "$(path "$from" "$part" run)" && renamed=$((renamed + 1)) && did+=" $part+$from"
        ;;
      3) [[ -e $file ]] && rm "$file" && missing=$((missing + 1)) && did+=" $part-" ;;
      4) [[ -e $file ]] && edit "$file" && edited=$((edited + 1)) && did+=" $part~" ;;
      5)
        [[ -e $file ]] && truncate -s $(($(stat -c %s "$file") * (RANDOM % 100) / 100)) "$file" &&
          cut=$((cut + 1)) && did+=" $part/"
        ;;
    esac
  done
  (cd run && find . -type f -exec cksum {} + | sort -k 3) >before
  "$natgrad" train --out run --resume --quiet >out 2>err
  got=$?
  if [[ $got == 2 ]]; then
    [[ $(wc -l <err) == 1 && $(cat err) == 'natgrad: run/'*.*': '* || $(cat err) == 'natgrad: --resume: run has no run' ]] ||
      fail "seed $seed, trial $trial ($base:$did): refused without a name: $(cat err)"
    (cd run && find . -type f -exec cksum {} + | sort -k 3) | diff before - >diff || fail "seed $seed, trial $trial ($base:$did): refused, but changed: $(cat diff)"
    refused=$((refused + 1))
  elif [[ $got == 0 ]]; then
    # A complete run has the weights of a (c has the same weights) or of b.
    if checkpoints_match run a.16 2>/dev/null; then
      same=a.16
    elif checkpoints_match run b.16 2>/dev/null; then
      same=b.16 # for example only the config.json of b was left
    else
      fail "seed $seed, trial $trial ($base:$did): neither refused nor a whole run"
    fi
    cmp -s <(grep -o '"train_loss": [^,]*' run/log.jsonl) <(grep -o '"train_loss": [^,]*' "$same/log.jsonl") ||
      fail "seed $seed, trial $trial ($base:$did): another log"
    whole=$((whole + 1))
  else
    fail "seed $seed, trial $trial ($base:$did): exit $got: $(cat err)"
  fi
done
echo "mixed checkpoints: trials = $trials swapped = $swapped added = $renamed missing = $missing edited = $edited cut = $cut; refused_by_name = $refused whole_runs = $whole seed = $seed"
[[ $failures != 0 || $((refused + whole)) == "$trials" ]] || fail "seed $seed: $refused refused and $whole whole of $trials"
# about one trial in eight has a complete run, so 40 trials without one occur once in 200 times
((trials < 200 || (refused > 0 && whole > 0))) || fail "seed $seed: $refused refused, $whole whole: nothing is learnt"
finish
