#!/usr/bin/env bash
# Replay all recordings with each linear algebra, also of a GPU on the stand-in (docs/cuda.md): errors within each recording's tolerance, 1e-5 of the largest recorded
# entry of each step and layer unless the recording names a larger one and its reason.
. "$(dirname "$0")/lib.sh"

linalgs=(ref)
if "$natgrad" info | grep -q '^linalg cpu = built in'; then linalgs+=(cpu); fi
standin=$NG_TEST_BUILD_DIR/libnatgrad_standin.so
[[ -f $standin ]] && linalgs+=(cuda) && export NG_CUDA_LIBRARY=$standin
for linalg in "${linalgs[@]}"; do
  expect 0 '*' "$natgrad" replay --linalg "$linalg" "$golden"/*
  [[ $(cat "$scratch/err") == "natgrad: $golden/README.md: skipped, not a recording: expected a .safetensors file" ]] ||
    fail "$linalg: README.md: $(cat "$scratch/err")"
  [[ $(grep -c ': ok$' "$scratch/out") == 102 && $(grep -c 'tolerance 1e-05: ok$' "$scratch/out") == 66 ]] ||
    fail "$linalg: not 102 times ok, 66 of these with 1e-5"
  [[ $(grep -c '^  tolerance: the program.s own float32 rounding: ' "$scratch/out") == 33 ]] || fail "$linalg: not 33 reasons"
  [[ $(grep -c "^  tolerance: the program.s own bfloat16 rounding: " "$scratch/out") == 6 ]] || fail "$linalg: not 6 reasons of bf16"
  [[ $(grep -c '^  error feedback after each step: largest ' "$scratch/out") == 10 ]] ||
    fail "$linalg: not 10 times error feedback"
done
expect 2 '*README.md: skipped, not a recording: *' "$natgrad" replay "$golden/README.md"
expect 1 '*: exceeded*' "$natgrad" replay --tolerance 1e-6 "$golden/eigen-0.safetensors"
expect 2 "*window-mfac-ring.safetensors: array init.conv1.weight.q, the start of the low-rank iteration, is missing*" \
  "$natgrad" replay "$golden/window-mfac-ring.safetensors" --window-store lowrank
expect 2 '*window-lowrank-1.safetensors: array init.*.q: expected float32 ?*,2?, of window_rank 2' \
  "$natgrad" replay "$golden/window-lowrank-1.safetensors" --window-rank 2
expect 1 '*: exceeded*' "$natgrad" replay --tolerance 2e-4 "$golden/window-mfac-ring.safetensors" --window 4
# swap the error feedback of two steps: directions stay the same
for case in sparse-mfac-0 lowrank-1; do
  sed 's/"s3\.fc1\.weight\.error"/"s3.fc1.weight.other"/; s/"s9\.fc1\.weight\.error"/"s3.fc1.weight.error"/
    s/"s3\.fc1\.weight\.other"/"s9.fc1.weight.error"/' "$golden/window-$case.safetensors" >"$scratch/changed.safetensors"
  expect 1 '*: exceeded*' "$natgrad" replay "$scratch/changed.safetensors"
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
    expect 1 '*  largest [0-9.]*e[+-]0[0-3] (step *exceeded*' "$natgrad" replay "$scratch/changed.safetensors"
  done
done
finish
