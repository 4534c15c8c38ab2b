#!/usr/bin/env bash
# hosts.sh: two hosts, simulated by network namespaces with a link of 1 Gbit/s (bench/hosts.sh), compute the bits of two
# ranks as threads, with many small messages and with one message of each kind.  The hidden share of the time is
# printed; it depends on the load.  t_grads tests that messages leave during backward.
. "$(dirname "$0")/lib.sh"
export OPENBLAS_NUM_THREADS=1 NG_THREADS=1

how=(--data synthetic:classes=4,image=32x32x3,train=64,test=8 --model resnet20 --method natgrad --batch 16 --steps 4
  --seed 3 --stat-period 1 --solve-period 4 --spatial full)
# run_with_messages_of MB: run with messages of MB megabytes; the output has the hidden share
run_with_messages_of() {
  local code=0
  NG_BUILD_DIR=$NG_BUILD_DIR "$NG_SOURCE_DIR/bench/hosts.sh" 1000 "${how[@]}" --bucket-mb "$1" --stat-bucket-mb "$1" \
    --out "$scratch/over.$1" >"$scratch/out" 2>"$scratch/err" || code=$?
  if [[ $code == 77 ]]; then
    cat "$scratch/out"
    exit 77
  fi
  [[ $code == 0 ]] || fail "exit $code: $(tail -c 400 "$scratch/err")"
  grep -qE '^2 ranks: messages take [0-9.]+ ms a step, (100\.0|[0-9]{1,2}\.[0-9]) % during other work$' "$scratch/out" ||
    fail "no share that was hidden: $(tail -n 3 "$scratch/out")"
}
# count_messages MB STATION: the messages of the first rank in all steps
count_messages() {
  tail -n 1 "$scratch/over.$1/log.jsonl" | grep -oE "\"$2\": \{[^}]*\"messages\": [0-9]+" | head -n 1 | grep -oE '[0-9]+$'
}

# The first mpirun fails before a rank starts; bench/hosts.sh runs it once more.
if launcher=$(command -v mpirun); then
  mkdir "$scratch/bin"
  cat >"$scratch/bin/mpirun" <<END
#!/bin/sh
[ "\$1" = --version ] || [ -e "$scratch/failed" ] || { touch "$scratch/failed"; exit 213; }
exec $launcher "\$@"
END
  chmod +x "$scratch/bin/mpirun"
  PATH=$scratch/bin:$PATH
fi

expect 0 '' "$natgrad" train --ranks 2 "${how[@]}" --quiet --out "$scratch/threads"
for mb in 0.2 1000; do
  run_with_messages_of $mb
  checkpoints_match "$scratch"/{threads,over.$mb} !natgrad. || fail "$mb MB: other weights than those of threads"
done
[[ -e $scratch/failed ]] || fail "mpirun was not made to fail"
for station in reduce statistics; do
  few=$(count_messages 1000 $station) many=$(count_messages 0.2 $station)
  [[ -n $few && $few -gt 0 && $many -gt $few ]] || fail "$station: $few messages of 1000 MB, $many of 0.2"
done
finish
