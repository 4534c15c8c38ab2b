#!/usr/bin/env bash
# parts.sh [RANKS]: --checkpoint-parts: every rank writes its own part of the state.  A run goes on from them on
# fewer ranks and on more; what is missing, swapped, edited or in the way is refused by name; a run that is killed
# at any moment has a whole checkpoint.  As threads, or with a number as so many processes under mpirun.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
how=(--data digits --model mlp --method natgrad --batch 61 --seed 3 --log-every 1 --quiet --lr-schedule constant)
# moves PID DIR: until a checkpoint of a later step is there
step_over() { [[ $(step_of "$1") -gt $2 ]]; }
moves() { until_so "$1" "$2: a checkpoint" step_over "$2" "$(step_of "$2")"; }

n=${processes:-3}
expect 0 '' on "$n" "${how[@]}" --steps 30 --out one
expect 0 '' on "$n" "${how[@]}" --steps 30 --checkpoint-parts --checkpoint-every 10 --out parts
whole parts 30 "$n"
cmp {one,parts}/checkpoint/model-30.safetensors || fail "parts change weights"

# Half on n ranks in parts, the rest on others; and on with another number, in one file again.
for rest in 1 2 $((n + 1)); do
  expect 0 '' on "$n" "${how[@]}" --steps 15 --checkpoint-parts --out half$rest
  expect 0 '*' on "$rest" "${how[@]}" --steps 30 --out half$rest --resume
  near "15 steps on $n, 15 on $rest" one half$rest 30
  whole half$rest 30 "$rest"
done
# ... and with another strategy; a window cut otherwise, or not at all.
expect 0 '' on "$n" "${how[@]}" --steps 15 --checkpoint-parts --grad-worker-fraction 0 --placement kaisa --out moved
expect 0 '*' on 2 "${how[@]}" --steps 30 --grad-worker-fraction 1 --placement round-robin --out moved --resume
near "another strategy" one moved 30
window=("${how[@]}" --method mfac --window 4 --damping 0.1)
expect 0 '' on "$n" "${window[@]}" --steps 30 --out dense
expect 0 '' on "$n" "${window[@]}" --statistics sharded --checkpoint-parts --steps 15 --out cut
expect 0 '*' on 2 "${window[@]}" --statistics sharded --steps 25 --out cut --resume
expect 0 '*' on 1 "${window[@]}" --statistics all --steps 30 --out cut --resume
near "a window that was cut" dense cut 30

# One rank of a job is killed while checkpoints are made after every step: the job ends, the last checkpoint is whole,
# and the run goes on on fewer ranks and again on all.
dir=$scratch/lost
if [[ -n $processes ]]; then
  expect 0 '' on "$n" "${how[@]}" --steps 2 --checkpoint-parts --out "$dir"
  for victim in 0 $((n - 1)); do
    on "$n" --out "$dir" --resume --steps 1000000 --checkpoint-every 1 --quiet >/dev/null 2>&1 </dev/null &
    job=$!
    moves $job "$dir"
    sleep 0.0$((RANDOM % 10))
    kill -9 "$(rank_of "$dir" $victim)" || {
      fail "rank $victim is not to be found"
      pkill -f -- "train .*--out $dir"
    }
    wait $job && fail "a job without rank $victim ended well"
    until_so $$ "ranks that the launcher left behind end" gone "$dir"
    step=$(step_of "$dir")
    expect 0 '*' on $((n - 1)) --out "$dir" --resume --steps $((step + 1)) --checkpoint-every 0 --quiet
    whole "$dir" $((step + 1)) $((n - 1))
  done
  finish
fi

# What does not belong together, as files and as names.
c=run/checkpoint
refused() { expect 2 "natgrad: $1" on "${ranks:-2}" --out run --resume --steps 40 --quiet; }
listing() { (cd "$1" && find . -printf '%p %y %l\n' | sort && find . -type f -exec cksum {} + | sort -k 3); }
again() {
  rm -rf run && cp -a parts run
  "$@"
  listing run >before
}
untouched() { diff before <(listing run) || fail "$1: refused, but changed"; }
one=$(cd parts/checkpoint && echo precond-30.safetensors.*-1of3)
two=${one/-1of3/-2of3}
for ranks in 1 2 4; do
  again rm $c/$two && refused "$c/$two: is missing, and belongs to the checkpoint of step 30" && untouched missing
  swap() { mv $c/$one $c/x && mv $c/$two $c/$one && mv $c/x $c/$two; }
  again swap && refused "$c/$one: does not belong to latest.json, or was edited" && untouched swapped
  flip() { printf '\377' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 1)) conv=notrunc status=none; }
  again flip $c/$one && refused "$c/$one: tensor * is damaged (its checksum differs)" && untouched edited
  again truncate -s -1 $c/$two && refused "$c/$two: *" && untouched cut
done
link() { mv $c/$one elsewhere && ln -s "$scratch/elsewhere" $c/$one; }
again link && refused "$c/$one: is a symbolic link, expected a regular file" && untouched link
newer=precond-31.safetensors.01234567-1of2
again touch $c/$newer && refused "$c/$newer: is newer than latest.json, which is of step 30; *" && untouched newer
way=precond.natgrad-next.01234567-1of3.natgrad-part
again mkfifo $c/$way && refused "$c/$way: is a pipe, expected a regular file"
# What a killed save left goes; others' files stay, whatever their names are.
strangers=($c/precond-30.safetensors.mine $c/precond.natgrad-next.01234567-2of3)
leave() {
  cp $c/$one $c/precond.natgrad-next${one#precond-30.safetensors}
  touch $c/$way "${strangers[0]}"
  cp $c/$two "${strangers[1]}"
}
again leave
expect 0 '*' on 1 --out run --resume --steps 31 --quiet
rm "${strangers[@]}" || fail "a stranger's file is gone"
whole run 31 1

# Killed at any moment, most of the time while a checkpoint is being made, and gone on on another number of ranks.
kills=0
expect 0 '' on 3 "${how[@]}" --steps 2 --checkpoint-parts --out killed
for ((i = 0; i < 12; i++)); do
  on $((1 + i % 4)) --out killed --resume --steps 1000000 --checkpoint-every 1 --quiet >/dev/null 2>&1 </dev/null &
  pid=$!
  moves $pid killed
  sleep 0.0$((RANDOM % 10))
  child=$(pgrep -P $pid || echo $pid)
  kill -9 $child && kills=$((kills + 1))
  wait $pid 2>/dev/null
done
[[ $kills == 12 ]] || fail "$kills kills"
step=$(step_of killed)
expect 0 '*' on 2 --out killed --resume --steps $((step + 1)) --checkpoint-every 0 --quiet
whole killed $((step + 1)) 2
expect 2 'natgrad: --checkpoint-parts: needs --out DIR, to write to' "$natgrad" train --checkpoint-parts
finish
