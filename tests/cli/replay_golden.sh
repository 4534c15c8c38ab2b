#!/usr/bin/env bash
# Every recording of the project, on both linear algebras, within 1e-5 of the largest recorded entry
# of each step and layer.  eigen-0 and eigen_dp-0 get 3e-5: there the published programs' own float32
# rounding, seen against their double results, is that large.
. "$(dirname "$0")/lib.sh"

loose=("$golden/eigen-0.safetensors" "$golden/eigen_dp-0.safetensors")
strict=()
for file in "$golden"/*.safetensors; do
  [[ " ${loose[*]} " == *" $file "* ]] || strict+=("$file")
done
[[ ${#strict[@]} == 35 ]] || fail "${#strict[@]} recordings besides ${#loose[@]}, expected 35"

linalgs=(ref)
if "$natgrad" info | grep -q '^linalg cpu = built in'; then linalgs+=(cpu); fi
for linalg in "${linalgs[@]}"; do
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" "${strict[@]}"
  [[ $(grep -c 'tolerance 1e-05: ok$' "$scratch/out") == 35 ]] || fail "$linalg: not 35 times ok"
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" --tolerance 3e-5 "${loose[@]}"
done
finish
