#!/usr/bin/env bash
# A run that is killed with -9 at random moments and resumed ends with the weights, the state of the library and the log of
# an undisturbed run, bit for bit.  NG_TEST_SEED=N repeats a sequence of kills.
. "$(dirname "$0")/lib.sh"
seed=${NG_TEST_SEED:-$RANDOM}
RANDOM=$seed

# numbers RUN: print the numbers of RUN/log.jsonl that do not depend on the clock.  An interruption does not change memory sizes.
numbers() {
  grep -oE '"(event|step|epoch|lr|train_loss|train_accuracy|test_loss|test_accuracy|clip|why|skipped|rescued|network_bytes|precond_bytes)": [^,}]*' "$1/log.jsonl"
}

# whole NAME OPTIONS...: compare a killed and an undisturbed run; return 1 if no second kill came after a checkpoint
whole() {
  local name=$1 plain=$scratch/$1.plain killed=$scratch/$1.killed
  shift
  local t0 ms
  t0=$(date +%s%N)
  expect 0 '*' "$natgrad" train "$@" --out "$plain"
  ms=$((($(date +%s%N) - t0) / 1000000))

  # Kill the run by turns shortly after the next checkpoint, and at any moment up to half of the time of the undisturbed
  # run; the last run is not killed, because the machine may have become slow.
  local kills=0 resumed=0 goes=0 most=60 resume=() pid got wait_ms now last=
  while ((goes++ <= most)); do
    "$natgrad" train "$@" --out "$killed" "${resume[@]}" >"$scratch/out" 2>"$scratch/err" &
    pid=$!
    wait_ms=$(((RANDOM * 32768 + RANDOM) % (ms / 2 + 20) + 10))
    if ((goes > most)); then
      wait_ms=0
    elif ((goes % 2 == 1)); then
      while kill -0 $pid 2>/dev/null && [[ $(checkpoint_step "$killed") == "$last" ]]; do
        sleep 0.003
      done
      wait_ms=$((wait_ms / 16))
    fi
    sleep "$(printf '%d.%03d' $((wait_ms / 1000)) $((wait_ms % 1000)))"
    ((goes > most)) || kill -9 $pid 2>/dev/null
    got=0
    wait $pid 2>/dev/null || got=$?
    if [[ $got == 0 ]]; then
      break
    elif [[ $got != 137 ]]; then
      fail "$name (seed $seed): exit $got: $(cat "$scratch/err")"
      return
    fi
    kills=$((kills + 1))
    # Before the first checkpoint --resume starts again; without config.json --resume finds no run.
    resume=()
    [[ -e $killed/config.json ]] && resume=(--resume)
    now=$(checkpoint_step "$killed")
    [[ -n $now && $now != "$last" ]] && resumed=$((resumed + 1))
    last=$now
  done
  [[ $got == 0 ]] || fail "$name (seed $seed): not done after $kills kills"
  ((resumed >= 2)) || return 1 # the run was over too soon: nothing is learnt

  diff <(numbers "$plain") <(numbers "$killed") >"$scratch/diff" ||
    fail "$name (seed $seed): the log differs after $kills kills: $(head -4 "$scratch/diff")"
  [[ $(numbers "$plain" | grep -c '"event": "step"') -ge 10 ]] || fail "$name: the log is short"
  checkpoints_match "$plain" "$killed" 2>"$scratch/err" || fail "$name (seed $seed): after $kills kills: $(cat "$scratch/err")"
  [[ $(cd "$killed" && echo *) == $(cd "$plain" && echo *) ]] || fail "$name: left over: $(ls "$killed")"
  [[ -z ${VERBOSE:-} ]] || echo "$name: $ms ms, $kills kills, $resumed resumed"
}

# until_killed NAME EPOCHS OPTIONS...: start from nothing, each time with twice the epochs, until kills come in time: a busy
# machine may delay this script and not the run
until_killed() {
  local longer
  for longer in 1 2 4 8 16 32 64; do
    whole "$1" --epochs $(($2 * longer)) "${@:3}" && return
    rm -rf "$scratch/$1".*
  done
  fail "$1 (seed $seed): over before the second kill, however long it is"
}

until_killed digits 20 --data digits --model mlp --method natgrad --schedule 'damping*=0.7@5,30 stat_decay~0.9' --log-every 1 --checkpoint-every 5 --quiet
until_killed adamw 40 --data digits --model mlp --method adamw --lr-schedule cosine --warm-up 1 --weight-decay 0.01 \
  --log-every 1 --checkpoint-every 5 --quiet
# Two families in one model: K-FAC on convolutions, a window on linear layers.
until_killed window 5 --data synthetic:classes=3,image=28x28x1,train=120,test=40,seed=4 --model lenet --batch 20 \
  --method natgrad --solve-period 2 --per-layer 'linear: method=mfac window=5 damping=0.01 window_momentum=0.5' --lr 0.003 \
  --log-every 1 --checkpoint-every 3 --quiet
# All random choices at once: order, dropout, crop and flip, sampled labels, running means; and all other state between
# steps: the previous batch of mixup, micro-batches, momentum and the schedule of the damping.
until_killed images 6 --data synthetic:classes=3,image=12x12x3,train=120,test=40,seed=4 --model wrn-10-1 --dropout 0.3 \
  --augment crop+flip --fisher sampled --method kaisa --stat-period 2 --solve-period 3 --batch 10 --acc-iters 2 --lr 0.03 \
  --mixup-alpha 0.4 --running-mixup --erase-rate 0.5 --adjust-momentum proportional --rescale-weights shrink \
  --damping-rule keep-ratio --average-weights 1 --average-every 3 --average-lr 0.02 \
  --validation 20 --log-every 1 --checkpoint-every 4 --quiet
finish
