#!/usr/bin/env bash
# The kernels of cuda/ compile for every GPU of bench/gpu.sh, without warnings and without registers spilled to memory.
# The programs that bench/gpu.sh packs print one line without a GPU. Exit code 77: nvcc is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v nvcc >/dev/null || { echo "skipped: nvcc (CUDA's compiler) is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for gpu in 80 90 100; do
  nvcc -fmad=false -arch=sm_$gpu -Werror all-warnings -Xptxas -v,-warn-spills -cubin -o "$work/cubin" cuda/kernels.cu 2>"$work/log" ||
    { cat "$work/log"; exit 1; }
  kernels=$(grep -c "Compiling entry function" "$work/log")
  spilled=$(grep -oE "[1-9][0-9]* bytes spill" "$work/log" || true)
  echo "sm_$gpu: $kernels kernels"
  [[ -z $spilled && $kernels -eq $(cat cuda/*.cu | grep -c '^NG_GLOBAL') ]] || { cat "$work/log"; exit 1; }
done

bench/gpu.sh --pack "$work/pack" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
said=$("$work/pack/gpu_eva" tiny 2>&1) || [[ $said == "gpu_eva: no CUDA driver: libcuda.so.1 is not installed" ||
  $said == "gpu_eva: init failed: CUDA_ERROR_NO_DEVICE" ]] || { echo "$said"; exit 1; }
echo "$said"
