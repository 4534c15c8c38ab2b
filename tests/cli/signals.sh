#!/usr/bin/env bash
# signals.sh [RANKS]: SIGUSR1 saves a checkpoint and the run continues; SIGTERM and SIGINT save a checkpoint and end the
# run.  The run has one rank, several threads, or RANKS processes under mpirun; there each rank in turn and the launcher
# get the signal.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
how=(--data digits --model mlp --method natgrad --batch 61 --quiet --lr-schedule constant)

# start_run RANKS DIR OPTIONS...: start a long run in the background and wait for steps; `pid`: the run or its launcher
start_run() {
  local n=$1 dir=$2
  local all=("$natgrad" train "${how[@]}" --steps 1000000 --log-every 1 --out "$dir" "${@:3}")
  if [[ -n $processes ]]; then
    "$NG_SOURCE_DIR/tests/mpirun.sh" "$n" "${all[@]}" >"$dir.out" 2>"$dir.err" </dev/null &
  else
    "${all[@]}" --ranks "$n" >"$dir.out" 2>"$dir.err" </dev/null &
  fi
  pid=$!
  wait_until $pid "$dir: steps" has_lines_over "$dir/log.jsonl" 3 || cat "$dir.err"
}

count_saves() { grep -c '^natgrad: SIGUSR1: the checkpoint of step [0-9]* is in' "$1.err"; }
has_saves_over() { [[ $(count_saves "$1") -gt $2 ]]; }

# save_and_continue DIR PID: SIGUSR1 to PID saves one checkpoint, and the run continues
save_and_continue() {
  local dir=$1 before after
  before=$(count_saves "$dir")
  kill -USR1 "$2" || { fail "$dir: nobody to tell: $(cat "$dir.err")"; return; }
  wait_until $pid "$dir: SIGUSR1: a checkpoint" has_saves_over "$dir" "$before"
  after=$(sed -nE 's/^natgrad: SIGUSR1: the checkpoint of step ([0-9]*) is in.*/\1/p' "$dir.err" | tail -n 1)
  [[ $(count_saves "$dir") == $((before + 1)) && $(checkpoint_step "$dir") == "$after" ]] ||
    fail "$dir: SIGUSR1: told $(count_saves "$dir") times, $(checkpoint_step "$dir") kept: $(cat "$dir.err")"
  wait_until $pid "$dir: SIGUSR1: another step" has_lines_over "$dir/log.jsonl" "$(wc -l <"$dir/log.jsonl")"
}

# save_and_end DIR PID: SIGINT and SIGTERM to PID save a checkpoint and end the run with exit code 1; the run can resume.  A launcher
# may send ^C as both signals, which count as one.  The process is stopped meanwhile, so both signals arrive at once.
save_and_end() {
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
  [[ $got == 1 && -n $step && $(checkpoint_step "$dir") == "$step" ]] || fail "$dir: SIGINT: exit $got, $(checkpoint_step "$dir") kept: $(cat "$dir.err")"
  expect 0 '*' "$natgrad" train --out "$dir" --resume --steps $((step + 1)) --quiet
}

if [[ -z $processes ]]; then
  for n in 1 2 4; do
    start_run $n run$n
    save_and_continue run$n $pid
    save_and_continue run$n $pid
    save_and_end run$n $pid
  done
  # Without --out there is no checkpoint: the program prints a line, and the run continues.
  "$natgrad" train "${how[@]}" --steps 1000000 2>nowhere.err >/dev/null </dev/null &
  pid=$!
  wait_until $pid "without --out: a handler" has_handler $pid 10
  kill -USR1 $pid
  wait_until $pid "without --out: SIGUSR1" test -s nowhere.err
  kill -TERM $pid
  wait $pid
  [[ $? == 1 && $(cat nowhere.err) == 'natgrad: SIGUSR1: no checkpoint without --out'*'without --out nothing was saved' ]] ||
    fail "without --out: $(cat nowhere.err)"
else
  last=$((processes - 1))
  start_run "$processes" "$scratch/one"
  for ((r = 0; r <= last; r++)); do
    save_and_continue "$scratch/one" "$(rank_process "$scratch/one" $r)"
  done
  save_and_continue "$scratch/one" $pid
  save_and_end "$scratch/one" "$(rank_process "$scratch/one" $last)"
  # Open MPI kills ranks after this many seconds, and always waits as long; a busy machine needs more.
  for seconds in 15 60 240; do
    rm -rf all
    export OMPI_MCA_odls_base_sigkill_timeout=$seconds
    start_run "$processes" all
    got=0
    kill -TERM $pid
    wait $pid || got=$?
    step=$(checkpoint_step all)
    [[ $got != 0 && -n $step ]] && break
  done
  [[ $got != 0 && -n $step ]] || fail "the launcher: exit $got, '$step' kept: $(cat all.err)"
  expect 0 '*' "$natgrad" train --out all --resume --steps $((step + 1)) --quiet
fi
finish
