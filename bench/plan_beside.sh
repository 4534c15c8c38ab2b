#!/usr/bin/env bash
# plan_beside.sh [MODEL [BATCH]]: compare `natgrad plan --calibrate` with `natgrad train` on 1, 2 and 4 ranks as threads, each
# with one thread.  Print planned and measured milliseconds of 20 steps (four with statistics, two with factorisations): of the
# whole, of forward and backward, and of the remaining work.  The plan assumes a free core for each rank.  NG_BUILD_DIR: the
# folder of the program (default build).
set -euo pipefail
export OPENBLAS_NUM_THREADS=1 NG_THREADS=1
root=$(cd "$(dirname "$0")/.." && pwd)
natgrad=${NG_BUILD_DIR:-$root/build}/natgrad
unset NG_BUILD_DIR # the program warns about unknown NG_ variables
model=${1:-resnet20} batch=${2:-32}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

periods=(--stat-period 5 --solve-period 10)
# number NAME: print the number of field NAME in the JSON line on stdin.
number() { sed -nE "s/.*\"$1\": ?([0-9.]+).*/\\1/p"; }

printf '%5s  %8s  %8s  %6s  %26s  %18s\n' ranks planned measured error 'forward, backward' added
for ranks in 1 2 4; do
  plan=$("$natgrad" plan --calibrate --model "$model" --ranks $ranks --batch "$batch" "${periods[@]}" \
    --bandwidth 2GB/s --latency 50 --json 2>/dev/null | sed -n 1p)
  "$natgrad" train --ranks $ranks --data synthetic:classes=10,image=32x32x3,train=$((32 * batch * ranks)),test=8 \
    --model "$model" --batch $((batch * ranks)) --steps 20 --method natgrad "${periods[@]}" --quiet \
    --out "$scratch/$ranks"
  tail -n 1 "$scratch/$ranks/log.jsonl" | sed -E 's/.*"ms": \{([^}]*)\}.*/\1/' | tr ',' '\n' >"$scratch/ms"
  awk -v ranks=$ranks -v step="$(number step_ms <<<"$plan")" -v compute="$(number compute_ms <<<"$plan")" -F': ' '
    { all += $2 } /forward|backward/ { own += $2 } /"data"/ { all -= $2 }
    END { printf "%5d  %8.0f  %8.0f  %5.0f%%  %12.0f %13.0f  %8.0f %9.0f\n", ranks, step, all, 100 * (step - all) / all,
          compute, own, step - compute, all - own }' "$scratch/ms"
done
