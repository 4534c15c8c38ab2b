#!/usr/bin/env bash
# signals.sh [RANKS]: SIGUSR1 makes a checkpoint and the run goes on, SIGTERM and SIGINT make one and end it; on
# one rank and on threads, or with a number on so many processes under mpirun, where each rank is told in turn,
# and the launcher.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
how=(--data digits --model mlp --method natgrad --batch 61 --quiet --lr-schedule constant)

# begin RANKS DIR OPTIONS...: a long run in the background, which has taken steps; `pid` is it or its launcher
begin() {
  local n=$1 dir=$2
  local all=("$natgrad" train "${how[@]}" --steps 1000000 --log-every 1 --out "$dir" "${@:3}")
  if [[ -n $processes ]]; then
    "$NG_SOURCE_DIR/tests/mpirun.sh" "$n" "${all[@]}" >"$dir.out" 2>"$dir.err" </dev/null &
  else
    "${all[@]}" --ranks "$n" >"$dir.out" 2>"$dir.err" </dev/null &
  fi
  pid=$!
  until_so $pid "$dir: steps" lines_over "$dir/log.jsonl" 3 || cat "$dir.err"
}

told() { grep -c '^natgrad: SIGUSR1: the checkpoint of step [0-9]* is in' "$1.err"; }
told_over() { [[ $(told "$1") -gt $2 ]]; }

# keeps DIR WHOM: one more checkpoint, and the run goes on
keeps() {
  local dir=$1 before after
  before=$(told "$dir")
  kill -USR1 "$2" || { fail "$dir: nobody to tell: $(cat "$dir.err")"; return; }
  until_so $pid "$dir: SIGUSR1: a checkpoint" told_over "$dir" "$before"
  after=$(sed -nE 's/^natgrad: SIGUSR1: the checkpoint of step ([0-9]*) is in.*/\1/p' "$dir.err" | tail -n 1)
  [[ $(told "$dir") == $((before + 1)) && $(step_of "$dir") == "$after" ]] ||
    fail "$dir: SIGUSR1: told $(told "$dir") times, $(step_of "$dir") kept: $(cat "$dir.err")"
  until_so $pid "$dir: SIGUSR1: another step" lines_over "$dir/log.jsonl" "$(wc -l <"$dir/log.jsonl")"
}

# ends DIR WHOM: a checkpoint, exit 1, and the run can go on for a step; ^C that a launcher passes on as SIGTERM is one
# request.  Both come at once to one that was stopped, however long this script is kept from sending the second.
ends() {
  local dir=$1 got=0 step
  if kill -STOP "$2"; then
    kill -INT "$2"
    kill -TERM "$2"
    kill -CONT "$2"
  else
    kill -9 "$pid"
  fi
  wait "$pid" || got=$?
  step=$(sed -nE 's/^natgrad: stopped after step ([0-9]+); continue with natgrad train --resume .*/\1/p' "$dir.err")
  [[ $got == 1 && -n $step && $(step_of "$dir") == "$step" ]] || fail "$dir: SIGINT: exit $got, $(step_of "$dir") kept: $(cat "$dir.err")"
  expect 0 '*' "$natgrad" train --out "$dir" --resume --steps $((step + 1)) --quiet
}

if [[ -z $processes ]]; then
  for n in 1 2 4; do
    begin $n run$n
    keeps run$n $pid
    keeps run$n $pid
    ends run$n $pid
  done
  # Nowhere to keep it: told, and the run goes on.
  "$natgrad" train "${how[@]}" --steps 1000000 2>nowhere.err >/dev/null </dev/null &
  pid=$!
  until_so $pid "without --out: a handler" catches $pid 10
  kill -USR1 $pid
  until_so $pid "without --out: SIGUSR1" test -s nowhere.err
  kill -TERM $pid
  wait $pid
  [[ $? == 1 && $(cat nowhere.err) == 'natgrad: SIGUSR1: no checkpoint without --out'*'without --out nothing was saved' ]] ||
    fail "without --out: $(cat nowhere.err)"
else
  last=$((processes - 1))
  begin "$processes" "$scratch/one"
  for ((r = 0; r <= last; r++)); do
    keeps "$scratch/one" "$(rank_of "$scratch/one" $r)"
  done
  keeps "$scratch/one" $pid
  ends "$scratch/one" "$(rank_of "$scratch/one" $last)"
  # Open MPI kills ranks so many seconds later, done or not, and waits so long in any case: more where the machine is busy.
  for seconds in 15 60 240; do
    rm -rf all
    export OMPI_MCA_odls_base_sigkill_timeout=$seconds
    begin "$processes" all
    got=0
    kill -TERM $pid
    wait $pid || got=$?
    step=$(step_of all)
    [[ $got != 0 && -n $step ]] && break
  done
  [[ $got != 0 && -n $step ]] || fail "the launcher: exit $got, '$step' kept: $(cat all.err)"
  expect 0 '*' "$natgrad" train --out all --resume --steps $((step + 1)) --quiet
fi
finish
