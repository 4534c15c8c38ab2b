#!/usr/bin/env bash
# parts_signals.sh [RANKS]: --checkpoint-parts with interruptions: SIGUSR1, SIGTERM while a checkpoint is written, a
# file that exceeds the limit of one rank.  The last checkpoint is complete on all ranks, and any number of ranks
# resumes from it.  Ranks are threads, or RANKS processes under mpirun.
. "$(dirname "$0")/lib_ranks.sh"
cd "$scratch" || exit 1
n=${processes:-3}
how=(--data digits --model mlp --method natgrad --batch 61 --seed 3 --quiet --lr-schedule constant --checkpoint-parts)

# start_run DIR OPTIONS...: start a long run on $ranks ranks in the background, and wait for a checkpoint or for steps. The
# log has a line every $every steps
every=1
start_run() {
  local dir=$1 i before
  local new=("${how[@]}")
  [[ -d $dir ]] && new=(--quiet)
  train_on "$n" "${new[@]}" --steps 1000000 --log-every $every --out "$scratch/$dir" "${@:2}" >"$dir.out" 2>"$dir.err" </dev/null &
  job=$!
  before=$(wc -l 2>/dev/null <"$dir/log.jsonl" || echo 0)
  wait_until $job "$dir: steps" has_lines_over "$dir/log.jsonl" $((before + 3)) || cat "$dir.err"
  ranks=()
  for ((i = 0; i < n; i++)); do
    if [[ -n $processes ]]; then
      ranks+=("$(rank_process "$scratch/$dir" "$i")")
    elif ((i == 0)); then
      ranks+=("$(pgrep -f -- "natgrad train .*--out $scratch/$dir")")
    fi
  done
}

# check_ended_run DIR: the run ended by a signal, and has all files of the reported checkpoint; two ranks and one rank resume
check_ended_run() {
  local dir=$1 got=0 step
  wait "$job" || got=$?
  step=$(sed -nE 's/^natgrad: stopped after step ([0-9]+); continue with natgrad train --resume .*/\1/p' "$dir.err")
  [[ $got == 1 && -n $step && $(checkpoint_step "$dir") == "$step" ]] || fail "$dir: exit $got, $(checkpoint_step "$dir") kept: $(cat "$dir.err")"
  check_files "$dir" "$step" "$n"
  expect 0 '*' train_on 2 --out "$dir" --resume --steps $((step + 1)) --checkpoint-every 0 --quiet
  check_files "$dir" $((step + 1)) 2
  expect 0 '*' train_on 1 --out "$dir" --resume --steps $((step + 2)) --checkpoint-every 0 --quiet
}

count_saves() { grep -c '^natgrad: SIGUSR1: the checkpoint of step [0-9]* is in' "$1.err"; }
has_saves_over() { [[ $(count_saves "$1") -gt $2 ]]; }

# Each rank in turn gets SIGUSR1: the run continues, and all ranks write the checkpoint.  Then all ranks get the signal
# at once, and one gets SIGTERM.
start_run kept --checkpoint-every 0
for ((r = 0; r < ${#ranks[@]}; r++)); do
  kill -USR1 "${ranks[r]}"
  wait_until $job "rank $r: a checkpoint" has_saves_over kept $r
  step=$(sed -nE 's/^natgrad: SIGUSR1: the checkpoint of step ([0-9]*) is in.*/\1/p' kept.err | tail -n 1)
  [[ $(count_saves kept) == $((r + 1)) && $(checkpoint_step kept) == "$step" ]] || fail "rank $r: told $(count_saves kept) times: $(cat kept.err)"
  check_files kept "$step" "$n"
done
kill -USR1 "${ranks[@]}"
kill -TERM "${ranks[${#ranks[@]} - 1]}"
check_ended_run kept

on_its_way() { compgen -G "$1/checkpoint-*.natgrad-state*.natgrad-part" >/dev/null; }
# SIGTERM when a rank begins to write its part: the ranks finish this checkpoint and write another one.
for turn in 1 2 3; do
  start_run between$turn --checkpoint-every 1
  nap='' wait_until $job "between$turn: a part on its way" on_its_way between$turn
  kill -TERM "${ranks[$((turn % ${#ranks[@]}))]}"
  check_ended_run between$turn
done

# A limit of the file size below the largest part: one line names a part, and the previous checkpoint is unchanged.  A
# later run succeeds.
expect 0 '' train_on "$n" "${how[@]}" --steps 4 --out full
listing() { (cd full && find . -name 'checkpoint*' -type f -exec cksum {} + | sort -k 3); }
largest() { find full -name "$1" -printf '%s\n' | sort -n | tail -n 1; }
part=$(largest '*natgrad-state*') most=$(($(largest '*natgrad-state*') - 1024))
other=$(largest '*.safetensors')
((other + 1024 < most)) || fail "the weights have $other bytes, the largest part $part"
every=100 # steps are fast: the log would be larger than the limit before the part is
start_run full --resume --checkpoint-every 0
listing >before
for r in "${ranks[@]}"; do
  prlimit --pid "$r" --fsize=$most || fail "prlimit: rank $r"
done
kill -USR1 "${ranks[0]}"
got=0
wait "$job" || got=$?
# a launcher ends the slower processes
[[ $got == 2 || (-n $processes && $got != 0) ]] || fail "a part too large: exit $got"
[[ $(grep -v 'natgrad: stopping after' full.err | grep -c '^natgrad: ') == 1 ]] && grep -qE '^natgrad: .*natgrad-state.*: cannot write' full.err ||
  fail "a part too large: $(cat full.err)"
diff before <(listing) || fail "a part too large, and the checkpoint changed"
expect 0 '*' train_on 2 --out full --resume --steps 8 --quiet
check_files full 8 2
finish
