#!/usr/bin/env bash
# Replay all recordings with both linear algebras: errors at most 1e-5 of the largest recorded entry of each step and
# layer.  eigen-0 and eigen_dp-0 get 3e-5, the float32 rounding of the published programs (compared with double).
. "$(dirname "$0")/lib.sh"

loose=("$golden/eigen-0.safetensors" "$golden/eigen_dp-0.safetensors")
# chainerkfac's own rounding in these, seen against the same formulas in double, is 1.10e-5, 1.20e-5 and 1.11e-5,
# in a factor of order 97 and rank 8 with a condition near 300 (in the others at most 0.90e-5).
for case in 1 decay options; do loose+=("$golden/spngd-$case.safetensors"); done
strict=()
for file in "$golden"/*.safetensors; do
  [[ $file != */window-* ]] || continue
  [[ " ${loose[*]} " == *" $file "* ]] || strict+=("$file")
done
[[ ${#strict[@]} == 44 ]] || fail "${#strict[@]} recordings besides ${#loose[@]}, expected 44"

windows=("$golden"/window-{mfac,efcp,ggt,sparse}-*.safetensors)
[[ ${#windows[@]} == 14 ]] || fail "${#windows[@]} recordings of windows, expected 14"

linalgs=(ref)
if "$natgrad" info | grep -q '^linalg cpu = built in'; then linalgs+=(cpu); fi
for linalg in "${linalgs[@]}"; do
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" "${strict[@]}"
  [[ $(grep -c 'tolerance 1e-05: ok$' "$scratch/out") == 44 ]] || fail "$linalg: not 44 times ok"
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" --tolerance 3e-5 "${loose[@]}"
  # window methods: what the originals lose in f32 (t_window_golden has the formulas in double beside them)
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" "${windows[@]}"
  [[ $(grep -c 'tolerance 2e-04: ok$' "$scratch/out") == 14 ]] || fail "$linalg: windows: not 14 times ok"
  [[ $(grep -c '^  error feedback after each step: largest [0-9.e+-]* (step [0-9]*, [^ ]*)$' "$scratch/out") == 6 ]] ||
    fail "$linalg: windows: not 6 times error feedback"
done
# rounding accumulates in the matrix from which the next step starts
lowrank=("$golden"/window-lowrank-*.safetensors)
[[ ${#lowrank[@]} == 4 ]] || fail "${#lowrank[@]} recordings of low rank, expected 4"
for linalg in "${linalgs[@]}"; do
  expect 0 '*: ok' "$natgrad" replay --linalg "$linalg" "${lowrank[@]}"
  [[ $(grep -c 'tolerance 1e-03: ok$' "$scratch/out") == 4 ]] || fail "$linalg: low rank: not 4 times ok"
  [[ $(grep -c '^  error feedback after each step: largest .*), tolerance 2e-03$' "$scratch/out") == 4 ]] ||
    fail "$linalg: low rank: not 4 times error feedback"
done
expect 2 "*window-mfac-ring.safetensors: array init.conv1.weight.q is missing: low rank begins with *" \
  "$natgrad" replay "$golden/window-mfac-ring.safetensors" --window-store lowrank
expect 2 '*window-lowrank-1.safetensors: array init.*.q: expected float32 ?*,2?, of window_rank 2' \
  "$natgrad" replay "$golden/window-lowrank-1.safetensors" --window-rank 2
expect 1 '*: exceeded' "$natgrad" replay --tolerance 2e-4 "$golden/window-mfac-ring.safetensors" --window 4
# swap the error feedback of two steps: directions stay the same
for case in sparse-mfac-0 lowrank-1; do
  sed 's/"s3\.fc1\.weight\.error"/"s3.fc1.weight.other"/; s/"s9\.fc1\.weight\.error"/"s3.fc1.weight.error"/
    s/"s3\.fc1\.weight\.other"/"s9.fc1.weight.error"/' "$golden/window-$case.safetensors" >"$scratch/changed.safetensors"
  expect 1 '*: exceeded' "$natgrad" replay "$scratch/changed.safetensors"
  grep -q '^  error feedback after each step: largest [0-9.]*e[+-]0[01] (step [39], fc1.weight)' "$scratch/out" ||
    fail "$case: an error of another step is not told"
done
sed 's/"s3\.fc1\.weight\.error":{"dtype":"F32"/"s3.fc1.weight.error":{"dtype":"I32"/' "$golden/window-lowrank-1.safetensors" \
  >"$scratch/changed.safetensors"
expect 2 '*array s3.fc1.weight.error: expected float32, *' "$natgrad" replay "$scratch/changed.safetensors"
# every field of a window recording is checked: swap two arrays and expect the name
swapped() { # CASE FIRST SECOND
  sed "s/\"$2\":/\"change\":/; s/\"$3\":/\"$2\":/; s/\"change\":/\"$3\":/" "$golden/window-$1.safetensors" >"$scratch/changed.safetensors"
  cmp -s "$golden/window-$1.safetensors" "$scratch/changed.safetensors" && fail "$1 has no $2 or $3"
}
for case in mfac-ring lowrank-1; do
  for field in grad out; do
    swapped $case s3.fc1.weight.$field s9.fc1.weight.$field
    expect 1 '*  largest [0-9.]*e[+-]0[0-3] (step *exceeded' "$natgrad" replay "$scratch/changed.safetensors"
  done
done
finish
