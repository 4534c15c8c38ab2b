#!/usr/bin/env bash
# natgrad plan and natgrad train on two ranks: ResNet-20 with norms, all work due in one step.  For each strategy, planned
# bytes of sums and of all messages equal the bytes that the run counts.
. "$(dirname "$0")/lib.sh"

"$natgrad" plan --json --model resnet20 --ranks 2 --stat-period 1 --solve-period 1 >"$scratch/plan" || fail "plan of a resnet20"
# of STRATEGY FIELD: print a number of the strategy
of() { grep -F "\"strategy\":\"$1\"," "$scratch/plan" | sed -E "s/.*\"$2\":([-+.e0-9]+).*/\1/"; }
# sent STATION...: print the bytes that rank 0 sent in these stations
sent() {
  local station all=0
  for station; do
    all=$((all + $(grep -oE "\"$station\": \{[^}]*\"bytes\": [0-9]+" "$scratch/run/log.jsonl" | head -n 1 | grep -oE '[0-9]+$')))
  done
  echo $all
}
rows=0
while IFS= read -r row; do
  options=$(grep -F "\"strategy\":\"$row\"," "$scratch/plan" | sed -E 's/.*"options":"([^"]*)".*/\1/')
  how=()
  for option in $options; do
    [[ $option == update=* ]] && continue # the trainer's
    name=${option%%=*}
    how+=("--${name//_/-}" "${option#*=}")
  done
  rm -rf "$scratch/run"
  "$natgrad" train --ranks 2 --data synthetic:classes=10,image=32x32x3,train=8,test=4 --model resnet20 --batch 8 --steps 1 "${how[@]}" \
    --stat-period 1 --solve-period 1 --quiet --out "$scratch/run" || fail "a run with $options"
  [[ $(of "$row" sums_bytes) == "$(sent statistics)" ]] || fail "$row: sums planned $(of "$row" sums_bytes), sent $(sent statistics)"
  all=$(sent check statistics solve share deliver agree weights)
  awk -v a="$(of "$row" sent_a_step)" -v b="$all" 'BEGIN { exit !(a == b && b > 0) }' ||
    fail "$row: planned $(of "$row" sent_a_step) bytes a step, sent $all"
  rows=$((rows + 1))
done < <(sed -nE 's/.*"strategy":"([^"]*)".*/\1/p' "$scratch/plan")
[[ $rows == 9 ]] || fail "$rows strategies, expected 9"
finish
