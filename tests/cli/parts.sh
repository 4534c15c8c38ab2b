#!/usr/bin/env bash
# parts.sh [RANKS]: --checkpoint-parts: every rank writes its own part of the state.  A run resumes from the parts on
# fewer and on more ranks.  Missing, exchanged, edited or unexpected files are refused by name.  A run that is killed at
# any time has a complete checkpoint.  Ranks are threads, or RANKS processes under mpirun.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
how=(--data digits --model mlp --method natgrad --batch 61 --seed 3 --log-every 1 --quiet --lr-schedule constant)
# moves PID DIR: wait for a checkpoint of a later step
step_over() { [[ $(checkpoint_step "$1") -gt $2 ]]; }
moves() { wait_until "$1" "$2: a checkpoint" step_over "$2" "$(checkpoint_step "$2")"; }

n=${processes:-3}
expect 0 '' train_on "$n" "${how[@]}" --steps 30 --out one
expect 0 '' train_on "$n" "${how[@]}" --steps 30 --checkpoint-parts --checkpoint-every 10 --out parts
check_files parts 30 "$n"
checkpoints_match one parts !natgrad. || fail "parts change weights"

# Half of the steps on n ranks with parts, the other half on another number of ranks, then one file again.
for rest in 1 2 $((n + 1)); do
  expect 0 '' train_on "$n" "${how[@]}" --steps 15 --checkpoint-parts --out half$rest
  expect 0 '*' train_on "$rest" "${how[@]}" --steps 30 --out half$rest --resume
  must_be_near "15 steps on $n, 15 on $rest" one half$rest 30
  check_files half$rest 30 "$rest"
done
# With another strategy: a window in other slices, or whole.
expect 0 '' train_on "$n" "${how[@]}" --steps 15 --checkpoint-parts --grad-worker-fraction 0 --placement kaisa --out moved
expect 0 '*' train_on 2 "${how[@]}" --steps 30 --grad-worker-fraction 1 --placement round-robin --out moved --resume
must_be_near "another strategy" one moved 30
window=("${how[@]}" --method mfac --window 4 --damping 0.1)
expect 0 '' train_on "$n" "${window[@]}" --steps 30 --out dense
expect 0 '' train_on "$n" "${window[@]}" --statistics sharded --checkpoint-parts --steps 15 --out cut
expect 0 '*' train_on 2 "${window[@]}" --statistics sharded --steps 25 --out cut --resume
expect 0 '*' train_on 1 "${window[@]}" --statistics all --steps 30 --out cut --resume
must_be_near "a window that was cut" dense cut 30

# One rank of a job is killed while every step writes a checkpoint: the job ends, the last checkpoint is complete, and
# the run resumes on fewer ranks, then on all.
dir=$scratch/lost
if [[ -n $processes ]]; then
  expect 0 '' train_on "$n" "${how[@]}" --steps 2 --checkpoint-parts --out "$dir"
  for victim in 0 $((n - 1)); do
    train_on "$n" --out "$dir" --resume --steps 1000000 --checkpoint-every 1 --quiet >/dev/null 2>&1 </dev/null &
    job=$!
    moves $job "$dir"
    sleep 0.0$((RANDOM % 10))
    kill -9 "$(rank_process "$dir" $victim)" || {
      fail "rank $victim is not to be found"
      pkill -f -- "train .*--out $dir"
    }
    wait $job && fail "a job without rank $victim ended well"
    wait_until $$ "ranks that the launcher left behind end" run_is_gone "$dir"
    step=$(checkpoint_step "$dir")
    expect 0 '*' train_on $((n - 1)) --out "$dir" --resume --steps $((step + 1)) --checkpoint-every 0 --quiet
    check_files "$dir" $((step + 1)) $((n - 1))
  done
  finish
fi

# Files that do not belong together, by content and by name.
refused() { expect 2 "natgrad: $1" train_on "${ranks:-2}" --out run --resume --steps 40 --quiet; }
listing() { (cd "$1" && find . -printf '%p %y %l\n' | sort && find . -type f -exec cksum {} + | sort -k 3); }
again() {
  rm -rf run && cp -a parts run
  "$@"
  listing run >before
}
untouched() { diff before <(listing run) || fail "$1: refused, but changed"; }
first=run/checkpoint-30.natgrad-state
one=$(cd parts && echo checkpoint-30.natgrad-state.*-1of3)
two=${one/-1of3/-2of3}
for ranks in 1 2 4; do
  again rm $first && refused "$first: is missing, but run/checkpoint-30.safetensors needs it" && untouched first
  again rm run/$two && refused "run/$two: *" && untouched missing
  swap() { mv run/$one x && mv run/$two run/$one && mv x run/$two; }
  again swap && refused "run/$one: *" && untouched swapped
  flip() { printf '\377' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 1)) conv=notrunc status=none; }
  again flip run/$one && refused "run/$one: tensor * is damaged (its checksum differs)" && untouched edited
  again truncate -s -1 run/$two && refused "run/$two: *" && untouched cut
done
again cp half1/checkpoint-30.safetensors run && refused "run/*: * run/checkpoint-30.safetensors*" && untouched other
# The files of a killed save are removed; other files stay.
strangers=(run/checkpoint-30.natgrad-state.mine run/checkpoint-31.natgrad-states)
leave() {
  cp run/$one run/checkpoint-31${one#checkpoint-30}
  touch run/checkpoint-31.natgrad-state.01234567-1of3.natgrad-part "${strangers[@]}"
}
again leave
expect 0 '*' train_on 1 --out run --resume --steps 31 --quiet
rm "${strangers[@]}" || fail "a file of others is gone"
check_files run 31 1

# The run is killed at random times, mostly while a checkpoint is written, and resumed on another number of ranks.
kills=0
expect 0 '' train_on 3 "${how[@]}" --steps 2 --checkpoint-parts --out killed
for ((i = 0; i < 12; i++)); do
  train_on $((1 + i % 4)) --out killed --resume --steps 1000000 --checkpoint-every 1 --quiet >/dev/null 2>&1 </dev/null &
  pid=$!
  moves $pid killed
  sleep 0.0$((RANDOM % 10))
  child=$(pgrep -P $pid || echo $pid)
  kill -9 $child && kills=$((kills + 1))
  wait $pid 2>/dev/null
done
[[ $kills == 12 ]] || fail "$kills kills"
step=$(checkpoint_step killed)
expect 0 '*' train_on 2 --out killed --resume --steps $((step + 1)) --checkpoint-every 0 --quiet
check_files killed $((step + 1)) 2
expect 2 'natgrad: --checkpoint-parts: needs --out' "$natgrad" train --checkpoint-parts
finish
